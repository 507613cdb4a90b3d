"""Small real training jobs to profile, on any device: ``python -m rankscope.capture.workloads.resnet18 --help``.

``resnet18`` and ``transformer`` run under DDP, ``fsdp`` under FSDP2 or FSDP1.

In: :class:`~job.Settings`, from the command line or as an argument of each module's ``train``. Out: losses, step times
and, if profiled, traces.
"""
