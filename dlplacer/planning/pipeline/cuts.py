"""Cuts of a pipeline: sets of blocks without predecessors outside the set, and the tensors that cross them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dlplacer.planning.pipeline.blocks import Blocks

MOST_CUTS = 1500


@dataclass(frozen=True)
class Cuts:
    """The cuts of a graph, from the empty set to all blocks.

    Attributes
    ----------
    inside
        [cut, block] → whether the block is before the cut.
    exact
        True if these are all cuts of the graph; else they follow one order of the blocks.
    """

    blocks: Blocks
    inside: Any
    exact: bool

    @property
    def count(self) -> int:
        """The number of cuts."""
        return int(self.inside.shape[0])

    @cached_property
    def nested(self) -> Any:
        """[earlier cut, later cut] → whether the earlier one is within the later one, and not the same."""
        inside = self.inside.astype(np.float32)
        missing = inside @ (1 - inside).T
        return (missing == 0) & ~np.eye(self.count, dtype=bool)

    def total(self, per_block: Any) -> Any:
        """[cut] → Σ of a quantity over the blocks before it."""
        return self.inside @ np.asarray(per_block, dtype=float)

    @cached_property
    def forward_bytes(self) -> Any:
        """[cut] → bytes of the tensors that cross it: made before it, read behind it, for the whole batch.

        Between the first and last stages that use it, a tensor passes through every stage.
        """
        return self._crossing(np.array([tensor.bytes for tensor in self.blocks.activations], dtype=float))

    @cached_property
    def backward_bytes(self) -> Any:
        """[cut] → bytes of the gradients that cross it the other way."""
        return self._crossing(np.array([tensor.gradient_bytes for tensor in self.blocks.activations], dtype=float))

    @cached_property
    def unstashed_bytes(self) -> Any:
        """[cut] → bytes of crossing tensors that no backward op reads, kept only as outputs of a stage."""
        return self._crossing(
            np.array([0 if tensor.is_saved else tensor.bytes for tensor in self.blocks.activations], dtype=float)
        )

    @cached_property
    def passing_bytes(self) -> Any:
        """[earlier cut, later cut] → bytes of `unstashed_bytes` that cross both: they come in and go out again."""
        sizes = np.array([0 if tensor.is_saved else tensor.bytes for tensor in self.blocks.activations], dtype=float)
        # What crosses one cut alone passes through no stage; most tensors of a chain are of that kind.
        twice = np.flatnonzero((sizes > 0) & (self._crosses.sum(axis=0) > 1))
        crosses = self._crosses[:, twice].astype(float)
        return (crosses * sizes[twice]) @ crosses.T

    @cached_property
    def tied_bytes(self) -> Any:
        """[earlier cut, later cut] → bytes of copies that the stage between has of weights kept in other stages.

        Each counts twice where it is trained: the copy, and its part of the gradient.
        """
        found = np.zeros((self.count, self.count))
        for tie in self.blocks.ties:
            readers = self.inside[:, sorted(tie.readers)]
            reads = (readers[None, :, :] & ~readers[:, None, :]).any(axis=2)
            keeps = self.inside[None, :, tie.home] & ~self.inside[:, None, tie.home]
            found += (reads & ~keeps) * float(tie.bytes + tie.gradient_bytes)
        return found

    @cached_property
    def saved_bytes(self) -> Any:
        """[cut] → bytes of the tensors made before it that a backward op reads."""
        per_block = np.zeros(len(self.blocks.members))
        for tensor in self.blocks.activations:
            per_block[tensor.maker] += tensor.bytes if tensor.is_saved else 0
        return self.total(per_block)

    @cached_property
    def _crosses(self) -> Any:
        """[cut, tensor] → whether the tensor crosses the cut."""
        found = np.zeros((self.count, len(self.blocks.activations)), dtype=bool)
        for position, tensor in enumerate(self.blocks.activations):
            if tensor.readers:
                unread = ~self.inside[:, sorted(tensor.readers)].all(axis=1)
                found[:, position] = self.inside[:, tensor.maker] & unread
        return found

    def _crossing(self, sizes: Any) -> Any:
        return self._crosses @ sizes if len(sizes) else np.zeros(self.count)


def cuts_of(blocks: Blocks, most: int = MOST_CUTS) -> Cuts:
    """All cuts of a graph, or those along one order of its blocks if there are more than `most`.

    A cut is a set of blocks with all that comes before them (an order ideal), so that data cross it in one direction.
    """
    count = len(blocks.members)
    found = _ideals(blocks, most)
    exact = found is not None
    if found is None:
        found = [(1 << position) - 1 for position in range(count + 1)]
    rows = np.zeros((len(found), count), dtype=bool)
    for row, ideal in enumerate(sorted(found, key=lambda ideal: (ideal.bit_count(), ideal))):
        rows[row, list(_bits(ideal))] = True
    return Cuts(blocks, rows, exact)


def _ideals(blocks: Blocks, most: int) -> list[int] | None:
    needs = [sum(1 << block for block in before) for before in blocks.before]
    found = {0}
    newest = [0]
    while newest:
        following = set()
        for ideal in newest:
            for block, needed in enumerate(needs):
                if not ideal >> block & 1 and needed & ~ideal == 0:
                    following.add(ideal | 1 << block)
        newest = [ideal for ideal in following if ideal not in found]
        found.update(newest)
        if len(found) > most:
            return None
    return list(found)


def _bits(value: int) -> Iterator[int]:
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low
