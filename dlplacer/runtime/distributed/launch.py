"""Processes on this machine for a plan over several ranks, where torchrun has not started them."""

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any


def run_as_ranks(count: int, words: Sequence[str]) -> int:
    """Run ``dlplacer`` with these arguments on every rank of a new group; the exit code of the first that fails."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    where: dict[str, Any] = {"run_id": "dlplacer", "rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0"}
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=count, max_restarts=0, **where)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # every rank prints its own error
    try:
        elastic_launch(config, sys.executable)("-m", "dlplacer", *words)
    except ChildFailedError as error:
        return max(1, error.get_first_failure()[1].exitcode)
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0
