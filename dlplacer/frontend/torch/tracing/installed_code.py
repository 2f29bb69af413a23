"""What is code of an installed package or of Python itself: what it keeps, as registries and caches, is theirs."""

import functools
import sys
import sysconfig
from pathlib import PurePath

_INSTALLED = ("site-packages", "dist-packages")


def is_installed_file(file: str) -> bool:
    """True if a file of code is of an installed package or of Python."""
    path = PurePath(file)
    return path.is_relative_to(sysconfig.get_path("stdlib")) or any(name in path.parts for name in _INSTALLED)


@functools.cache
def is_installed(module: str) -> bool:
    """True if a module that is imported under this name is; one without a file, as `builtins`, is not."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and is_installed_file(file)
