"""What runs inside a measured job: times of steps, in blocks, under conditions that change while the job runs.

In goes the plan of ``rankscope measure``, through the environment; out comes a file of step times per rank.
``install`` is called by the hook in an unmodified script, ``measure`` by a script that has a function for a training
step. Needs only torch and the standard library.
"""

from rankscope.measure.injob.plan_runner import install, measure

__all__ = ["install", "measure"]
