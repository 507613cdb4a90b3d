"""From files to results: ingest every trace, then run the analyses' graph. The only caller of executors.

`open_run` finds the traces of a run (`run.py`); nothing is read until a number is wanted. Then each file is one task
(`load.py`), and each rank's share of the analyses another (`graph.py`, `tasks.py`); only small frames come back, and no
process ever holds all ranks. What fails is a finding, and the rest goes on.
"""

from rankscope.pipeline.load import Loaded
from rankscope.pipeline.run import HasRunDir, Run, Source, open_run, parse_steps
from rankscope.pipeline.tasks import Progress

__all__ = ["HasRunDir", "Loaded", "Progress", "Run", "Source", "open_run", "parse_steps"]
