"""Tensors that traced code holds: copies on other devices follow what is written to the originals."""

import torch

from dlplacer.runtime.placed.constants import PlacedConstants


def test_copies_follow_what_is_written_and_leave_old_ones_as_they_were() -> None:
    here, away = torch.ones(3), torch.ones(3)
    with torch.inference_mode():
        inferred = torch.ones(3)
    placed = PlacedConstants(
        {"here": here, "away": away, "inferred": inferred},
        lambda op, tensor: tensor if op == "here" else tensor.clone(),
    )
    before = dict(placed.now())
    assert before["here"] is here
    assert before["away"] is not away
    # Unwritten, they are not copied again: what replays a step reads at one address.
    assert all(before[op] is tensor for op, tensor in placed.now().items())
    here.fill_(2.0)
    away.fill_(3.0)
    after = placed.now()
    assert after["here"] is here
    assert torch.equal(after["away"], away)
    assert torch.equal(before["away"], torch.ones(3))
    assert after["inferred"] is before["inferred"]
    assert placed.now()["away"] is after["away"]
