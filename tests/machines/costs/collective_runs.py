"""The collectives run with real data, message by message, as textbooks tell them: the oracle of the closed forms.

Each device holds one number per block; `Run` delivers a step's messages, adds or copies, and counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

Transfer = tuple[int, int, tuple[int, ...], bool]
"""Sender, receiver, blocks, whether the receiver adds them to its own (else it replaces its own)."""


@dataclass
class Run:
    """Vectors of `blocks` blocks on `devices` devices, and what was sent in which step.

    Attributes
    ----------
    log
        Per step: (sender, receiver, share of the vector).
    """

    devices: int
    blocks: int
    held: list[list[int]] = field(default_factory=list)
    log: list[list[tuple[int, int, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # a different number per device and block, so that a wrong block or a missing part shows
        self.held = [[(device + 1) * 1000**block for block in range(self.blocks)] for device in range(self.devices)]

    def step(self, transfers: Iterable[Transfer]) -> None:
        """All messages of a step at once: what is sent is what was held before the step."""
        before = [list(vector) for vector in self.held]
        entries = []
        for sender, receiver, blocks, adds in transfers:
            for block in blocks:
                own = self.held[receiver][block] if adds else 0
                self.held[receiver][block] = own + before[sender][block]
            entries.append((sender, receiver, len(blocks) / self.blocks))
        self.log.append(entries)

    def totals(self) -> list[int]:
        """The vector that an all-reduce must leave on every device."""
        return [sum(range(1, self.devices + 1)) * 1000**block for block in range(self.blocks)]


def ring_scatter(run: Run) -> None:
    """Reduce-scatter: afterwards device d holds the total of block d + 1."""
    n = run.devices
    for step in range(n - 1):
        run.step([(d, (d + 1) % n, ((d - step) % n,), True) for d in range(n)])


def ring_gather(run: Run) -> None:
    """All-gather of what `ring_scatter` left."""
    n = run.devices
    for step in range(n - 1):
        run.step([(d, (d + 1) % n, ((d + 1 - step) % n,), False) for d in range(n)])


def ring(devices: int) -> Run:
    run = Run(devices, devices)
    ring_scatter(run)
    ring_gather(run)
    return run


def ring_scattered(devices: int) -> Run:
    run = Run(devices, devices)
    ring_scatter(run)
    return run


def ring_gathered(devices: int) -> Run:
    """Device d starts with block d + 1 alone, as a reduce-scatter leaves it."""
    run = Run(devices, devices)
    run.held = [[1000**block if block == (d + 1) % devices else 0 for block in range(devices)] for d in range(devices)]
    ring_gather(run)
    return run


def pairwise(devices: int) -> Run:
    """Device d holds a block for everybody and ends with everybody's block for it: the block's place is the sender."""
    run = Run(devices, devices)
    run.held = [[0] * devices for _ in range(devices)]
    for d in range(devices):
        run.held[d][d] = 1000**d
    for shift in range(1, devices):
        # What is sent is another block of the sender than those it has received; only its size and ends matter here.
        run.step([(d, (d + shift) % devices, (d,), False) for d in range(devices)])
    return run


def require_done(run: Run, collective: str) -> None:
    """An AssertionError unless all devices hold what the collective must leave on them."""
    gathered = [1000**block for block in range(run.blocks)]
    for device, held in enumerate(run.held):
        if collective == "all-reduce":
            assert held == run.totals()
        elif collective == "reduce-scatter":
            block = (device + 1) % run.devices
            assert held[block] == run.totals()[block]
        else:
            assert held == gathered


def tree(devices: int) -> Run:
    run = Run(devices, 1)
    width = 1
    while width < devices:
        run.step([(d, d - width, (0,), True) for d in range(width, devices, 2 * width)])
        width *= 2
    while width > 1:
        width //= 2
        run.step([(d - width, d, (0,), False) for d in range(width, devices, 2 * width)])
    return run


def hierarchical(groups: int, size: int) -> Run:
    """Ring reduce-scatter inside groups, ring all-reduce of each part across groups, ring all-gather inside."""
    blocks = size * groups
    run = Run(groups * size, blocks)

    def chunk(part: int) -> tuple[int, ...]:
        return tuple(range(part % size * groups, (part % size + 1) * groups))

    def place(group: int, member: int) -> int:
        return group * size + member % size

    everyone = [(g, m) for g in range(groups) for m in range(size)]
    for step in range(size - 1):
        run.step([(place(g, m), place(g, m + 1), chunk(m - step), True) for g, m in everyone])
    for offset, adds in ((0, True), (1, False)):
        for step in range(groups - 1):
            run.step(
                [
                    (place(g, m), place((g + 1) % groups, m), (chunk(m + 1)[(g + offset - step) % groups],), adds)
                    for g, m in everyone
                ]
            )
    for step in range(size - 1):
        run.step([(place(g, m), place(g, m + 1), chunk(m + 1 - step), False) for g, m in everyone])
    return run
