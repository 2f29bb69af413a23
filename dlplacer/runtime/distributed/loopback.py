"""Where the processes of a group listen: on this machine alone, unless the user names another host."""

import ipaddress
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

LOOPBACK = "127.0.0.1"
_BACKLOG = 128


def loopback_interface() -> str | None:
    """The name of the interface that only this machine reaches."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def is_loopback(host: str) -> bool:
    """Whether a host's name or address means this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_store(rank: int, count: int, timeout_s: float) -> Any:
    """The group's store on the loopback interface, held by rank 0; None if it is torch's to make.

    Torch's listens on every interface, and asks nobody who he is: anyone in reach could write to it. So it does where
    the environment names another host, or where torchrun holds the store.
    """
    host = os.environ["MASTER_ADDR"]
    if not is_loopback(host) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    store: Any = dist.TCPStore  # type: ignore[attr-defined]
    port, timeout = int(os.environ["MASTER_PORT"]), timedelta(seconds=timeout_s)
    if rank:
        return store(LOOPBACK, port, count, False, timeout)
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen(_BACKLOG)
        return store(LOOPBACK, port, count, True, timeout, wait_for_workers=False, master_listen_fd=listening.detach())
    finally:
        listening.close()
