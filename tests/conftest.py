"""What all tests share: every test finds the same world, whatever ran before it and wherever it runs."""

import gc
import os
import random
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Each of these changes what programs print or how they start; tests that want one set it themselves.
for name in (
    *("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "DLPLACER_DEBUG"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
):
    os.environ.pop(name, None)
# PyTorch looks up the name of every address that connects, ::ffff:127.0.0.1 too: a question that is lost
# costs a second, not five.
os.environ["RES_OPTIONS"] = "timeout:1"

# The same examples every time; how long one takes says nothing about the code on a busy machine.
settings.register_profile(
    "repeatable",
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

_HERE = Path(__file__).parent

# Where tests measure time or start groups of busy processes: all of them run on one worker of pytest-xdist, one after
# another, so that no two ask for the same cores at once.
_TIMED = (
    *("runtime/devices", "runtime/distributed", "runtime/executor", "runtime/profile", "measure", "test_examples.py"),
    *("cli/test_run_ranks_command.py", "cli/test_measuring_commands.py"),
    *("planning/hybrid/test_hybrid_example.py", "machines/importers/test_detecting.py"),
)

# Where else tests pin threads to cores: their numbers are the same however long they take.
_PINNING = (
    *("runtime", "models/test_recurrent.py", "frontend/onnx", "planning/coarsen/test_granularity_command.py"),
    *("frontend/torch/splitting/test_training.py", "frontend/torch/tracing/test_kernels.py"),
    *("frontend/torch/tracing/test_micro_batches.py", "frontend/torch/test_batch_comparison.py"),
    "data_parallel/elastic/test_composition.py",
)


@cache
def _pins(path: Path) -> bool:
    return _is_in(path, (*_TIMED, *_PINNING))


@cache
def _is_timed(path: Path) -> bool:
    return _is_in(path, _TIMED)


def _is_in(path: Path, places: Sequence[str]) -> bool:
    return any((_HERE / place) in (path, *path.parents) for place in places)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist writes the groups into the names of tests in a hook of the same kind
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the timed tests first, as one group: its worker starts at once and the other takes what is left.

    Before that come tests of several packages, which take longest, so that both workers end together.
    """
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if _is_timed(item.path):
                item.add_marker(pytest.mark.xdist_group("timed"))
        if config.getoption("dist", "no") != "no" or "PYTEST_XDIST_WORKER" in os.environ:
            items.sort(key=lambda item: (not _is_timed(item.path), item.path.parent != _HERE))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare the collector what lasts until the end: 800,000 objects, most of them torch's, half a second a time."""
    _require_groups(session)
    gc.freeze()


def _require_groups(session: pytest.Session) -> None:
    """Fail where pytest-xdist drops the groups, as 3.8 does without a word under pytest 9.2 (pytest-xdist#1386)."""
    if session.config.getoption("loadgroup", False):
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid.rpartition("]")[2]:
                raise pytest.UsageError(f"pytest-xdist does not group tests under pytest {pytest.__version__}")


@pytest.fixture(autouse=True)
def _other_tests_pin_nothing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test outside these lists that pins a thread fails."""
    if not _pins(request.node.path) and hasattr(os, "sched_setaffinity"):

        def refuse(*_: object) -> None:
            raise AssertionError(f"{request.node.nodeid} pins a thread to a core: name its file in tests/conftest.py")

        monkeypatch.setattr(os, "sched_setaffinity", refuse)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw the same numbers in every test, alone or after others; packages that are not loaded stay so.

    Plain PyTorch, the oracle, runs with one thread, as the placed module does on every device; on a busy machine its
    threads would wait for each other besides.
    """
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
        sys.modules["torch"].set_num_threads(1)
