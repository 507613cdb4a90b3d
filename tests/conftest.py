"""What every test needs: a cache of its own, and the real traces where they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A machine that others use is slow now and then: time says nothing about what is tested. What is tried differs from run
# to run where somebody looks for faults, and is the same in each of CI's, which tells of a change and not of chance.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("any machine")

SHARED_TRACES = Path(__file__).resolve().parents[1] / ".." / "shared" / "traces"


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables go to a folder of the test's own, never to the user's."""
    root = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("RANKSCOPE_CACHE", str(root))
    return root


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of real traces beside the repository; tests that want it are skipped where it is absent."""
    if not (SHARED_TRACES / "README.md").exists():
        pytest.skip("the real traces are not here")
    return SHARED_TRACES.resolve()


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder of tables for a whole session."""
    return tmp_path_factory.mktemp("session-cache")


@pytest.fixture
def shared_cache(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For tests that only read the real traces: what one test has read, the next finds."""
    monkeypatch.setenv("RANKSCOPE_CACHE", str(session_cache))
    yield session_cache
