"""How the variants of a placed module are made: captured like the plan, ordered by it, with tensors where it says."""

from collections.abc import Mapping

import torch

from dlplacer.core.plan import Plan
from dlplacer.frontend.torch.capture import Captured, capture_job
from dlplacer.frontend.torch.job import Job, flat_inputs
from dlplacer.frontend.torch.tracing.passes import EVERY_STEP
from dlplacer.runtime.devices.base import RuntimeDevice
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.placed.guards import require_data, require_whole
from dlplacer.runtime.placed.match import order_at_other_shapes, order_of_inference
from dlplacer.runtime.placed.variant import Layouts, Variant, layouts_of
from dlplacer.runtime.program.lower import Order


class VariantMaker:
    """Captures steps of a job at other inputs, in another mode or after an edit, and places them by its plan.

    Parameters
    ----------
    segments
        As in `dlplacer.apply`.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        devices: Mapping[str, RuntimeDevice],
        updater: Updater,
        segments: str,
    ) -> None:
        self.plan = plan
        self.devices = devices
        self.updater = updater
        self.segments = segments
        self._starts = {entry.op: entry.start_s for entry in plan.ops}
        self._mode = job.mode

    def capture(self, job: Job, tensors: Mapping[str, torch.Tensor]) -> Captured:
        """A job's graph with the plan's rewrites; in the other mode with those that are for every step.

        Parameters
        ----------
        tensors
            Parameters and buffers of its module by name.

        Raises
        ------
        MismatchError
            If one is a piece of a tensor.
        """
        # A module that was sharded counts as edited, and what is captured anew must not be a piece of it.
        for name, tensor in tensors.items():
            require_whole(name, tensor)
        described = self.plan.graph.capture or {}
        rewrites = [name for name in described["rewrites"] if self.is_planned_mode(job) or name in EVERY_STEP]
        return capture_job(job, rewrites, bool(described.get("colocate_backward")))

    def is_planned_mode(self, job: Job) -> bool:
        """Whether a job is in the mode that the plan was made for."""
        return job.mode == self._mode

    def variant(self, job: Job, captured: Captured) -> Variant:
        """The variant of a captured job, in an order that follows the plan's."""
        ordered = order_at_other_shapes if self.is_planned_mode(job) else order_of_inference
        return self.variant_in(ordered(self.plan, captured.graph), captured, layouts_of(flat_inputs(job)))

    def variant_in(self, order: Order, captured: Captured, layouts: Layouts) -> Variant:
        """The variant of a captured step in an order."""
        return Variant(
            captured, order, self.devices, self.updater, layouts, segments=self.segments, starts=self._starts
        )

    def move_tensors(self, variant: Variant, tensors: Mapping[str, torch.Tensor]) -> None:
        """Move parameters and buffers to where a variant has them.

        Raises
        ------
        InputError
            If one has no data.
        """
        for code in variant.captured.executable.of_role("parameter", "buffer"):
            tensor = tensors[code.name]
            require_data(code.name, tensor)
            # Through .data, so that optimizers which hold the Parameter keep holding the same object.
            tensor.data = tensor.data.to(self.devices[variant.home[code.op]].torch_device)
