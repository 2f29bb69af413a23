"""What all tests share: every test finds the same world, whatever ran before it and wherever it runs."""

import os
import random
import sys

import pytest
from hypothesis import HealthCheck, settings

# Each of these changes what programs print or how they start; tests that want one set it themselves.
for name in (
    *("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "DLPLACER_DEBUG"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
):
    os.environ.pop(name, None)

# The same examples every time; how long one takes says nothing about the code on a busy machine.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


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
