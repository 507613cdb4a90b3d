"""What ranks are called in Perfetto.

In: a rank and its position in the mesh. Out: a name.
"""

from __future__ import annotations

from collections.abc import Mapping


def rank_name(rank: int, mesh: Mapping[str, int]) -> str:
    """`rank 3 (dp0 tp3)`: the rank, and its position in the mesh where that is known."""
    place = " ".join(f"{dimension}{index}" for dimension, index in mesh.items())
    return f"rank {rank} ({place})" if place else f"rank {rank}"
