"""The run directory: the files through which a job and its analysis meet, and how they are named, written and read.

In comes what a process knows about itself (environment, command line, recorded windows); out come paths, manifests and
trace metadata that any later version can read. The standard library alone: this is imported in the job.

::

    RUN/
      run.json                                  written once, by rank 0
      ranks/rank3.json                          written by its rank alone, atomically
      rank3_iter10_12.trace.json.gz             rank{R}_iter{FIRST}_{LAST}: the steps are those in the file
      rank3_dp1-tp0_iter10_12.trace.json.gz     with a DeviceMesh: its dimensions and this rank's coordinate
      rank3_restart1_iter10_12.trace.json.gz    after a restart

No two processes write the same file. On local disks each host has its part of the directory; readers merge the parts
by run id, which is in ``run.json``, in every ``ranks/*.json`` and in every trace.
"""
