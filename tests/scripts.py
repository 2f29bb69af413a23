"""Scripts as a user starts them, in forks of the tests' own process, which has imported torch already."""

import multiprocessing
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class Ended:
    """How a script ended and what it printed; the return code is negative for a signal."""

    returncode: int | None
    stdout: str
    stderr: str


class Started:
    """A script that runs: what ``python path arguments`` does, without the seconds that importing torch takes.

    Not for scripts that use more than one thread of torch: libgomp hangs in the child of a process that had some.

    Parameters
    ----------
    folder, environment
        Where it runs, and variables that it finds besides.
    """

    def __init__(self, path: Path, *arguments: object, folder: Path, environment: Mapping[str, str]) -> None:
        # Closed by `ended`.
        self._printed = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        words = [str(path), *map(str, arguments)]
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_script, args=(words, folder, dict(environment), *self._printed))
        self._process.start()

    def ended(self, limit_s: float) -> Ended:
        """How it ended; it is killed after the limit."""
        self._process.join(limit_s)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        texts = []
        for file in self._printed:
            with file:
                file.seek(0)
                texts.append(file.read().decode())
        return Ended(self._process.exitcode, *texts)


def run_script(path: Path, *arguments: object, folder: Path | None = None, limit_s: float = 240.0) -> Ended:
    """How a script of one process ended."""
    return Started(path, *arguments, folder=folder or Path.cwd(), environment={}).ended(limit_s)


def run_as_ranks(
    count: int, path: Path, *arguments: object, folder: Path | None = None, limit_s: float = 240.0
) -> list[Ended]:
    """How a script ended on every rank of a group, for which it finds the variables that torchrun sets."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
    group |= {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = [
        Started(
            path,
            *arguments,
            folder=folder or Path.cwd(),
            environment={**group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]
    return [rank.ended(limit_s) for rank in ranks]


def _script(words: list[str], folder: Path, environment: dict[str, str], out: IO[bytes], err: IO[bytes]) -> None:
    """Turn this process into one that was started with the script; multiprocessing ends it as Python ends."""
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    warnings.resetwarnings()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    main = types.ModuleType("__main__")
    main.__file__ = words[0]
    # By the second name multiprocessing finds in this process what processes that it starts call by it.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    exec(compile(Path(words[0]).read_text(encoding="utf-8"), words[0], "exec"), main.__dict__)
