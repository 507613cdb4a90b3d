"""What an experiment of ``rankscope measure`` runs inside the job: times of steps, block by block, in conditions that
change while the job runs.

``install`` is called in a job whose script knows nothing of it (as ``rankscope run`` does it), ``measure`` by a script
that has a function for a step.
"""

from rankscope.measure.injob.plan_runner import install, measure

__all__ = ["install", "measure"]
