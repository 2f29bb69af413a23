"""The settings of ternary gradients for one model, and their state between steps."""

import gc
import math
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.ternary.bucket import BucketCodec, BucketLayout, Counters, kernels_for, ring_bytes
from dlplacer.data_parallel.ternary.collectives import OrderedThread
from dlplacer.machines.costs.gradient_codecs import sum_bits

AUTO, GATHER, SUMS = "auto", "all-gather", "sums"
_TRANSPORTS = (AUTO, GATHER, SUMS)
_WHOLE = "all-reduce"
_FORMAT = "dlplacer.ternary/1"


@dataclass(frozen=True)
class NamedParameters:
    """The names of one model's parameters by ``id`` (the first name of a shared parameter), and the last layer's names.

    The last layer is the last module, in the order of registration, that owns a parameter of at least two dimensions. A
    weight that the last layer shares, for example with an embedding, counts as its own.
    """

    owner: weakref.ReferenceType[nn.Module]
    names: Mapping[int, str]
    last_layer: frozenset[str]

    @classmethod
    def of(cls, owner: nn.Module, module: nn.Module) -> "NamedParameters":
        """The names of the parameters of ``module``; ``owner`` lives as long as the parameters."""
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        last: frozenset[str] = frozenset()
        for part in module.modules():
            own = list(part.parameters(recurse=False))
            if any(parameter.dim() > 1 for parameter in own):
                last = frozenset(names[id(parameter)] for parameter in own)
        return cls(weakref.ref(owner), names, last)

    def named(self, parameters: Sequence[torch.Tensor]) -> tuple[str, ...] | None:
        """The names of these parameters; None if one is not of this model, or the model no longer exists."""
        if self.owner() is None:
            return None
        names = tuple(self.names.get(id(parameter), "") for parameter in parameters)
        return names if all(names) else None

    def in_full_precision(self, patterns: Sequence[str]) -> frozenset[str]:
        """The last layer, and the names that match one of the shell-style patterns."""
        found = set(self.last_layer)
        for pattern in patterns:
            matched = {name for name in self.names.values() if fnmatchcase(name, pattern)}
            if not matched:
                near = get_close_matches(pattern, self.names.values()) or list(self.names.values())[-3:]
                raise InputError(
                    f"exclude: no parameter is named {pattern!r}; names are like {', '.join(near)}, and 'fc.*' matches "
                    "all parameters of a module"
                )
            found |= matched
        return frozenset(found)


class TernaryState:
    """The state of `ternary_hook`: ternary gradients of one model.

    Every parameter, weight or bias, has its own scaler. Its gradient is clipped at ``clip`` standard deviations, and
    each element becomes −1, 0 or 1 times the scaler, with the clipped element as its mean. DistributedDataParallel
    starts all replicas alike, and every rank decodes the same bits in the same order. So replicas stay bitwise equal,
    and no weights are ever sent (parameter localization, Wen et al. 2017).

    Parameters
    ----------
    clip
        c of eq. 21; elements are clipped at c standard deviations. A tensor is not clipped if that would destroy it: if
        all elements are equal, or the mean exceeds the deviation.
    share_scaler
        True if all ranks use the largest scaler of all (eq. 4). This takes another collective, and the codes have more
        variance if ranks differ; the transport ``sums`` always shares scalers.
    min_numel
        Parameters with fewer elements are sent in full precision. The last layer (section 3.2) and parameters that are
        not floating-point never become codes.
    exclude
        Names of other parameters to send in full precision, or patterns of names such as ``"embed.*"``.
    transport
        ``all-gather``: every rank gets the codes of every rank, in one collective. ``sums``: every rank adds the codes
        of a part and sends the sums to all, in three collectives, with fewer bytes from three ranks on. ``auto``:
        ``sums`` if it takes at most half the bytes, which is from six ranks on.
    seed
        Seed of the random numbers, which depend only on the seed, the step, the parameter's name and the rank.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> state = TernaryState(exclude=["embed.*"])
    >>> state.stats()["steps"]
    0
    """

    def __init__(
        self,
        clip: float = 2.5,
        share_scaler: bool = False,
        min_numel: int = 4096,
        exclude: Sequence[str] = (),
        transport: str = AUTO,
        seed: int = 0,
    ) -> None:
        if not (math.isfinite(clip) and clip > 0):
            raise InputError(
                f"clip is {clip}; it must be a number of standard deviations above 0, such as 2.5 (a large one, "
                "such as 1e9, clips nothing)"
            )
        if min_numel < 1:
            raise InputError(f"min_numel is {min_numel}; it must be at least 1 element")
        if transport not in _TRANSPORTS:
            raise InputError(f"transport is {transport!r}; choose one of {', '.join(map(repr, _TRANSPORTS))}")
        self.clip, self.share_scaler, self.min_numel, self.transport = clip, share_scaler, min_numel, transport
        self.exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        self.seed = seed
        self.steps = 0
        self.counters = Counters()
        self.thread: OrderedThread | None = None
        self.units: list[Any] = []  # Units of fully_shard, each of which counts its own steps.
        self._group: dist.ProcessGroup | None = None
        self._parameters: NamedParameters | None = None
        self._full_precision: frozenset[str] = frozenset()
        self._buckets: dict[int, BucketCodec] = {}
        if not torch.cuda.is_available():
            kernels_for("cpu")  # Compiles the kernels, or reads them from the cache, before the first step.

    @classmethod
    def paper(cls, **settings: Any) -> "TernaryState":
        """A state as in Wen et al. 2017: shared scalers (eq. 4), and codes for biases and small weights too."""
        return cls(**{"share_scaler": True, "min_numel": 1, **settings})

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
        names, group = self._names(bucket.parameters())
        codec = self._buckets.get(index)
        # DistributedDataParallel rebuilds its buckets after the first step.
        if codec is None or codec.layout.names != names:
            sizes = [(name, part.numel()) for name, part in zip(names, bucket.gradients(), strict=True)]
            layout = BucketLayout.of(
                sizes,
                lambda name, numel: flat.is_floating_point() and self.codes(name, numel, self._full_precision),
            )
            chosen = cheaper_transport(group.size()) if self.transport == AUTO else self.transport
            codec = self.codec(layout, group, chosen if layout.coded else _WHOLE, flat.device)
            self._buckets[index] = codec
        if bucket.is_last():
            self.steps += 1
            for stale in [other for other in self._buckets if other > index]:
                del self._buckets[stale]
        self.counters.full_bytes += ring_bytes(codec.ranks, flat.nbytes)
        return codec, step

    def codes(self, name: str, numel: int, full_precision: frozenset[str]) -> bool:
        """True if a parameter's gradient becomes codes."""
        return numel >= self.min_numel and name not in full_precision

    def codec(
        self, layout: BucketLayout, group: dist.ProcessGroup, transport: str, device: torch.device
    ) -> BucketCodec:
        """A codec with the settings of this state; its bytes and seconds count in `stats`."""
        return BucketCodec(layout, self.clip, self.seed, group, self.counters, transport, kernels_for(device.type))

    def takes_one_round(self, codec: BucketCodec) -> bool:
        """True if no collective of a bucket needs the result of another collective."""
        return codec.transport != SUMS and not self.share_scaler

    def adopt(self, codecs: Sequence[BucketCodec], group: dist.ProcessGroup) -> None:
        """Let `stats` report the codecs of a unit of fully_shard."""
        self._group = group
        self._buckets.update(enumerate(codecs, start=len(self._buckets)))

    def stats(self) -> dict[str, Any]:
        """Bytes sent and speed of the codec, as plain data for a JSON file.

        Returns
        -------
        dict
            ``steps``; ``world_size`` (0 before the first step); ``kernels``, the name of the kernels; ``transports``,
            name → number of buckets, or of messages of fully_shard (``all-reduce``: without codes).
            ``sent_bytes``, ``full_bytes``: bytes that this rank has sent, and would have sent with an all-reduce of the
            same gradients; ``compression``: full ÷ sent. ``zeros``: share of codes that were 0 in the last step.
            ``scalers``: parameter → last scaler of this rank; ``full_precision``: parameters without a scaler.
            ``encode_s_per_byte``, ``decode_s_per_byte``: seconds of the codec per byte of a float32 gradient, measured
            on this rank since the start; None on a GPU and before the first step.
        """
        counters, codecs = self.counters, list(self._buckets.values())
        coded = sum(codec.layout.coded_numel for codec in codecs)
        return {
            "steps": self.steps,
            "world_size": self._group.size() if self._group else 0,
            "kernels": codecs[0].kernels.NAME if codecs else "",
            "transports": dict(Counter(codec.transport for codec in codecs)),
            "sent_bytes": counters.sent_bytes,
            "full_bytes": counters.full_bytes,
            "compression": counters.full_bytes / counters.sent_bytes if counters.sent_bytes else None,
            "zeros": 1 - sum(codec.nonzero() for codec in codecs) / coded if coded else None,
            "scalers": {
                span.name: value
                for codec in codecs
                if codec.scalers is not None
                for span, value in zip(codec.layout.coded, codec.scalers.tolist(), strict=True)
            },
            "full_precision": sorted(span.name for codec in codecs for span in codec.layout.whole),
            "encode_s_per_byte": counters.coding_s_per_byte("encode"),
            "decode_s_per_byte": counters.coding_s_per_byte("decode"),
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain data with which a run, with any number of ranks, resumes as if it had not ended."""
        return {"format": _FORMAT, "seed": self.seed, "steps": self.steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a checkpoint, with its seed but without statistics.

        Raises
        ------
        InputError
            If this is not a dict from `state_dict`.
        """
        if state_dict.keys() != self.state_dict().keys() or state_dict["format"] != _FORMAT:
            raise InputError(f"this is not a state of TernaryState, of format {_FORMAT!r}; load one from state_dict()")
        self.seed, self.steps = state_dict["seed"], state_dict["steps"]
        for codec in self._buckets.values():
            codec.seed = self.seed
        for unit in self.units:
            unit.step = self.steps

    def _names(self, parameters: Sequence[torch.Tensor]) -> tuple[tuple[str, ...], dist.ProcessGroup]:
        """The names of a bucket's parameters, and the group over which their gradients are averaged."""
        names = self._parameters.named(parameters) if self._parameters else None
        if names is None or self._group is None:
            wrapper = _wrapper_of(parameters[0])
            if self._parameters and self._parameters.owner() not in (None, wrapper):
                raise InputError("this TernaryState already serves another model; make one state for each model")
            self._parameters, self._group = NamedParameters.of(wrapper, wrapper.module), wrapper.process_group
            self._full_precision = self._parameters.in_full_precision(self.exclude)
            self._buckets.clear()
            self.thread = None
            names = self._parameters.named(parameters)
        assert names is not None
        assert self._group is not None
        return names, self._group


def cheaper_transport(ranks: int) -> str:
    """``sums`` if it takes at most half the bytes, because it needs two more collectives; else ``all-gather``."""
    # Bits per element that a rank receives.
    gathered, summed = 2 * (ranks - 1), (2 + sum_bits(ranks)) * (ranks - 1) / ranks
    return SUMS if 2 * summed <= gathered else GATHER


def _wrapper_of(parameter: torch.Tensor) -> DistributedDataParallel:
    """The DistributedDataParallel that trains this parameter, found among the live objects.

    A communication hook gets tensors without names, and its registration does not give the module.
    """
    for candidate in gc.get_objects():
        # By type, because reading the class of some objects loads packages.
        if issubclass(type(candidate), DistributedDataParallel) and any(
            own is parameter for own in candidate.module.parameters()
        ):
            return candidate  # type: ignore[no-any-return]
    raise InputError(
        "ternary_hook: no DistributedDataParallel holds the parameters of this bucket; register the hook with "
        "ddp.register_comm_hook(state, ternary_hook)"
    )
