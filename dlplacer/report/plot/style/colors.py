"""Colours: one set per question that a picture answers."""

from collections.abc import Iterable

import matplotlib
from matplotlib.colors import to_hex, to_rgb

PHASE = {"forward": "#4c78a8", "backward": "#f2a154", "optimizer": "#54a24b", None: "#9aa0a6"}
"""Phase of an op → colour."""

TRANSFER = "#7d7a92"
CRITICAL = "#c1121f"
CROSSING = "#c1121f"
IDLE = "#eef0f3"
GUIDE = "#8a8f98"
TEXT = "#22262b"

_DEVICES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d31", "#5d4a9c", "#a6ba3a")
_SPECTRUM = "turbo"


def device_colors(devices: Iterable[str]) -> dict[str, str]:
    """Device → colour; the first eight are apart for colour-blind eyes too."""
    names = list(devices)
    if len(names) <= len(_DEVICES):
        return dict(zip(names, _DEVICES, strict=False))
    return dict(zip(names, _spread(len(names)), strict=True))


def block_colors(blocks: Iterable[str]) -> dict[str, str]:
    """Block of the model → colour: from blue at its input to red at its output, alternating light and dark."""
    names = [name for name in blocks if name]
    shades = _spread(len(names))
    return {"": PHASE[None]} | dict(zip(names, shades, strict=True))


def ink_on(color: str) -> str:
    """Black or white, whichever is easier to read on the colour."""
    red, green, blue = to_rgb(color)
    return TEXT if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"


def _spread(count: int) -> list[str]:
    spectrum = matplotlib.colormaps[_SPECTRUM]
    shades = []
    for position in range(count):
        red, green, blue, _ = spectrum(0.06 + 0.88 * position / max(1, count - 1))
        factor = 0.72 if position % 2 else 1.0
        shades.append(to_hex((red * factor, green * factor, blue * factor)))
    return shades
