"""Torch's gradient mode, left as it was found."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def kept_grad_mode() -> Iterator[None]:
    """Leave the calling thread's gradient mode as it was, also when a Ctrl-C strikes while ``torch.no_grad`` ends.

    ``no_grad`` is written in Python: interrupted just before it ends, it leaves gradients off for all that follows.
    """
    before = torch.is_grad_enabled()
    try:
        yield
    except BaseException:
        torch.set_grad_enabled(before)
        raise
