"""What the logs of a watched job say while it runs: step times, arrivals, and the straggler, without a trace.

Logs in the run directory → `log` (incremental reading) → `local_times`, or `device_times` on CUDA and ROCm (all ranks,
as matrices) → `status` (the verdict, by the same engine as from traces).

In: a run directory. Out: a `WatchStatus`.
"""
