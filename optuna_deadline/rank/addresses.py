"""Under which address other hosts reach this one, and by which interface."""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress

#: Names the address, where the one towards the database is not it.
VARIABLE = "OPTUNA_DEADLINE_ADDRESS"

_SIOCGIFADDR = 0x8915  # Linux's question for an interface's address


def own_address(towards: str | None) -> str | None:
    """This host's address for others, or None where none is known but its own loopback.

    Args:
        towards: The database's host: whoever reaches the same database is asked to reach this
            address too.
    """
    if given := os.environ.get(VARIABLE):
        return given
    for host in (towards, socket.gethostname()):
        with suppress(OSError):
            found = _source(host) if host is towards else socket.gethostbyname(str(host))
            if found is not None and not found.startswith("127."):
                return found
    return None


def _source(host: str | None) -> str | None:
    """The address that packets to a host have; none is sent."""
    if not host or host.startswith("/"):  # a socket in the file system
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The interface that has an address, where the system tells."""
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None
