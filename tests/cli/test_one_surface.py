"""The command line is a view of `dlplacer`: its options are parameters of a function, and print the same values."""

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dlplacer as dp
from dlplacer.api.jobs import StepOptions
from dlplacer.api.kinds import Parameter
from dlplacer.cli.commands import COMMANDS
from dlplacer.cli.main import main
from dlplacer.cli.parser import Command, Given

FUNCTIONS = {
    "capture": dp.capture,
    "compare": dp.compare,
    "hybrid": dp.hybrid,
    "groups": dp.groups,
    "epochs": dp.epochs,
    "selftest": dp.selftest,
    "minibatch": dp.advise_minibatch,
    "gpus": dp.advise_gpus,
    "servers": dp.advise_servers,
    "detect": dp.detect_topology,
    "import": dp.import_topology,
    "solve": dp.place,
    "run": dp.run,
    "profile": dp.profile,
    "pipeline": dp.pipeline,
    "fit": dp.fit,
    "export": dp.export,
    "new": dp.new_topology,
}
OF_THE_COMMAND = {
    "fit": {"to"},
    "hybrid": {"pins"},
    "solve": {"split", "times"},
    "run": {"gantt", "trace", "one_process"},
    "profile": {"split", "times", "search_s"},
    "pipeline": {"plan_file", "csv", "time_limit_s", "allow_other_loss"},
}
"""Options that are no parameters: what the command itself does with a result, refuses, or asks of another function."""

RENAMED = {"no_overlap": "overlap"}


def leaves(commands: tuple[Command, ...]) -> Iterator[Command]:
    for command in commands:
        yield from leaves(command.below) if command.below else (command,)


@pytest.mark.parametrize(
    "command", [each for each in leaves(COMMANDS) if each.name in FUNCTIONS], ids=lambda one: one.name
)
def test_every_option_is_a_parameter_of_the_function(command: Command) -> None:
    groups = [each for each in command.parameters if not isinstance(each, str)]
    options = {one.name for each in groups for one in ((each,) if isinstance(each, Parameter) else each)}
    passed = {RENAMED.get(name, name) for name in Given(dict.fromkeys(options)).arguments}
    parameters = inspect.signature(FUNCTIONS[command.name]).parameters
    known = {*parameters, *(StepOptions.__annotations__ if "step" in parameters else ())}
    assert passed - known - OF_THE_COMMAND.get(command.name, set()) == set()


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (
            "groups inception_v3-train pcie-4gpu --cap 25MiB",
            lambda: dp.groups("inception_v3-train", "pcie-4gpu", cap_bytes="25 MiB"),
        ),
        ("advise gpus --efficiency 0.8 --gpus 4", lambda: dp.advise_gpus(efficiency=0.8, gpus=4)),
        (
            "hybrid inception_v3-train dgx1-v100-2gpu --devices 4 --scaling-efficiency 1 --speedup 2=1.3 --speedup 4=2",
            lambda: dp.hybrid("inception_v3-train", "dgx1-v100-2gpu", 4, scaling_efficiency=1, speedups={2: 1.3, 4: 2}),
        ),
        (
            "advise minibatch dlplacer.models:mlp dgx1-v100-2gpu --batch-sizes 4,8",
            lambda: dp.advise_minibatch("dlplacer.models:mlp", "dgx1-v100-2gpu", batch_sizes=[4, 8]),
        ),
    ],
)
def test_a_command_prints_the_value_of_the_function(
    words: str, call: Callable[[], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--json"]) == 0
    value = call()
    expected = value if isinstance(value, dict) else value.to_dict()
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected))


def test_the_same_texts_are_read_in_python_and_on_the_command_line() -> None:
    by_text = dp.compare("inception_v3-infer", "dgx1-v100-2gpu", methods="heft, list", time_limit_s="1min")
    by_value = dp.compare("inception_v3-infer", "dgx1-v100-2gpu", methods=["heft", "list"], time_limit_s=60)
    assert [row.makespan_s for row in by_text.rows] == [row.makespan_s for row in by_value.rows]
