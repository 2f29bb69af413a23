"""Files to write: rejected before any work if they cannot be written, and reported once they are."""

import argparse
import os
import sys
from pathlib import Path

from dlplacer.cli.output.verbosity import QUIET, verbosity


def output_file(text: str) -> Path:
    """The path that an option such as ``-o`` names, for `argparse`: what a command would find after minutes of work.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is a folder, or in a folder that is missing or read-only.
    """
    path = Path(text)
    folder = path.resolve().parent
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; name a file to write")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {path}: it is a folder; name a file in it")
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(
            f"cannot write {path}: there is no folder {folder}; make it, or write elsewhere"
        )
    if not os.access(folder if path.is_file() or not path.exists() else path, os.W_OK):
        raise argparse.ArgumentTypeError(f"cannot write {path}: no permission in {folder}; write elsewhere")
    return path


def tell_written(*paths: Path | None) -> None:
    """Report on stderr what was written, unless it shall be quiet; None for what was not requested."""
    for path in paths:
        if path is not None and verbosity() > QUIET:
            print(f"wrote {path}", file=sys.stderr)
