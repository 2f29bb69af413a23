"""The folder in which machine code is kept from one process to the next; found without loading the compiler."""

import hashlib
import os
import platform
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from dlplacer.solvers.local_search.cache_folders import used_folder


@cache
def code_folder() -> Path | None:
    """The folder of this version's machine code for this processor; None if there can be none.

    A folder for each version: numba asks whether a function's own file has changed, not whether the columns that it
    imports have, and stumbles over a class that is there no more. And for each place where it is installed: numba
    looks no function up that was compiled from another path. Those of other versions that were used longest ago make
    room.
    """
    sources = [source.read_bytes() for source in sorted(Path(__file__).parent.glob("*.py"))]
    here = repr((str(Path(__file__).parent), version("numba"), sys.version, platform.machine(), _processor()))
    digest = hashlib.sha256(b"".join([*sources, here.encode()])).hexdigest()[:16]
    try:
        parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlplacer"
        folder = used_folder(parent, digest)
    except (OSError, RuntimeError):
        return None
    return folder if folder is not None and os.access(folder, os.W_OK) else None


def is_kept(*names: str) -> bool:
    """True if functions need not be compiled any more, so that a call takes a moment instead of seconds.

    Parameters
    ----------
    names
        Module of `dlplacer.solvers.local_search` and function, as in ``moves.anneal``.
    """
    folder = code_folder()
    # Numba writes the index of a function last, when it has been compiled.
    return folder is not None and all(any(folder.glob(f"*/{name}-*.nbi")) for name in names)


def _processor() -> list[str]:
    """The features of this processor, where the system tells them: machine code of one need not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return [platform.processor()]
    return sorted({line for line in lines if line.startswith(("model name", "flags", "CPU part", "Features"))})
