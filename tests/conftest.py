"""What every test needs: an environment of its own, and the real traces where they are present."""

from __future__ import annotations

import multiprocessing.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.environment import enter_session, enter_test, leave_session

# A shared machine is slow now and then, so hypothesis has no deadline. In CI the examples are the same in every run: a
# failure there points to the change, not to chance.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("any machine")

_FETCHED = Path(__file__).resolve().parent / "traces"
SHARED_TRACES = _FETCHED if (_FETCHED / "complete.txt").exists() else _FETCHED.parents[1] / ".." / "shared" / "traces"
"""The real traces: those that `make traces` has fetched, or a folder that several checkouts share."""

_SETS = ("flight-recorder/", "gloo-2ranks/", "hta/", "tensorboard-plugin/", "torchrec/", "tracelens/")
_ROOT = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    # It is removed when the process ends: not in the session's directory, which is gone by then.
    multiprocessing.util.get_temp_dir()
    config.stash[_ROOT] = enter_session()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist share the directory
        leave_session(config.stash[_ROOT])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is about a real trace that is not here: `make traces` does not have them all."""
    for item in items:
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        for name in (each for each in given if isinstance(each, str) and each.startswith(_SETS)):
            if SHARED_TRACES.is_dir() and not _is_here(name):
                item.add_marker(pytest.mark.skip(reason=f"the real trace {name} is not here"))


def _is_here(name: str) -> bool:
    """Whether a path, the beginning of a file's name, or a pattern names something among the real traces."""
    if "*" in name:
        return any(SHARED_TRACES.glob(name))
    place = SHARED_TRACES / name
    return place.exists() or (
        place.parent.is_dir() and any(each.name.startswith(place.name) for each in place.parent.iterdir())
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """After a failure, say how to repeat the order of the tests: a quiet run has no header that does."""
    seed = config.getoption("randomly_seed", None)
    if exitstatus and isinstance(seed, int):
        terminalreporter.write_line(f"the same order again: --randomly-seed={seed}")


@pytest.fixture(autouse=True)
def private_cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Isolates a test from the machine and from the other tests; gives its cache of tables."""
    variables = enter_test(request.config.stash[_ROOT])
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", None)
    return Path(variables["RANKSCOPE_CACHE"])


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of real traces; tests that need it are skipped where it is absent."""
    if not SHARED_TRACES.is_dir():
        pytest.skip("the real traces are not here: `make traces` fetches them")
    return SHARED_TRACES.resolve()


@pytest.fixture(scope="session")
def session_cache(pytestconfig: pytest.Config) -> Path:
    """One folder of tables for the entire session, which the workers of pytest-xdist share."""
    folder = pytestconfig.stash[_ROOT] / "session-cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.fixture
def shared_cache(session_cache: Path, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For tests that only read the real traces: what one test has read, the next finds."""
    monkeypatch.setenv("RANKSCOPE_CACHE", str(session_cache))
    yield session_cache
