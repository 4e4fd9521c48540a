"""Commands that end in time, whatever they leave behind: list argv, no shell, own process group.

A site's `sacct` or `squeue` may be a wrapper. Its child can outlive it and hold the pipe, in its group or in a session of
its own; so the read is bounded itself, and the group is killed while its leader, not yet waited for, keeps its number.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

_READ = 1 << 20
_PAUSE = 0.005  # s; a command whose output has ended ends at once


class Expired(Exception):
    """The time is over."""


def run(
    argv: Sequence[str], timeout: float, *, env: Mapping[str, str] | None = None, text: bytes | None = None
) -> tuple[int, bytes, bytes]:
    """Exit code, output and error output. Raises Expired, or OSError where it can't be started."""
    child = subprocess.Popen(
        list(argv), stdin=subprocess.DEVNULL if text is None else subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=None if env is None else dict(env), start_new_session=True,
    )  # fmt: skip
    try:
        out, err = child.communicate(text, timeout)
    except subprocess.TimeoutExpired:
        raise Expired from None
    finally:
        end(child)
    return child.returncode, out, err


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill what still runs of a command and its group, and close our ends. One that was waited for is left alone."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()


class Deadline:
    """A moment, and reading and waiting up to it."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def read(self, stream: IO[bytes]) -> bytes:
        """What a pipe has, empty at its end. Raises Expired."""
        left = self._at - time.monotonic()
        if left <= 0 or not select.select([stream], [], [], left)[0]:
            raise Expired
        return os.read(stream.fileno(), _READ)

    def wait(self, child: subprocess.Popen[bytes]) -> None:
        """Until a command has ended; it is not waited for yet, so that its group can still be named. Raises Expired."""
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > self._at:
                raise Expired
            time.sleep(_PAUSE)
