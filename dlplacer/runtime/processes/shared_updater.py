"""The optimizer inside a step, with its state where all processes of the step see it."""

from collections.abc import Mapping
from typing import Any

import torch

from dlplacer.frontend.torch.job import Optimizer
from dlplacer.runtime.executor.optimizer_update import Updater
from dlplacer.runtime.processes.shared_tensors import SharedTensors


class SharedUpdater(Updater):
    """An `Updater` whose parameters may be updated by any process, one step here and the next one there."""

    def __init__(self, optimizer: Optimizer | None, tensors: SharedTensors) -> None:
        super().__init__(optimizer)
        self._tensors = tensors
        self._slots: dict[str, tuple[torch.Tensor, ...]] = {}
        self._counts: dict[str, memoryview] = {}

    def share(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Make room for the state of these parameters; before processes are forked that update them."""
        new = {name: weight for name, weight in weights.items() if name not in self._slots}
        if self._rule is None or not new:
            return
        made = {
            name: tuple(torch.zeros_like(weight.detach()) for _ in range(self._rule.states))
            for name, weight in new.items()
        }
        self._tensors.share(state for states in made.values() for state in states)
        words = self._tensors.words(len(new))
        for number, (name, states) in enumerate(made.items()):
            self._slots[name] = states
            self._counts[name] = words[number : number + 1]
            self._keep(name, self.state.get(name, ()), self._steps.get(name, 1 if name in self.state else 0))

    def state_dict(self) -> dict[str, Any]:
        """State and step count of every parameter, as tensors and numbers."""
        self.refresh()
        return super().state_dict()

    def refresh(self) -> None:
        """See what other processes have updated."""
        for name, count in self._counts.items():
            self._look(name, count[0])

    def __call__(self, name: str, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        """Update one parameter in place from its gradient."""
        if name not in self._slots:
            super().__call__(name, weight, gradient)
            return
        done = self._counts[name][0]
        self._look(name, done)
        super().__call__(name, weight, gradient)
        self._keep(name, self.state.get(name, ()), done + 1)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        super().load_state_dict(saved)
        for name in self._slots:
            found = self.state.get(name, ())
            self._keep(name, found, self._steps.get(name, 1 if found else 0))

    def _look(self, name: str, done: int) -> None:
        """Have `Updater` find the shared state, or none before the first update."""
        if done and self._slots[name]:
            self.state[name] = self._slots[name]
        else:
            self.state.pop(name, None)
        if self._rule is not None and self._rule.kind == "adam":
            if done:
                self._steps[name] = done
            else:
                self._steps.pop(name, None)

    def _keep(self, name: str, found: tuple[torch.Tensor, ...], done: int) -> None:
        """Move what `Updater` has made into the shared state."""
        for slot, made in zip(self._slots[name], found, strict=bool(found)):
            if made is not slot:
                slot.copy_(made)
        self._counts[name][0] = done
        self._look(name, done)
