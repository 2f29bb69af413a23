"""The compiled steps of a placed module: which one a call needs, and making those that are missing."""

import struct
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured, capture_job
from dlplacer.frontend.torch.job import Job, flat_inputs, is_flat
from dlplacer.frontend.torch.tracing.passes import EVERY_STEP
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.placed.guards import require_data, require_whole
from dlplacer.runtime.placed.order import order_like
from dlplacer.runtime.placed.variant import Layouts, Variant, layouts_of
from dlplacer.runtime.program.lower import Order

MOST_VARIANTS = 16
"""An input pipeline that pads to a few lengths, in both modes, fits; a variant of 2,000 ops takes about 10 MB."""

Key = tuple[int, Hashable]
"""The edition of the module, and the properties of a call that decide its graph."""

_making = threading.RLock()


def step_key(job: Job, numbers: bool = True) -> Hashable:
    """Mode, shapes, other values and nesting of the inputs, with or without the values of Python numbers."""
    targets = job.targets if job.mode == "train" else ()
    if not job.kwargs and is_flat(job.args) and is_flat(targets):
        return job.mode, tuple([tuple(leaf.shape) for leaf in (*job.args, *targets)]), len(targets)
    leaves, nesting = pytree.tree_flatten((job.args, dict(job.kwargs), targets))
    return job.mode, tuple(_described(leaf, numbers) for leaf in leaves), repr(nesting)


def _described(leaf: Any, numbers: bool) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape)
    if type(leaf) in (int, float) and not numbers:
        return type(leaf).__name__
    # By bits: NaN is not equal to itself, 0.0 is equal to -0.0, and 1 to 1.0 and to True.
    return type(leaf).__name__, struct.pack("d", leaf) if isinstance(leaf, float) else leaf


class Variants:
    """Finds the variant for the inputs of a call, or makes it; the one used longest ago makes room.

    Parameters
    ----------
    capture
        Captures a step at the inputs of a job.
    build
        Makes a variant of a capture.
    """

    def __init__(self, capture: Callable[[Job], Captured], build: Callable[[Job, Captured], Variant]) -> None:
        self._capture, self._build = capture, build
        self._lock = threading.Lock()
        self._found: OrderedDict[Key, Variant] = OrderedDict()
        self._alike: dict[Key, bool] = {}

    def __len__(self) -> int:
        return len(self._found)

    def values(self) -> list[Variant]:
        """The variants, the one used longest ago first."""
        with self._lock:
            return list(self._found.values())

    def add(self, edition: int, job: Job, variant: Variant) -> None:
        """Use a variant for the inputs of a job, in an edition of its module."""
        self._note_numbers(edition, job)
        with self._lock:
            self._found[edition, step_key(job)] = variant
            while len(self._found) > MOST_VARIANTS:
                self._found.popitem(last=False)

    def known(self, edition: int, job: Job) -> Variant | None:
        """The variant for the inputs of a job, in an edition of its module, if there is one."""
        key = edition, step_key(job)
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
            return self._found.get(key)

    def find(self, edition: int, job: Job) -> Variant:
        """As `known`; made by the first thread that asks, while the others wait for it."""
        found = self.known(edition, job)
        if found is not None:
            return found
        # One at a time in the whole process: Dynamo traces with global state.
        with _making:
            found = self.known(edition, job)
            if found is None:
                found = self._build(job, self._capture(job))
                self.add(edition, job, found)
            return found

    def keep(self, wanted: Callable[[int], bool]) -> None:
        """Drop the variants of other editions."""
        with self._lock:
            for key in [key for key in self._found if not wanted(key[0])]:
                del self._found[key]

    def _note_numbers(self, edition: int, job: Job) -> None:
        """Tell the user, once for each kind of call, that a Python number has cost another capture."""
        like = step_key(job, numbers=False)
        if like == step_key(job):
            return
        if self._alike.get((edition, like)) is False:
            print(
                "dlplacer: the step is captured once for every Python number among its inputs; pass one that changes "
                "often as a tensor",
                file=sys.stderr,
            )
        self._alike[edition, like] = (edition, like) in self._alike


class VariantMaker:
    """Captures steps of a job at other inputs, in another mode or after an edit, and places them by its plan.

    `segments`: as in `dlplacer.apply`.
    """

    def __init__(
        self, job: Job, plan: Plan, devices: Mapping[str, RuntimeDevice], updater: Updater, segments: str
    ) -> None:
        self.plan = plan
        self.devices = devices
        self.updater = updater
        self.segments = segments
        self._starts = {entry.op: entry.start_s for entry in plan.ops}
        self._mode = job.mode

    def capture(self, job: Job, tensors: Mapping[str, torch.Tensor]) -> Captured:
        """A job's graph with the plan's rewrites; in the other mode with those that are for every step.

        `tensors`: parameters and buffers of its module by name; MismatchError if one is a piece of a tensor.
        """
        # A module that was sharded counts as edited, and what is captured anew must not be a piece of it.
        for name, tensor in tensors.items():
            require_whole(name, tensor)
        described = self.plan.graph.capture or {}
        rewrites = [name for name in described["rewrites"] if self.is_planned_mode(job) or name in EVERY_STEP]
        return capture_job(job, rewrites, bool(described.get("colocate_backward")))

    def is_planned_mode(self, job: Job) -> bool:
        """True if a job is in the mode that the plan was made for."""
        return job.mode == self._mode

    def variant(self, job: Job, captured: Captured) -> Variant:
        """The variant of a captured job, in an order that follows the plan's."""
        return self.variant_in(order_like(self.plan, captured.graph), captured, layouts_of(flat_inputs(job)))

    def variant_in(self, order: Order, captured: Captured, layouts: Layouts) -> Variant:
        """The variant of a captured step in an order."""
        return Variant(
            captured, order, self.devices, self.updater, layouts, segments=self.segments, starts=self._starts
        )

    def move_tensors(self, variant: Variant, tensors: Mapping[str, torch.Tensor]) -> None:
        """Move parameters and buffers to where a variant has them; InputError if one has no data."""
        for code in variant.captured.executable.of_role("parameter", "buffer"):
            tensor = tensors[code.name]
            require_data(code.name, tensor)
            # Through .data, so that optimizers which hold the Parameter keep holding the same object.
            tensor.data = tensor.data.to(self.devices[variant.home[code.op]].torch_device)
