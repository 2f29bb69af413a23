"""Ternary gradients for fully_shard: one all-to-all sends the shards of a unit's gradients to their ranks as codes.

Every shard of a parameter has its own scaler. Nothing is sent to all ranks, so the bytes are a sixteenth of float32's
for any number of ranks. One rank averages each shard, so replicas cannot differ.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.ternary import collectives
from dlplacer.data_parallel.ternary.bucket import BucketCodec, BucketLayout, as_float32, planes_shape
from dlplacer.data_parallel.ternary.state import NamedParameters, TernaryState


def sharded_units(model: nn.Module) -> Iterator[tuple[FSDPModule, list[tuple[nn.Parameter, int]]]]:
    """The units of a model that have parameters; only this function reads FSDP2's internals.

    A unit comes with its (parameter, elements of a rank's shard with padding) pairs, in the order in which the input of
    a reduce-scatter has them for each receiving rank.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                yield module, [(one.sharded_param, one.padded_sharded_param_size.numel()) for one in group.fsdp_params]


def ternary_reduce_scatter(model: nn.Module, state: TernaryState) -> None:
    """Make a model that is sharded by fully_shard send its gradients with two bits per element.

    `TernaryState` selects the parameters sent in full precision. If a parameter of a unit has no gradient in a step,
    the unit is reduced in full precision, because PyTorch does not report which gradient is missing.

    Parameters
    ----------
    model
        The root module, after all calls of fully_shard and before the first step.
    state
        The state; every model on every rank needs its own. ``transport`` has no effect.

    Raises
    ------
    InputError
        If the model is not sharded, the state shares scalers, or a pattern of ``exclude`` matches no parameter. Also
        during a step, if gradients are divided by a factor other than the number of ranks.
    """
    if state.share_scaler:
        raise InputError(
            "share_scaler has no use with fully_shard, where codes are decoded before they are added; leave it out"
        )
    units = list(sharded_units(model))
    if not units:
        raise InputError(
            f"no part of this {type(model).__name__} is sharded; call fully_shard first, or register ternary_hook with "
            "a DistributedDataParallel"
        )
    known = NamedParameters.of(model, model)
    whole = known.in_full_precision(state.exclude)
    for module, shards in units:
        names = known.named([parameter for parameter, _ in shards])
        assert names is not None
        coded = {
            name
            for name, (parameter, _) in zip(names, shards, strict=True)
            if parameter.is_floating_point() and state.codes(name, parameter.numel(), whole)
        }
        if coded:
            # FSDP2 needs these methods, but not its base class, which has no public name.
            sizes = [(name, numel) for name, (_, numel) in zip(names, shards, strict=True)]
            module.set_custom_reduce_scatter(UnitReduceScatter(state, sizes, coded))  # type: ignore[arg-type]


class UnitReduceScatter:
    """The reduce-scatter of one unit for ``FSDPModule.set_custom_reduce_scatter``."""

    def __init__(self, state: TernaryState, shards: Sequence[tuple[str, int]], coded: set[str]) -> None:
        self._state = state
        self._shards = shards
        self._coded = coded
        self._codecs: list[BucketCodec] = []
        self.step = state.steps
        state.units.append(self)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A buffer for the tensor to reduce, like that of PyTorch's own reduce-scatter."""
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
                "ternary gradients average over all ranks, but set_gradient_divide_factor sets another factor; "
                "leave it out, or scale the loss"
            )
        ranks, step, counters = group.size(), self.step, self._state.counters
        self.step += 1
        self._state.steps = max(self._state.steps, self.step)
        counters.full_bytes += (ranks - 1) * output_tensor.nbytes
        if input_tensor.numel() != ranks * sum(numel for _, numel in self._shards):
            collectives.reduce_scatter(output_tensor, input_tensor, op=op, group=group)
            counters.sent((ranks - 1) * output_tensor.nbytes)
            return
        self._exchange(output_tensor, input_tensor.view(ranks, -1), group, step)
        if op == dist.ReduceOp.SUM:
            output_tensor.mul_(ranks)

    def _exchange(self, output: torch.Tensor, rows: torch.Tensor, group: dist.ProcessGroup, step: int) -> None:
        codecs = self._codecs_of(rows, group)
        own, ranks = codecs[group.rank()], len(rows)
        shape, tensors = planes_shape(own.layout.blocks), len(own.layout.coded)
        words = int(np.prod(shape))
        sent = own.buffer("sent", (ranks, words + tensors), torch.int32, rows.device)
        received = own.buffer("received", (ranks, words + tensors), torch.int32, rows.device)
        for codec, row, message in zip(codecs, rows, sent, strict=True):
            exact = as_float32(row)
            limits, scalers = codec.measured(exact)
            codec.encode(exact, step, limits, scalers, message[:words].view(shape))
            message[words:] = scalers.view(torch.int32)
        dist.all_to_all_single(received.view(-1), sent.view(-1), group=group)
        own.counters.sent((ranks - 1) * sent[0].nbytes)
        self._reduce_whole(output, rows, own, group)
        planes, factors = received[:, :words].contiguous(), received[:, words:].contiguous().view(torch.float32)
        own.decode(planes.view(ranks, *shape), 1, factors, output)

    def _reduce_whole(
        self, output: torch.Tensor, rows: torch.Tensor, own: BucketCodec, group: dist.ProcessGroup
    ) -> None:
        spans = own.layout.whole
        if not spans:
            return
        whole = torch.cat([rows[:, span.place] for span in spans], dim=1) / len(rows)
        mean = torch.empty_like(whole[0])
        collectives.reduce_scatter(mean, whole.view(-1), op=dist.ReduceOp.SUM, group=group)
        own.counters.sent((len(rows) - 1) * mean.nbytes)
        for span, part in zip(spans, torch.split(mean, [span.numel for span in spans]), strict=True):
            output[span.place] = part

    def _codecs_of(self, rows: torch.Tensor, group: dist.ProcessGroup) -> list[BucketCodec]:
        """One codec for each receiving rank; their different names give different random numbers."""
        if len(self._codecs) != len(rows) or self._codecs[0].group is not group:
            self._codecs = []
            for rank in range(len(rows)):
                shards = [(f"{name}[{rank}]", numel) for name, numel in self._shards]
                layout = BucketLayout.of(
                    shards, lambda name, numel: numel > 0 and name.rpartition("[")[0] in self._coded
                )
                self._codecs.append(self._state.codec(layout, group, "reduce-scatter", rows.device))
            self._state.adopt(self._codecs, group)
        return self._codecs
