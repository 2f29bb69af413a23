"""What the caller gets from a worker is sent when it is made."""

from types import SimpleNamespace

import torch
from runtime.processes.small_jobs import LABELS, ROWS, placed_branches

from dlplacer.runtime.processes.program_slots import with_results_sent
from dlplacer.runtime.program.program import Program

PROGRAM = """DEVICE here
  COMPUTE start
  SEND start -> away
  RECV loss <- away
DEVICE away
  RECV start <- here
  COMPUTE weight
  COMPUTE hidden
  COMPUTE loss
  SEND loss -> here
  COMPUTE gradient
  FREE hidden
"""


def test_results_are_sent_behind_the_op_that_makes_them_once():
    producer = {name: name for name in ("start", "weight", "hidden", "loss", "gradient")}
    codes = {name: SimpleNamespace(role="parameter" if name == "weight" else "call") for name in producer}
    executable = SimpleNamespace(producer=producer, codes=codes)
    program = Program.parse(PROGRAM)
    found = with_results_sent(program, "away", ("weight", "loss", "hidden", "gradient", "start"), executable, "here")
    assert str(Program({"away": found.actions["away"]})).splitlines()[1:] == [
        "  RECV start <- here",
        "  COMPUTE weight",
        "  COMPUTE hidden",
        "  SEND hidden -> here",
        "  COMPUTE loss",
        "  SEND loss -> here",
        "  COMPUTE gradient",
        "  SEND gradient -> here",
        "  FREE hidden",
    ]
    assert found.actions["here"] == program.actions["here"]


def test_results_outlive_the_next_steps():
    """They are the caller's own, wherever they lay on their way."""
    for seed in range(4):
        module = placed_branches("on", seed)
        losses, kept = [], []
        for _ in range(3):
            module.zero_grad(set_to_none=True)
            torch.manual_seed(1)
            losses.append(module.step(ROWS, LABELS))
            kept.append({name: one.grad for name, one in module.named_parameters()})
        copies = [loss.clone() for loss in losses], [{n: g.clone() for n, g in one.items()} for one in kept]
        module.zero_grad(set_to_none=True)
        module.step(2 * ROWS, LABELS)
        assert all(map(torch.equal, losses, copies[0]))
        assert all(
            torch.equal(one[name], other[name]) for one, other in zip(kept, copies[1], strict=True) for name in one
        )
        module.close()
