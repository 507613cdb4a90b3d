"""The contract between a job and its analysis: every path pattern and every manifest, written down once.

::

    RUN/
      run.json                                  written once, by rank 0
      ranks/rank3.json                          written by its rank alone, atomically
      rank3_iter10_12.trace.json.gz             rank{R}_iter{FIRST}_{LAST}: the steps are those in the file
      rank3_dp1-tp0_iter10_12.trace.json.gz     with a DeviceMesh: its dimensions and this rank's coordinate
      rank3_restart1_iter10_12.trace.json.gz    after a restart

No two processes write one file. On local disks each host has its own part of the directory; readers merge the
parts by run id, which is in ``run.json``, in every ``ranks/*.json`` and in every trace.

``names`` has the path patterns, ``metadata`` what a trace carries about itself, ``manifest`` the two
manifests, ``launcher`` who this process is, ``config`` and ``ranks`` what a job is told about its capture, ``fields``
how untrusted JSON is read.
"""
