"""Types of the device table by any spelling of their names, and the nearest ones to a name that is none."""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from dlplacer.machines.costs.device_table import CORE, DEVICE_TABLE

MEMORY = re.compile(r"(\d{1,3}) ?(?:gb|gib)")
"""The memory in a product name, in lower case."""
_MARKETING = frozenset(
    ("nvidia", "tesla", "quadro", "geforce", "amd", "radeon", "instinct", "apple", "blackwell", "generation")
    + ("workstation", "edition", "graphics", "gpu")
)
_FORMS = re.compile(r"sxm\d?|pcie|hbm\d?e?|gddr\d?x?|nvl|oam|\d{1,3}gi?b")
_ALIASES = {"mi250xmi250": "MI250X"}


def _normal(name: str) -> str:
    return "".join(re.findall(r"[a-z0-9]+", name.lower()))


_BY_NAME: Mapping[str, str] = (
    _ALIASES
    | {_normal(kind).removeprefix("rtx"): kind for kind in DEVICE_TABLE if kind.startswith("RTX")}
    | {"rtx" + _normal(kind): kind for kind in ("A4000", "A5000", "A6000")}
    | {_normal(kind): kind for kind in DEVICE_TABLE}
)
"""Spelling without case, gaps and hyphens → type."""


def known_type(name: str) -> str | None:
    """The type of the device table that a type or product name means exactly; None if it means none.

    Case, gaps, hyphens and the vendor's words do not count; form factor and memory do if the table tells them apart:
    ``Tesla V100-SXM2-16GB`` → ``V100``, ``A100-PCIE-40GB`` → ``A100-40GB``, ``rtx 3060`` → ``RTX3060``.
    """
    words = [word for word in re.findall(r"[a-z0-9.+]+", name.lower()) if word not in _MARKETING]
    without_form = [word for word in words if not _FORMS.fullmatch(word) or MEMORY.fullmatch(word)]
    without_memory = [word for word in words if not MEMORY.fullmatch(word)]
    bare = [word for word in without_form if not MEMORY.fullmatch(word)]
    spellings = ("".join(some) for some in (words, without_form, without_memory, bare))
    return next((_BY_NAME[spelling] for spelling in spellings if spelling in _BY_NAME), None)


def unknown_type(name: str) -> str:
    """A text on a name that no type has: the nearest types, or all if none is near."""
    alike = str.maketrans("oil", "011")
    spellings = {spelling.translate(alike): kind for spelling, kind in _BY_NAME.items() if kind != CORE}
    words = [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _MARKETING]
    wanted = "".join(words).translate(alike)
    close = get_close_matches(wanted, spellings, n=12, cutoff=0.6)
    # Two characters that changed places are likelier than one that is another.
    close.sort(key=lambda spelling: sorted(spelling) != sorted(wanted))
    found = list(dict.fromkeys(spellings[spelling] for spelling in close))[:3]
    told = f"did you mean {' or '.join(found)}?" if found else f"it has {', '.join(DEVICE_TABLE)}."
    return f"device type {name.strip()!r} is not in the device table; {told}"
