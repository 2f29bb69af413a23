"""The page's colours are apart for every eye: distances in CIELAB, also as colour-blind eyes see them."""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

# Machado, Oliveira and Fernandes 2009, table 1, severity 1: what is left of linear RGB.
SEEN = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
APART = 17.0


def lab(color: str, eye: str) -> NDArray[np.float64]:
    """CIELAB (D65) of a colour as an eye sees it."""
    srgb = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(SEEN[eye] @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / np.array([0.95047, 1.0, 1.08883])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def palette(name: str) -> list[str]:
    text = (files("dlplacer.report.page") / "assets" / "script" / "palette.js").read_text(encoding="utf-8")
    found = re.search(rf"const {name} = \[?(.*?)\]?;", text)
    assert found is not None
    return re.findall(r"#[0-9a-f]{6}", found[1])


@pytest.mark.parametrize("eye", SEEN)
@pytest.mark.parametrize(("names", "count"), [(("DISTINCT", "OTHER"), 9), (("PHASE_COLORS",), 4)])
def test_colours_are_apart(names: tuple[str, ...], count: int, eye: str) -> None:
    colors = [color for name in names for color in palette(name)]
    assert len(colors) == count
    for one, other in combinations(colors, 2):
        assert np.linalg.norm(lab(one, eye) - lab(other, eye)) >= APART, (one, other)
