"""The code that runs inside a measured job: it times steps in blocks, under conditions that change while the job runs.

In: the plan of ``rankscope measure``, through the environment. Out: a file of step times per rank. The hook in an
unmodified script calls ``install``; a script that has a function for a training step calls ``measure``. Needs only
torch and the standard library.
"""

from rankscope.capture.measured.plan_runner import install, measure

__all__ = ["install", "measure"]
