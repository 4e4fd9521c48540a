"""Processes by identity (pid and start time), their trees, and polling: what it takes to end only what we started."""

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from .errors import SandboxError

T = TypeVar("T")

# Environment variable that every process of a sandbox carries; its value is the sandbox's directory.
MARK = "SLURM_SANDBOX_ROOT"
PR_SET_CHILD_SUBREAPER = 36


def poll(fn: Callable[[], T], timeout: float, what: str, pause: float = 0.02) -> T:
    """Call `fn` until it returns something true, and return that; `SandboxError` at the deadline."""
    deadline = time.monotonic() + timeout
    while True:
        value = fn()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise SandboxError(f"Waited {timeout:g} s in vain for {what} (last value: {value!r}).")
        time.sleep(pause)


def become_subreaper() -> None:
    """From now on orphaned descendants become this process's children, so its tree stays complete."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise SandboxError(f"prctl(PR_SET_CHILD_SUBREAPER) failed: {os.strerror(ctypes.get_errno())}.")


def reap() -> None:
    """Collect children that ended (adopted ones too)."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it is gone or a zombie."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def alive(pid: int, started: int) -> bool:
    """Whether this very process (not a later one with the same pid) is running."""
    return start_time(pid) == started


def pids() -> list[int]:
    """All process ids."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(roots: Iterable[int]) -> set[int]:
    """All processes below the given ones (themselves not included), zombies left out."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        fields = _stat(pid)
        if fields is not None and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        fresh = [pid for pid in children.get(todo.pop(), []) if pid not in found]
        found.update(fresh)
        todo += fresh
    return found


def ancestors(pid: int) -> set[int]:
    """The process itself, its parent, and so on up."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0
    return found


def marked(root: Path) -> set[int]:
    """Processes that carry the sandbox's mark in their environment."""
    mark = f"{MARK}={root}".encode()
    found = set()
    for pid in pids():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if mark in environ.split(b"\0") and start_time(pid) is not None:
            found.add(pid)
    return found


def kill_all(find: Callable[[], set[int]], timeout: float = 20) -> None:
    """SIGKILL what `find` returns, again and again (a dying parent may leave a new child), until it finds none."""

    def none_left() -> bool:
        reap()
        found = find()
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not found

    poll(none_left, timeout, "the sandbox's processes to end", pause=0.01)


def end(pid: int, started: int, timeout: float) -> bool:
    """SIGTERM to this very process and wait for its end; False when it still runs at the deadline."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if not alive(pid, started):
            return True
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        return bool(select.select([handle], [], [], timeout)[0])
    finally:
        os.close(handle)


def listening(port: int) -> bool:
    """Whether something listens on this TCP port (read from /proc: a probing connection would upset Slurm)."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False
