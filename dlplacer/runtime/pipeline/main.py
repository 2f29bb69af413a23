"""``torchrun --nproc-per-node 2 -m dlplacer.runtime.pipeline.main module:callable``: run and measure a pipeline."""

import argparse
import importlib
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dlplacer.core.errors import DlplacerError, InputError

if TYPE_CHECKING:
    from dlplacer.frontend.torch.job import Job

_TIMEOUT_S = 300


def main(arguments: Sequence[str] | None = None) -> int:
    """One rank of a measured pipeline; rank 0 prints the report."""
    parser = argparse.ArgumentParser(prog="dlplacer.runtime.pipeline.main", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="module:callable that returns a dlplacer.Job")
    parser.add_argument(
        "--arguments", type=_table, default={}, metavar="JSON", help="keyword arguments of the callable"
    )
    parser.add_argument(
        "--micro-batches", type=_numbers, default=[2, 4, 8], metavar="M[,M…]", help="numbers to choose from (2,4,8)"
    )
    parser.add_argument("--schedule", metavar="NAME[,NAME…]", help="schedules to choose from (all)")
    parser.add_argument("--steps", type=int, default=9, metavar="N", help="steps that are timed (9)")
    parsed = parser.parse_args(arguments)
    if "RANK" not in os.environ:
        print(
            "dlplacer: start this with torchrun --nproc-per-node N -m dlplacer.runtime.pipeline.main …",
            file=sys.stderr,
        )
        return InputError.exit_code
    try:
        _run(parsed)
    except DlplacerError as error:
        print(f"dlplacer: rank {os.environ['RANK']}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _run(parsed: argparse.Namespace) -> None:
    from dlplacer.planning.pipeline.schedules import SCHEDULES
    from dlplacer.runtime.pipeline.run_pipeline import pin, run_pipeline

    pin(int(os.environ["LOCAL_RANK"]))
    import torch.distributed as dist

    job = job_of(parsed.model, parsed.arguments)
    schedules = parsed.schedule.split(",") if parsed.schedule else list(SCHEDULES)
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = run_pipeline(job, parsed.micro_batches, schedules, parsed.steps)
        if dist.get_rank() == 0:
            print(json.dumps(report.to_dict()), flush=True)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def job_of(entry: str, arguments: Mapping[str, Any]) -> "Job":
    """The job that ``module:callable`` returns.

    Raises
    ------
    InputError
        If it is not there, or returns no job.
    """
    from dlplacer.frontend.torch.job import Job

    module, _, name = entry.partition(":")
    try:
        build = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{entry!r} cannot be imported: {error}; name module:callable") from error
    job = build(**arguments)
    if not isinstance(job, Job):
        raise InputError(f"{entry!r} returned an object of type {type(job).__name__}; it must return a dlplacer.Job")
    return job


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has a number below 1")
    return numbers


def _table(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no JSON object; write {{"batch_size": 8}}')
    return value


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread of gloo that is still closing its sockets would abort the interpreter's orderly end.
    os._exit(code)
