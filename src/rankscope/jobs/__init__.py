"""Starting jobs with a run directory and with profiling set up, writing their job scripts, gathering what they wrote;
``doctor`` checks the machine before a job, and a run after it.

In comes a training script with its options, or a description of a batch job; out come a :class:`~run.JobResult` with
its run directory, a job script, or a complete run directory. Standard library alone: jobs run it with torch alone.
"""
