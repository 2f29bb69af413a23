"""A model as a chain of layers whose parameters travel over one channel."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from dlplacer.core.errors import InputError

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class LayerChain:
    """Layers 1..L in the order of the forward pass.

    Forward: a group of layers is pulled, then its layers compute. Backward: layers compute from L down to 1, and a
    group is pushed once the gradient of its first layer is there. The second is the first with time running backwards,
    so that one solver serves both.

    Attributes
    ----------
    startup_s
        T_s: seconds that every message costs whatever its size.
    transfer_s
        t_i: seconds that layer i's parameters occupy the channel.
    compute_s
        c_i: seconds of layer i's computation in the given direction.
    bytes
        Size of every layer, for a cap on the bytes of a group; empty where none is asked for.
    names
        Names of the layers; empty to number them.
    dtypes
        Of their parameters, where layers of two dtypes cannot share a group; empty where they can.

    Raises
    ------
    InputError
        If there are no layers, lengths differ, or a time is negative or not finite.
    """

    startup_s: float
    transfer_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    bytes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.transfer_s:
            raise InputError("a chain has no layers; give at least one transfer time and one compute time")
        for name in ("compute_s", "bytes", "names", "dtypes"):
            count = len(getattr(self, name))
            if count != len(self.transfer_s) and (count or name == "compute_s"):
                raise InputError(
                    f"chain: transfer_s has {len(self.transfer_s)} layers, {name} has {count}; give as many"
                )
        for name, values in (
            ("startup_s", (self.startup_s,)),
            ("transfer_s", self.transfer_s),
            ("compute_s", self.compute_s),
            ("bytes", self.bytes),
        ):
            for position, value in enumerate(values, start=1):
                if not (math.isfinite(value) and value >= 0):
                    raise InputError(
                        f"chain: {name} of layer {position} is {value}; it must be a finite number of at least 0"
                    )

    @property
    def layer_count(self) -> int:
        """L."""
        return len(self.transfer_s)

    @cached_property
    def transfers_before_s(self) -> tuple[float, ...]:
        """P_l: seconds of the transfers of layers 1..l, for l = 0..L."""
        return tuple(accumulate(self.transfer_s, initial=0.0))

    @cached_property
    def compute_before_s(self) -> tuple[float, ...]:
        """Seconds of the computation of layers 1..l, for l = 0..L."""
        return tuple(accumulate(self.compute_s, initial=0.0))

    @cached_property
    def compute_after_s(self) -> tuple[float, ...]:
        """S_l: seconds of the computation of layers l+1..L, for l = 0..L."""
        return tuple(reversed(tuple(accumulate(reversed(self.compute_s), initial=0.0))))

    def reach(self, cap_bytes: int | None) -> tuple[int, ...]:
        """For l = 0..L-1 the last layer that a group starting after layer l may hold; a layer above the cap goes alone.

        Raises
        ------
        InputError
            If a cap is asked for and the chain does not know its layers' bytes.
        """
        within_cap, same = self._within(cap_bytes), self._of_one_dtype()
        return tuple(map(min, within_cap, same))

    def _within(self, cap_bytes: int | None) -> list[int]:
        """`reach` by the cap alone."""
        count = self.layer_count
        if cap_bytes is None:
            return [count] * count
        if not self.bytes:
            raise InputError("a cap on the bytes of a group needs the bytes of every layer; give LayerChain(bytes=...)")
        sums = tuple(accumulate(self.bytes, initial=0))
        last, found = count, []
        for start in reversed(range(count)):
            while last > start + 1 and sums[last] - sums[start] > cap_bytes:
                last -= 1
            found.append(last)
        return found[::-1]

    def _of_one_dtype(self) -> list[int]:
        """`reach` by the dtypes alone."""
        count = self.layer_count
        last, found = count, []
        for start in reversed(range(count)):
            if self.dtypes and start + 1 < count and self.dtypes[start] != self.dtypes[start + 1]:
                last = start + 1
            found.append(last)
        return found[::-1]


def require_cuts(chain: LayerChain, cuts: Sequence[int]) -> None:
    """Raise InputError unless cuts are the last layers of contiguous groups that cover the chain."""
    rising = all(before < after for before, after in zip((0, *cuts), cuts, strict=False))
    if not cuts or not rising or cuts[-1] != chain.layer_count:
        raise InputError(
            f"cuts are {list(cuts)}; give the last layer of every group, rising, up to {chain.layer_count}"
        )
