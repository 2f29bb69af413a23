"""Bytes that this process has sent over TCP, counted by the kernel: the same measure for every method of training."""

import os
import socket
import stat
import struct

_BYTES_SENT, _END = 200, 216
"""Where Linux has tcpi_bytes_sent and, behind it, tcpi_bytes_retrans in its struct tcp_info, since 4.19."""


def sent_bytes() -> int | None:
    """The bytes that all open TCP sockets of this process have sent, without what was sent again.

    None where the system does not count them: they are Linux's.
    """
    option = getattr(socket, "TCP_INFO", None)
    if option is None or not os.path.isdir("/proc/self/fd"):
        return None
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    said = copy.getsockopt(socket.IPPROTO_TCP, option, 256)
                    if len(said) < _END:
                        return None
                    sent, again = struct.unpack_from("<QQ", said, _BYTES_SENT)
                    total += sent - again
        except OSError:  # Closed in the meantime, or not a socket of TCP.
            continue
    return total
