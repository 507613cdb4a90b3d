"""A watched job for monitoring: its state with the verdict on a hang, and its numbers for Prometheus and OpenTelemetry.

All of it runs in a process of its own and reads the run directory: the job does not notice.

In: a run directory. Out: `job.JobState`, and `numbers.Number`.
"""
