"""Where machine code is kept from one process to the next; asked without loading the compiler."""

import hashlib
import os
from functools import cache
from pathlib import Path


@cache
def code_folder() -> Path | None:
    """Where this version of the code is kept in machine code; None if it cannot be.

    A folder for each version: numba asks whether a function's own file has changed, not whether the columns that it
    imports have, and stumbles over a class that is there no more.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlplacer" / digest
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None


def is_kept(function: str) -> bool:
    """Whether machine code of a function of `dlplacer.solvers.local_search` is kept for this version of the code."""
    folder = code_folder()
    return folder is not None and any(folder.rglob(f"*.{function}-*.nbc"))
