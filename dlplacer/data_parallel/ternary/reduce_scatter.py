"""Ternary gradients for fully_shard: the shards of a unit's gradients go to their ranks as codes, in one all-to-all.

A shard of a parameter has a scaler of its own. Nothing is sent to all, so the bytes stay a sixteenth for any number of
ranks; and each shard is averaged by one rank, so that replicas have nothing to disagree on.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.ternary import collectives
from dlplacer.data_parallel.ternary.bucket_codec import BucketCodec, as_float32, mean_of_rows
from dlplacer.data_parallel.ternary.fsdp_units import ShardedUnit, sharded_units
from dlplacer.data_parallel.ternary.gather_transport import GatherMessage
from dlplacer.data_parallel.ternary.kernels import kernels_for
from dlplacer.data_parallel.ternary.layout import bucket_layout
from dlplacer.data_parallel.ternary.parameter_names import named_parameters
from dlplacer.data_parallel.ternary.state import TernaryState

REDUCE_SCATTER = "reduce-scatter"


def ternary_reduce_scatter(model: nn.Module, state: TernaryState) -> None:
    """Let a model that fully_shard has sharded send its gradients with two bits per element.

    What travels in full precision is what `TernaryState` says. A unit in which a parameter has no gradient is reduced
    in full precision in that step, as PyTorch does not say which one is missing.

    Parameters
    ----------
    model
        The root, behind all calls of fully_shard and before the first step.
    state
        One for each model and rank; ``transport`` does not matter.

    Raises
    ------
    InputError
        If the model is not sharded, if scalers are to be shared, or if ``exclude`` names no parameter. In a step: if
        gradients are divided by another factor than the number of ranks.
    """
    if state.settings.share_scaler:
        raise InputError(
            "share_scaler has no use with fully_shard, where codes are decoded before they are added; leave it out"
        )
    units = list(sharded_units(model))
    if not units:
        raise InputError(
            f"no part of this {type(model).__name__} is sharded; call fully_shard first, or register ternary_hook with "
            "a DistributedDataParallel"
        )
    parameters = named_parameters(model, model)
    whole = parameters.last_layer | parameters.matching(state.settings.exclude)
    for unit in units:
        names = parameters.of([parameter for parameter, _ in unit.parameters])
        assert names is not None
        coded = [
            name not in whole and parameter.is_floating_point() and parameter.numel() >= state.settings.min_numel
            for name, (parameter, _) in zip(names, unit.parameters, strict=True)
        ]
        if any(coded):
            # FSDP2 asks for these methods, not for its base class, which has no public name.
            exchange = UnitReduceScatter(state, unit, names, coded)
            unit.module.set_custom_reduce_scatter(exchange)  # type: ignore[arg-type]


class UnitReduceScatter:
    """The reduce-scatter of one unit, as ``FSDPModule.set_custom_reduce_scatter`` wants it."""

    def __init__(self, state: TernaryState, unit: ShardedUnit, names: Sequence[str], coded: Sequence[bool]) -> None:
        self._state = state
        self._numel = unit.shard_numel
        self._shards = [(name, numel) for name, (_, numel) in zip(names, unit.parameters, strict=True)]
        self._coded = {name for name, is_coded in zip(names, coded, strict=True) if is_coded}
        self._codecs: list[BucketCodec] = []
        self.step = state.steps
        state.units.append(self)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer for what is reduced, as PyTorch's own reduce-scatter has it."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp | dist.ReduceOp.RedOpType,
        async_op: bool = False,  # noqa: ARG002
    ) -> None:
        """Fill ``output_tensor`` with the mean, or the sum, of all ranks' gradients of this rank's shards."""
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise InputError(
                "ternary gradients average over all ranks, and set_gradient_divide_factor asks for another factor; "
                "leave it out, or scale the loss"
            )
        ranks, step = group.size(), self.step
        self.step += 1
        self._state.steps = max(self._state.steps, self.step)
        self._state.counters.full_bytes += (ranks - 1) * output_tensor.nbytes
        if input_tensor.numel() != ranks * self._numel:
            collectives.reduce_scatter(output_tensor, input_tensor, op=op, group=group)
            self._state.counters.sent((ranks - 1) * output_tensor.nbytes)
            return
        self._exchange(output_tensor, input_tensor.view(ranks, -1), group, step)
        if op == dist.ReduceOp.SUM:
            output_tensor.mul_(ranks)

    def _exchange(self, output: torch.Tensor, rows: torch.Tensor, group: dist.ProcessGroup, step: int) -> None:
        codecs = self._codecs_of(rows, group)
        own = codecs[group.rank()]
        size = GatherMessage.size_bytes(own.layout)
        sent = own.buffer("sent", len(rows) * size, rows.device).view(len(rows), size)
        received = own.buffer("received", len(rows) * size, rows.device).view(len(rows), size)
        for codec, row, data in zip(codecs, rows, sent, strict=True):
            exact, message = as_float32(row), GatherMessage(codec.layout, rows.dtype, data)
            limits, scalers = codec.measured(exact)
            message.scalers.copy_(scalers)
            codec.copy_whole(row, message.whole)
            codec.encode(exact, step, limits, scalers, message.words[: codec.layout.words])
        dist.all_to_all_single(received.view(-1), sent.view(-1), group=group)
        own.counters.sent((len(rows) - 1) * size)
        messages, mean = GatherMessage(own.layout, rows.dtype, received), as_float32(output)
        with own.counters.decoding(output.device, own.layout.coded_numel):
            own.kernels.decode(messages.words, messages.scalers.contiguous(), own.layout.table, mean)
        own.place_coded(mean, output)
        if own.layout.whole:
            own.place_whole(mean_of_rows(messages.whole), output)

    def _codecs_of(self, rows: torch.Tensor, group: dist.ProcessGroup) -> list[BucketCodec]:
        """One for each receiving rank: they differ in the names, and with them in the random numbers."""
        if len(self._codecs) != len(rows) or self._codecs[0].group is not group:
            state = self._state
            self._codecs = [
                BucketCodec(
                    bucket_layout(
                        [(f"{name}[{rank}]", numel) for name, numel in self._shards],
                        rows.element_size(),
                        lambda name, numel: name.rpartition("[")[0] in self._coded and numel > 0,
                    ),
                    state.settings,
                    group,
                    kernels_for(rows.device.type),
                    state.counters,
                    REDUCE_SCATTER,
                )
                for rank in range(len(rows))
            ]
            state.adopt(self._codecs, group)
        for codec in self._codecs:
            codec.settings = self._state.settings
        return self._codecs
