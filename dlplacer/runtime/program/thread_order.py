"""Which events are recorded before a thread names them, however fast the threads of a program are."""

from dataclasses import dataclass, field


@dataclass
class HostOrder:
    """How far every thread knows the others to be: it learns that from what it receives.

    A stream that waits for an event that is recorded later does not wait at all, so that the order of the threads must
    not be left to chance.
    """

    _known: dict[str, dict[str, int]] = field(default_factory=dict)
    _sent: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    _recorded: dict[str, tuple[str, int]] = field(default_factory=dict)

    def go_on(self, device: str) -> None:
        """A thread turns to its next action."""
        known = self._known.setdefault(device, {})
        known[device] = known.get(device, 0) + 1

    def send(self, device: str, tensor: str, target: str) -> None:
        """A thread hands a tensor over."""
        self._sent[tensor, target] = dict(self._known[device])

    def receive(self, device: str, tensor: str) -> None:
        """A thread takes what was handed over."""
        known = self._known[device]
        for other, count in self._sent.pop((tensor, device)).items():
            known[other] = max(known.get(other, 0), count)

    def record(self, device: str, event: str) -> bool:
        """A thread records an event; False if it has been recorded before."""
        if event in self._recorded:
            return False
        self._recorded[event] = device, self._known[device][device]
        return True

    def has(self, device: str, event: str) -> bool:
        """Whether a thread can be sure that an event is recorded."""
        if event not in self._recorded:
            return False
        recorder, count = self._recorded[event]
        return self._known[device].get(recorder, 0) >= count
