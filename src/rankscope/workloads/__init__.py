"""Small real training jobs to profile, on any device: ``python -m rankscope.workloads.resnet18 --help``.

``resnet18`` under DDP, ``transformer`` under DDP, ``fsdp`` (FSDP2, or FSDP1). Each runs alone or under any launcher,
and each module's ``train(settings)`` is the same job as a function. ``job`` holds what they share.
"""
