"""Arguments of `place` that are refused with the way out."""

import pytest
from solvers.random_problems import random_step

from dlplacer.cli.main import main
from dlplacer.core.errors import InputError
from dlplacer.planning.place import place


def test_a_name_that_cannot_be_left_out_is_refused_with_those_that_can(capsys: pytest.CaptureFixture[str]) -> None:
    graph, topology, options = random_step(4, 4)
    with pytest.raises(InputError, match=r"'windos' to leave out; use some of .*annealing.*heft"):
        place(graph, topology, options, without=["windos"])
    assert main(["solve", "inception_v3-infer", "dgx1-v100-2gpu", "--without", "segments,winds"]) == 2
    assert "'winds'" in capsys.readouterr().err
