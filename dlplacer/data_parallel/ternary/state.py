"""What ternary gradients keep from step to step, for one model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypedDict

import torch
import torch.distributed as dist

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.ternary.bucket_codec import BucketCodec
from dlplacer.data_parallel.ternary.checkpoint import FORMAT, TernaryCheckpoint, checked_checkpoint
from dlplacer.data_parallel.ternary.counters import Counters, ring_bytes
from dlplacer.data_parallel.ternary.kernels import TernaryKernels, kernels_for
from dlplacer.data_parallel.ternary.layout import BucketLayout, bucket_layout
from dlplacer.data_parallel.ternary.ordered_thread import OrderedThread
from dlplacer.data_parallel.ternary.parameter_names import (
    NamedParameters,
    agreed_group,
    named_parameters,
    wrapper_of,
)
from dlplacer.data_parallel.ternary.settings import AUTO, GATHER, WHOLE, TernarySettings, exclusions
from dlplacer.data_parallel.ternary.transport_choice import TransportRates, fastest_transport, measured_rates

_ALWAYS_GATHERING = 2
"""With so many ranks sums take more bytes and more messages, whatever the rates are."""


class ShardedExchange(Protocol):
    """A unit of fully_shard, which counts its own steps."""

    step: int


class TernaryStats(TypedDict):
    """See `TernaryState.stats`."""

    steps: int
    world_size: int
    kernels: str
    transports: dict[str, int]
    rates: dict[str, float] | None
    sent_bytes: float
    full_bytes: float
    compression: float | None
    zeros: float | None
    scalers: dict[str, float]
    full_precision: list[str]
    encode_s_per_byte: float | None
    decode_s_per_byte: float | None


class TernaryState:
    """Ternary gradients of one model: what `ternary_hook` is registered with.

    Every parameter has a scaler of its own (so weights and biases have apart), its gradient is clipped at ``clip``
    standard deviations, and each element becomes −1, 0 or 1 times the scaler with the clipped element as its mean. As
    DistributedDataParallel starts all replicas alike and every rank decodes the same bits in the same order, the
    replicas stay equal to the bit, and no weights are ever sent (the paper's parameter localization).

    Parameters
    ----------
    process_group
        None for that of the DistributedDataParallel.
    clip
        c of eq. 21; elements beyond c standard deviations are cut. Left out where that would destroy a tensor: where
        all elements are equal, and where the mean exceeds the deviation.
    share_scaler
        Whether all ranks use the largest scaler of all (eq. 4). It takes a collective more, and its codes vary more
        where ranks differ; the transport ``sums`` always does it.
    min_numel
        Smaller parameters travel in full precision, as the last layer always does (section 3.2), and as parameters
        do that are not floating-point.
    exclude
        Names of more parameters to send in full precision, or patterns of names such as ``"embed.*"``.
    transport
        ``all-gather``: every rank gets the codes of every rank; one collective. ``sums``: every rank adds the codes of
        a part, and the sums go to all; three collectives, fewer bytes from three ranks on. ``auto``: for each bucket
        the one that is faster by the link's and the codec's rates, measured at the first step.
    seed
        Of the random numbers, which depend on it, the step, the parameter's name and the rank, and on nothing else.

    Raises
    ------
    InputError
        If one of these is out of range.

    Examples
    --------
    >>> state = TernaryState(exclude=["embed.*"])
    >>> state.stats()["steps"]
    0
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        clip: float = 2.5,
        share_scaler: bool = False,
        min_numel: int = 4096,
        exclude: Sequence[str] = (),
        transport: str = AUTO,
        seed: int = 0,
    ) -> None:
        self.settings = TernarySettings(clip, share_scaler, min_numel, exclusions(exclude), transport, seed)
        self.steps = 0
        self.counters = Counters()
        self._given_group = process_group
        self._group: dist.ProcessGroup | None = None
        self._parameters: NamedParameters | None = None
        self._full_precision: frozenset[str] = frozenset()
        self._buckets: dict[int, BucketCodec] = {}
        self.thread: OrderedThread | None = None
        self.units: list[ShardedExchange] = []
        self._rates: TransportRates | None = None
        self._loaded_scalers: dict[str, float] = {}
        if not torch.cuda.is_available():
            kernels_for("cpu")  # Compiled, or read from the cache, before the first step and not in it.

    def begin(
        self,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> tuple[BucketCodec, int]:
        """The codec of a bucket, and the step that its gradient belongs to; the last bucket ends the step."""
        flat, index, step = bucket.buffer(), bucket.index(), self.steps
        if flat.is_sparse:
            raise InputError(
                f"ternary_hook: bucket {index} holds a sparse gradient; build the embedding with sparse=False"
            )
        names = self._names(bucket.parameters())
        codec = self._buckets.get(index)
        # DistributedDataParallel builds its buckets anew after the first step.
        if codec is None or codec.layout.names != names:
            codec = self._buckets[index] = self._codec(names, bucket.gradients(), flat)
        if bucket.is_last():
            self.steps += 1
            for stale in [other for other in self._buckets if other > index]:
                del self._buckets[stale]
        self.counters.full_bytes += ring_bytes(codec.ranks, codec.layout.full_bytes)
        return codec, step

    def adopt(self, codecs: Sequence[BucketCodec], group: dist.ProcessGroup) -> None:
        """Let `stats` tell of the codecs of a unit of fully_shard."""
        self._group = group
        self._buckets.update(enumerate(codecs, start=len(self._buckets)))

    def stats(self) -> TernaryStats:
        """What has been sent and how fast, as plain data that goes into a JSON file.

        Returns
        -------
        dict
            ``steps``; ``world_size`` (0 before the first step); ``kernels``, the name of what encodes; ``transports``,
            name → buckets, or messages of fully_shard (``all-reduce`` where nothing is coded); ``rates``, from which
            they were chosen, None if they were not. ``sent_bytes``: what this rank has sent, ``full_bytes``: what an
            all-reduce of the same gradients would have sent; ``compression``: their ratio. ``zeros``: share of codes
            that were 0 in the last step. ``scalers``: parameter → last scaler of this rank; ``full_precision``:
            parameters without one. ``encode_s_per_byte``, ``decode_s_per_byte``: seconds of the codec per byte of a
            float32 gradient, measured on this rank since the start; None on a GPU and before the first step.
        """
        counters, codecs = self.counters, list(self._buckets.values())
        transports: dict[str, int] = {}
        for codec in codecs:
            transports[codec.transport] = transports.get(codec.transport, 0) + 1
        coded = sum(codec.layout.coded_numel for codec in codecs)
        return {
            "steps": self.steps,
            "world_size": self._group.size() if self._group else 0,
            "kernels": codecs[0].kernels.name if codecs else "",
            "transports": transports,
            "rates": self._rates.as_json() if self._rates else None,
            "sent_bytes": counters.sent_bytes,
            "full_bytes": counters.full_bytes,
            "compression": counters.full_bytes / counters.sent_bytes if counters.sent_bytes else None,
            "zeros": 1 - sum(codec.nonzero() for codec in codecs) / coded if coded else None,
            "scalers": self._scalers(),
            "full_precision": sorted(span.name for codec in codecs for span in codec.layout.whole),
            "encode_s_per_byte": counters.encode_s / counters.encoded_bytes if counters.encoded_bytes else None,
            "decode_s_per_byte": counters.decode_s / counters.decoded_bytes if counters.decoded_bytes else None,
        }

    def state_dict(self) -> TernaryCheckpoint:
        """What a checkpoint needs for the run to go on as if it had not ended, with any number of ranks; plain data."""
        return {
            "format": FORMAT,
            "seed": self.settings.seed,
            "steps": self.steps,
            "sent_bytes": self.counters.sent_bytes,
            "full_bytes": self.counters.full_bytes,
            "scalers": self._scalers(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; the seed becomes the checkpoint's.

        Raises
        ------
        InputError
            If this is not what `state_dict` gives.
        """
        loaded = checked_checkpoint(state_dict)
        self.settings = replace(self.settings, seed=loaded["seed"])
        for codec in self._buckets.values():
            codec.settings = self.settings
        self.steps = loaded["steps"]
        for unit in self.units:
            unit.step = self.steps
        self.counters.sent_bytes, self.counters.full_bytes = loaded["sent_bytes"], loaded["full_bytes"]
        self._loaded_scalers = loaded["scalers"]

    def _scalers(self) -> dict[str, float]:
        """Last scalers by name: of this process, else of the checkpoint."""
        found = dict(self._loaded_scalers)
        for codec in list(self._buckets.values()):
            found.update(codec.scalers_by_name())
        return found

    def _names(self, parameters: Sequence[torch.Tensor]) -> tuple[str, ...]:
        names = self._parameters.of(parameters) if self._parameters else None
        if names is None:
            wrapper = wrapper_of(parameters[0])
            if self._parameters and self._parameters.owner() not in (None, wrapper):
                raise InputError("this TernaryState already serves another model; make one state for each model")
            self._parameters = named_parameters(wrapper, wrapper.module)
            self._full_precision = self._parameters.last_layer | self._parameters.matching(self.settings.exclude)
            self._group = agreed_group(self._given_group, wrapper)
            self._buckets.clear()
            self.thread = None
            names = self._parameters.of(parameters)
        assert names is not None
        return names

    def _codec(self, names: Sequence[str], gradients: Sequence[torch.Tensor], flat: torch.Tensor) -> BucketCodec:
        def is_coded(name: str, numel: int) -> bool:
            return flat.is_floating_point() and numel >= self.settings.min_numel and name not in self._full_precision

        sizes = [(name, gradient.numel()) for name, gradient in zip(names, gradients, strict=True)]
        layout = bucket_layout(sizes, flat.element_size(), is_coded)
        assert self._group is not None
        kernels = kernels_for(flat.device.type)
        transport = self._transport(layout, self._group, kernels, flat.device)
        codec = BucketCodec(layout, self.settings, self._group, kernels, self.counters, transport)
        if codec.takes_several_collectives and flat.device.type == "cpu":
            self.thread = self.thread or OrderedThread(self._group)
            codec.group = self.thread.group
        return codec

    def _transport(
        self, layout: BucketLayout, group: dist.ProcessGroup, kernels: TernaryKernels, device: torch.device
    ) -> str:
        if not layout.coded:
            return WHOLE
        if self.settings.transport != AUTO:
            return self.settings.transport
        if group.size() <= _ALWAYS_GATHERING:
            return GATHER
        if self._rates is None:
            self._rates = measured_rates(group, kernels, device)
        return fastest_transport(layout, group.size(), self._rates)
