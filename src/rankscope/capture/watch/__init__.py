"""The watch: an always-on log of each step, and recordings that are triggered while the job runs.

In the loop: one call per step and a few readings of the clock (`phases`). In a control thread of each rank
(`step_logger`): the log (`log`), the collectives from torch's Flight Recorder (`ring`), the rule for slow steps
(`slow_steps`), and on profiled ranks (`watcher`) requests to record, on which these agree (`requests`, `board`).

In: the steps of a loop. Out: a log in the run directory, and windows for the loop.
"""
