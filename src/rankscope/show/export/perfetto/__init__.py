"""Write a run for Perfetto: its traces in one archive with their clocks, or all ranks in one trace.

In: a run. Out: an archive that ui.perfetto.dev opens on one clock (`archive`), or one trace (`merged`).
"""

from __future__ import annotations

from rankscope.show.export.perfetto.archive import Archived, write_archive
from rankscope.show.export.perfetto.merged import Merged, write_merged

__all__ = ["Archived", "Merged", "write_archive", "write_merged"]
