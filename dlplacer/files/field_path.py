"""How messages name a value in a file."""

from collections.abc import Sequence


def field_path(parts: Sequence[str | int]) -> str:
    """Path of a value in a file: ``nodes[3].time_s``."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "the file"
