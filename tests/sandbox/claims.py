"""Claims on what sandboxes share (port ranges, test users), as abstract Unix sockets.

Such a socket is a name that one process holds: no file is left behind, and the kernel frees it when the holder dies.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import procs
from .errors import SandboxError

PREFIX = "slurm-sandbox/"
FIRST_PORT, LAST_PORT = 20_000, 32_000  # below the range from which Linux gives ports to clients
BLOCK = 100


def claim(name: str) -> socket.socket | None:
    """Hold the name; None when another process holds it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0{PREFIX}{name}")
    except OSError:
        sock.close()
        return None
    return sock


def held() -> set[str]:
    """The names that are held now."""
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    names = (line.split(maxsplit=7)[7] for line in lines if f" @{PREFIX}" in line)
    return {name.removeprefix(f"@{PREFIX}") for name in names}


@contextmanager
def lock(name: str, timeout: float = 60) -> Iterator[None]:
    """Hold the name for the time of the block; waits for another holder."""
    sock = procs.poll(lambda: claim(name), timeout, f"the lock {PREFIX}{name}")
    try:
        yield
    finally:
        if sock is not None:
            sock.close()


def ports(count: int) -> tuple[list[socket.socket], list[int]]:
    """Claim as many free port blocks as `count` ports need; returns the claims and the ports."""
    claims: list[socket.socket] = []
    found: list[int] = []
    for first in range(FIRST_PORT, LAST_PORT, BLOCK):
        block = range(first, first + BLOCK)
        sock = claim(f"ports/{first}")
        if sock is None:
            continue
        if not all(_free(port) for port in block):
            sock.close()
            continue
        claims.append(sock)
        found += block
        if len(found) >= count:
            return claims, found[:count]
    raise SandboxError(f"No {count} free TCP ports between {FIRST_PORT} and {LAST_PORT}: take another sandbox down.")


def _free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
