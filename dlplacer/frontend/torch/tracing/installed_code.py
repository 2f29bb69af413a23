"""Tests for code of installed packages and of Python itself, whose registries and caches are no state of the user's."""

import functools
import sys
import sysconfig
from pathlib import PurePath

_INSTALLED = ("site-packages", "dist-packages")


def is_installed_file(file: str) -> bool:
    """True if a source file belongs to an installed package or to Python."""
    path = PurePath(file)
    return path.is_relative_to(sysconfig.get_path("stdlib")) or any(name in path.parts for name in _INSTALLED)


@functools.cache
def is_installed(module: str) -> bool:
    """True if the module imported under this name is installed; False for one without a file, as `builtins`."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and is_installed_file(file)
