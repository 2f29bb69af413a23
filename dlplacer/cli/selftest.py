"""``dlplacer selftest``."""

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING

from dlplacer.cli.output.output_files import output_file, tell_written
from dlplacer.cli.output.progress import progress
from dlplacer.cli.output.tables import new_table, print_table
from dlplacer.core.errors import CheckError, InputError

if TYPE_CHECKING:
    from dlplacer.measure.selftest import Build, Selftest

HELP = "Try the runtime on devices of this machine: numbers, races, links, issue costs, steps of Inception-V3."
EXAMPLES = (
    ("selftest --devices cpu:0,cpu:1 --no-steps", "numbers, races and links: less than a minute"),
    ("selftest --devices cuda:0,cuda:1 -o report.json", "everything, on two GPUs, with a report for an issue"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "--devices", required=True, metavar="D[,D…]", help="cpu:0,cpu:1 or cuda:0,cuda:1 or cuda:0/0,cuda:0/1"
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs with pauses for each small model (5)")
    parser.add_argument(
        "--no-steps", action="store_true", help="leave out the timed steps, which take most of the time"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random plans and pauses (0)")
    parser.add_argument(
        "-o", "--output", metavar="F", type=output_file, help="write a report (JSON) that can be attached to an issue"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Try everything and print; exit code 5 if a check failed."""
    from dlplacer.measure.selftest import selftest

    if arguments.repeats < 1:
        raise InputError(f"--repeats is {arguments.repeats}; at least 1 is needed")
    devices = arguments.devices.split(",")
    small, timed = _models(on_cores=all(name.strip().startswith("cpu") for name in devices))
    with progress("trying the runtime") as show:
        done = selftest(
            small,
            {} if arguments.no_steps else timed,
            devices,
            repeats=arguments.repeats,
            seed=arguments.seed,
            on_progress=show,
        )
    if arguments.output:
        from dlplacer.files import write_json

        write_json(arguments.output, done.to_dict())
    if arguments.json:
        print(json.dumps(done.to_dict()))
    else:
        _print(done)
        tell_written(arguments.output)
    return 0 if done.passed else CheckError.exit_code


def _models(on_cores: bool) -> "tuple[dict[str, Build], dict[str, Build]]":
    """The models whose numbers are checked, and those whose steps are timed: on cores a small one."""
    from dlplacer import models

    small: dict[str, Build] = {
        "branches": partial(models.branches, batch_size=4, image_size=16),
        "mlp": partial(models.mlp, batch_size=8),
    }
    if on_cores:
        return small, {"branches, batch 1": partial(models.branches, batch_size=1, image_size=48, count=4)}
    sizes: dict[str, Build] = {
        f"inception_v3, batch {size}": partial(models.inception_v3, batch_size=size) for size in (1, 32)
    }
    return small, sizes


def _print(done: "Selftest") -> None:
    table = new_table("check", "of", "measured", "at most", "", names=2)
    for check in done.checks:
        limit = "" if check.limit is None else f"{check.limit:.3g}"
        verdict = "" if check.limit is None else "passed" if check.passed else "FAILED"
        value = "n/a" if check.value is None else f"{check.value:.3g} {check.unit}"
        table.add_row(check.name, check.subject, value, limit, verdict)
    print_table(table)
    for check in done.checks:
        if check.note:
            print(f"{check.name}, {check.subject}: {check.note}")
