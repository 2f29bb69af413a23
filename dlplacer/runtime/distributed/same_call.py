"""Processes that take a step together must make the same call of the same step: found out before anything is sent."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from dlplacer.core.errors import InputError, RunError
from dlplacer.frontend.torch.job import Job
from dlplacer.runtime.distributed.group import HOST, RankGroup, require_equal

_COMPARISON = "the comparison of what is called"


class CommonStep(Protocol):
    """What a process is about to run, as far as all of them must have the same."""

    @property
    def number(self) -> int:
        """A digest of the step in 56 bits."""

    def described(self) -> Mapping[str, Any]:
        """The step in plain data, op by op: to name what differs."""

    def knows_formats(self, kind: str) -> bool:
        """Whether the next run of a kind sends its tensors without headers."""

    def forget_formats(self, kind: str) -> None:
        """Send headers in the next run of a kind."""


class SameCall:
    """Compares the calls of a module over the processes of its group.

    A call is compared in one exchange of 48 bytes: what crosses processes has no header but in the first step, and gloo
    ends a process that gets another number of bytes than it waits for.

    A mistake that one process finds in its call is an error on all, and the group can be used afterwards, as long as
    the processes have not agreed on the call. What fails later ends the run.

    Attributes
    ----------
    group
        The processes.
    kind
        Of the call that is made, or was made last.
    """

    def __init__(self, group: RankGroup) -> None:
        self.group = group
        self._module = group.next_module()
        self.kind = ""
        self._is_open = self._is_agreed = False

    @contextlib.contextmanager
    def made(self, kind: str) -> Iterator[None]:
        """A call of a kind (``step``, ``forward``, ``backward``, ``evaluation``), from its beginning to its end.

        Raises
        ------
        InputError
            If another thread is in a call of the group: processes could take one thread's call for the other's.
        """
        me = threading.get_ident()
        if self.group.callers.setdefault(None, me) != me:
            raise InputError(
                "another thread is in a call of a module on these ranks; call them from one thread: ranks could not "
                "tell whose call is whose"
            )
        self.kind, self._is_open, self._is_agreed = kind, True, False
        try:
            yield
        except InputError as error:
            if self._is_agreed:
                self.group.failure.fail(error)
            elif self._is_open:
                self._refuse(error)
            raise
        except RunError as error:
            raise self.group.failure.fail(error) from error
        except BaseException as error:
            self.group.failure.fail(error)
            raise
        finally:
            self.group.callers.pop(None, None)

    def agree(self, settings: Mapping[str, Any], step: CommonStep | None) -> bool:
        """Whether all processes have the step that is called, which then is the same on all.

        Parameters
        ----------
        settings
            What is called, as plain data.
        step
            None if this process has yet to capture it; all ask again when they have it.

        Raises
        ------
        InputError
            On all processes: naming two of them and what differs, or the mistake of one.
        """
        settings = {"call": self.kind, "module": self._module, **settings}
        if self.group.ranks.count == 1:
            self._is_agreed = step is not None
            return self._is_agreed
        fresh = step is None or not step.knows_formats(self.kind)
        found = self._exchanged(_number(settings), int(step is None), int(fresh), 0 if step is None else step.number)
        same_settings, is_missing, is_fresh, same_step = found
        if not same_settings or not (is_missing or same_step):
            self._is_open = False
            self._name_difference(settings, None if step is None or not same_settings else step)
        if is_missing or step is None:
            return False
        if is_fresh:
            step.forget_formats(self.kind)
        self._is_agreed = True
        return True

    def _exchanged(self, call: int, missing: int, fresh: int, step: int) -> tuple[bool, bool, bool, bool]:
        """Whether the calls are the same, one misses the step, one knows no formats, and the steps are the same."""
        ends = torch.tensor([call, -call, missing, fresh, step, -step])
        self.group.call(HOST, _COMPARISON, lambda: dist.all_reduce(ends, dist.ReduceOp.MAX))
        calls, negated, missing, fresh, steps, inverted = ends.tolist()
        return calls == -negated, bool(missing), bool(fresh), steps == -inverted

    def _name_difference(self, settings: Mapping[str, Any], step: CommonStep | None) -> None:
        """Raise InputError with the mistake of a process, or with what differs."""
        everyone = self.group.gathered({"settings": settings, "step": None if step is None else step.described()})
        for rank, theirs in enumerate(everyone):
            if theirs.get("mistake") is not None:
                raise InputError(f"rank {rank}: {theirs['mistake']}")
        require_equal([theirs["settings"] for theirs in everyone], self.group.rank)
        mine = everyone[self.group.rank]["step"]
        for rank, theirs in enumerate(everyone):
            for op in (*mine, *theirs["step"]):
                if mine.get(op) != theirs["step"].get(op):
                    raise InputError(
                        f"rank {self.group.rank} and rank {rank} differ in op {op!r} of the step; edit the module "
                        "alike on all ranks"
                    )

    def _refuse(self, error: InputError) -> None:
        """Have the others raise this mistake too, where they wait for this process's call."""
        if self.group.ranks.count == 1:
            return
        self._is_open = False
        # The mistake found here is what its user must read, whatever else has ended the run by now.
        with contextlib.suppress(RunError):
            same, *_ = self._exchanged(_number({"mistake": str(error)}), 1, 1, 0)
            if not same:
                self.group.gathered({"mistake": str(error)})


def called(job: Job, trained: frozenset[str]) -> dict[str, Any]:
    """A call in plain data.

    Parameters
    ----------
    trained
        Names of the tensors that require a gradient.
    """
    leaves, nesting = pytree.tree_flatten((job.args, dict(job.kwargs), job.targets))
    return {
        "mode": job.mode,
        "inputs": [described(leaf) for leaf in leaves],
        "nesting of the inputs": repr(nesting),
        "trained parameters": sorted(trained),
    }


def described(leaf: Any) -> str:
    """An input in a word or two: shape and dtype of a tensor, a number or a text itself."""
    return f"{list(leaf.shape)} {leaf.dtype}" if isinstance(leaf, torch.Tensor) else repr(leaf)


def _number(settings: Mapping[str, Any]) -> int:
    """A digest in 56 bits: its negative fits into 64 bits too."""
    return int.from_bytes(hashlib.sha256(repr(settings).encode()).digest()[:7], "big")
