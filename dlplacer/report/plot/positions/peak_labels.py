"""Where the figures of peaks stand in a picture of curves: clear of every curve, of each other, and inside."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

Steps = Sequence[tuple[float, float]]
"""A curve in steps: (from, level), in order."""

_ABOVE, _FARTHEST = 0.35, 12


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in the units of the axes."""

    left: float
    low: float
    right: float
    high: float

    def meets(self, other: "Box") -> bool:
        """True if the two share more than an edge."""
        across = self.left < other.right and other.left < self.right
        return across and self.low < other.high and other.low < self.high


def place_labels(
    peaks: Mapping[str, tuple[float, float]],
    curves: Mapping[str, Steps],
    sizes: Mapping[str, tuple[float, float]],
    picture: Box,
    levels: Sequence[float] = (),
) -> dict[str, Box]:
    """Name → the box of its label: the nearest to its peak that no curve, no level and no other label passes.

    Where there is none, as in a picture that is full of curves, the one that fewest pass.

    Parameters
    ----------
    peaks
        Name → the point that the label speaks of.
    curves
        What labels must not cover; the last level holds up to the right edge.
    sizes
        Name → width and height of the label.
    picture
        What labels stay within.
    levels
        Heights of lines from edge to edge, such as capacities.
    """
    placed: dict[str, Box] = {}
    for name in sorted(peaks, key=lambda name: -peaks[name][1]):
        boxes = list(_boxes(peaks[name], sizes[name], picture))
        covered = [_crossings(box, curves, placed, picture, levels) for box in boxes]
        placed[name] = boxes[covered.index(min(covered))]
    return placed


def _boxes(peak: tuple[float, float], size: tuple[float, float], picture: Box) -> Iterator[Box]:
    """Candidates, the nearest first: above and below the peak, right and left of it, further and further away."""
    (x, y), (width, height) = peak, size
    for away in range(_FARTHEST):
        far = (_ABOVE + away / 2) * height
        for low, left in product((y + far, y - far - height), (x, x - width, x - width / 2)):
            left = min(max(left, picture.left), picture.right - width)
            low = min(max(low, picture.low), picture.high - height)
            yield Box(left, low, left + width, low + height)


def _crossings(
    box: Box, curves: Mapping[str, Steps], placed: Mapping[str, Box], picture: Box, levels: Sequence[float]
) -> int:
    """How much the box would cover: labels count most, then lines and steps of curves one by one."""
    labels = sum(box.meets(other) for other in placed.values())
    lines = sum(box.low < level < box.high for level in levels)
    return 1000 * labels + lines + sum(_steps_inside(box, curve, picture.right) for curve in curves.values())


def _steps_inside(box: Box, curve: Steps, end: float) -> int:
    """How many steps and risers of a curve pass through the box."""
    first = max(0, bisect_right(curve, box.left, key=lambda step: step[0]) - 1)
    last = bisect_left(curve, box.right, key=lambda step: step[0])
    found = 0
    for (begin, level), (until, following) in pairwise((*curve[first : last + 1], (end, curve[-1][1]))):
        found += begin < box.right and box.left < until and box.low < level < box.high
        low, high = sorted((level, following))
        found += box.left < until < box.right and low < box.high and box.low < high
    return found
