"""Workers that train locally and synchronise periodically: one class for EASGD, local SGD and DiLoCo."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dlplacer.core.errors import InputError
from dlplacer.data_parallel.elastic.outer_rules import Centre, OuterRule
from dlplacer.data_parallel.elastic.packed_weights import PackedWeights
from dlplacer.data_parallel.elastic.stability import ElasticRecursion, require_stable
from dlplacer.data_parallel.elastic.worker_group import WorkerGroup

Overlap = bool | Literal["sync1", "sync2", "sync3"]


class OuterOptimizer:
    """Synchronises the workers' weights every `sync_every` steps of their own optimizers, while its context is open.

    Every rank trains with its own optimizer, whose steps a hook counts; gradients are not averaged. Every `sync_every`
    steps, one all-reduce of a packed vector sums the ranks' differences from the centre, for all weights and buffers.
    Every rank has a copy of the centre (masterless form of You, Buluç and Demmel 2017, section 5). Float buffers are
    averaged; integer buffers take the first rank's values. The inner optimizer's momentum stays local (eq. 5 and 6).

    When the context first opens, all ranks take the first rank's values, unless a state has been loaded.

    Parameters
    ----------
    model
        A module, which may be placed, compiled, or wrapped by DistributedDataParallel or fully_shard over groups other
        than `process_group`.
    inner
        A torch optimizer of the model's parameters.
    rule
        `easgd`, `local_sgd` or `diloco`.
    sync_every
        Steps from one synchronisation to the next. All ranks must take the same number of steps.
    overlap
        True (Sync EASGD 3 of You et al.): the all-reduce runs during the rule's `delay` steps, by default one for
        elastic averaging. False (Sync EASGD 2): the all-reduce starts only when its result is needed. ``"sync1"``: like
        False, with the centre in the host's memory. All three give the same numbers.
    process_group
        The ranks that synchronise; None means all, or only this process if torch.distributed is not in use.
    timeout_s
        Seconds without an answer after which a rank counts as lost.

    Raises
    ------
    InputError
        If the inner optimizer does not train this model, the rule diverges for every curvature, or ranks disagree on
        model or settings.
    RunError
        If a rank is lost.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: torch.optim.Optimizer,
        rule: OuterRule,
        sync_every: int = 1,
        overlap: Overlap = True,
        process_group: dist.ProcessGroup | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        if sync_every < 1 or rule.delay > sync_every:
            raise InputError(
                f"sync_every is {sync_every}; it must be at least 1, and at least the rule's delay of {rule.delay}"
            )
        if overlap not in (True, False, "sync1", "sync2", "sync3"):
            raise InputError(f"overlap is {overlap!r}; use True, False, 'sync1', 'sync2' or 'sync3'")
        self.model = model
        self.inner = inner
        self.rule = rule
        self.sync_every = sync_every
        self.steps = 0
        self.synchronisations = 0
        self._overlaps = overlap in (True, "sync3")
        self._ranks = WorkerGroup(process_group, timeout_s)
        if overlap == "sync1" and not self._ranks.sums_host_memory:
            raise InputError("overlap='sync1' sums in the host's memory, which nccl cannot; use 'sync2', or gloo")
        self._packed = PackedWeights(model, torch.device("cpu") if overlap == "sync1" else None)
        _require_trains(inner, model)
        self._stable_pull = 0.0
        self._pull()
        self._centre = Centre(rule, self._packed)
        self._total = self._packed.empty()
        # Without pull and delay, own differences are not needed, because workers take the centre's values.
        keeps_own = rule.pull is not None or rule.delay > 0
        self._own = self._packed.empty() if keeps_own else None
        self._counted: list[Tensor] = []
        self._waiting = False
        self._started = False
        self._steps_before = 0
        self._handle: RemovableHandle | None = None

    def __enter__(self) -> Self:
        self._steps_before = self.steps
        if self._handle is not None:
            raise InputError("this outer optimizer's context is already open; open it once")
        settings = f"{self.rule.name} every {self.sync_every}, delay {self.rule.delay}, pull {self._pull()}"
        self._ranks.require_equal("model", self._packed.layout)
        self._ranks.require_equal("rule", settings)
        if self._started:
            self._send_again()
        else:
            self._start()
        self._handle = self.inner.register_step_post_hook(self._after_step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = None
        if error is None:
            self._ranks.end_sum("the end of training")
            if self.steps == self._steps_before:
                warnings.warn(
                    "the inner optimizer took no step while the outer optimizer's context was open, so nothing was "
                    "synchronised; a placed module that was captured with an optimizer updates without one: capture "
                    "it without",
                    stacklevel=2,
                )
        else:
            # If one rank fails, the others may never answer.
            self._ranks.forget()

    def centre_state_dict(self) -> dict[str, Tensor]:
        """The centre's weights and float buffers by name, which are the result of elastic averaging."""
        self._require_started()
        return self._packed.named(self._centre.vector)

    @contextmanager
    def at_centre(self) -> Iterator[nn.Module]:
        """The model with the centre's weights and float buffers, for evaluation; its own values are then restored."""
        self._require_started()
        own = self._packed.pack(self._packed.empty(self._packed.float_count), with_integers=False)
        with torch.no_grad():
            self._packed.assign(self._centre.vector)
        try:
            yield self.model
        finally:
            with torch.no_grad():
                self._packed.assign(own)

    def stats(self) -> dict[str, int]:
        """Numbers of steps and synchronisations, and bytes of the summed vectors."""
        return {
            "steps": self.steps,
            "synchronisations": self.synchronisations,
            "summed_bytes": self.synchronisations * self._packed.bytes,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state with which this rank resumes bitwise, together with the states of model and inner optimizer."""
        state: dict[str, Any] = {"steps": self.steps, "synchronisations": self.synchronisations, "centre": None}
        if self._started:
            waiting = self._own.clone() if self._waiting and self._own is not None else None
            state.update(centre=self._centre.state(), differences=waiting)
            state["counted"] = [each.clone() for each in self._counted] if self._waiting else []
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state; model and inner optimizer must load their states of this rank before the next step.

        Raises
        ------
        InputError
            If the state is of another model.
        """
        self._ranks.end_sum("loading a state")
        self.steps, self.synchronisations = state["steps"], state["synchronisations"]
        self._started = state["centre"] is not None
        self._waiting = self._started and state["differences"] is not None and self._own is not None
        if self._started:
            self._centre.load(state["centre"])
        if self._waiting:
            assert self._own is not None
            self._own.copy_(state["differences"])
            self._counted = [each.clone() for each in state["counted"]]
        if self._handle is not None:
            self._send_again()

    def _pull(self) -> float | None:
        """The pull at the current learning rate, or None; raises InputError if it diverges for every curvature."""
        group = self.inner.param_groups[0]
        pull = self.rule.pull_at(float(group["lr"]))
        if pull is not None and pull > self._stable_pull:
            # Other optimizers are treated as SGD without momentum.
            sgd = group if isinstance(self.inner, torch.optim.SGD) else {}
            momentum, nesterov = float(sgd.get("momentum", 0)), bool(sgd.get("nesterov"))
            workers, delay = self._ranks.size, self.rule.delay
            require_stable(ElasticRecursion(pull, workers, momentum, self.sync_every, delay, nesterov))
            self._stable_pull = pull
        return pull

    def _require_started(self) -> None:
        if not self._started:
            raise InputError("this outer optimizer has no centre yet; enter its context first")

    @torch.no_grad()
    def _start(self) -> None:
        self._packed.pack(self._total, with_integers=True)
        for tensor in (self._total, *self._packed.frozen):
            self._ranks.copy_from_first(tensor)
        self._packed.assign(self._total)
        self._packed.set_integers(self._total)
        self._centre.vector.copy_(self._total[: self._packed.float_count])
        self._started = True
        self._take_differences_if_due()

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        self.steps += 1
        if self.rule.is_due(self.steps, self.sync_every):
            self._synchronise()
        self._take_differences_if_due()

    def _take_differences_if_due(self) -> None:
        if self.rule.delay and not self._waiting and self.rule.is_due(self.steps + self.rule.delay, self.sync_every):
            self._take_differences()

    def _take_differences(self) -> None:
        """Take this worker's differences from the centre, and start their sum."""
        self._packed.pack(self._total, with_integers=self._ranks.rank == 0)
        self._total[: self._packed.float_count] -= self._centre.vector
        if self._own is not None:
            self._own.copy_(self._total)
        if self.rule.delay:
            self._counted = [part.tensor.clone() for part in self._packed.integers]
            self._waiting = True
        if self._overlaps:
            self._ranks.begin_sum(self._total)

    def _send_again(self) -> None:
        """Start the sum of differences that were taken in another context or run."""
        if self._waiting and self._own is not None:
            self._total.copy_(self._own)
            if self._overlaps:
                self._ranks.begin_sum(self._total)

    def _synchronise(self) -> None:
        if not self.rule.delay:
            self._take_differences()
        if not self._overlaps:
            self._ranks.begin_sum(self._total)
        self._ranks.end_sum(f"synchronisation {self.synchronisations + 1}, after step {self.steps}")
        self._waiting = False
        self._centre.move(self._total, self._own, self._ranks.size, self._pull())
        self._packed.set_integers(self._total, self._counted if self.rule.delay else None)
        self.synchronisations += 1


def _require_trains(inner: torch.optim.Optimizer, model: nn.Module) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    held = [parameter for group in inner.param_groups for parameter in group["params"]]
    strange = [tuple(parameter.shape) for parameter in held if id(parameter) not in own]
    if strange:
        raise InputError(
            f"the inner optimizer trains {len(strange)} parameters that are not {type(model).__name__}'s, the first of "
            f"shape {strange[0]}; make it from the parameters of the model given here"
        )
