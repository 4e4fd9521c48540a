"""Stands guard over a dispatcher that watches: should it die without a word, what it had excluded is taken off.

A confined job waits for a pass that would never come, and submissions would go on to confine others as long as live.json
looks fresh. The guard is a child process that waits for the end of a pipe, which comes with the dispatcher's death
whatever ended it (a bug, the OOM killer, SIGKILL). Where a successor takes over in time, there is nothing to do.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
import traceback
from contextlib import contextmanager, suppress

from . import log
from .errors import BusyError, SlurmError, SnapshotError
from .light import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = (0.0, 1.0, 1.5, 2.5, 5.0)  # seconds before each look: a submission may still be about to confine its job
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DYING = 5.0  # seconds that the end of a process may take
LONGEST = 86400.0  # seconds that it goes on trying while Slurm doesn't answer


@contextmanager
def posted(lock_path: str, grace: float, relieve: Callable[[], None]) -> Iterator[None]:
    """Post a guard for the time of the block. Only an end of the block without an error, or BusyError, dismisses it.

    lock_path: the file that a working dispatcher holds locked; grace: seconds in which a successor may take over;
    relieve: takes everything off, called several times.
    """
    reader, writer = os.pipe()
    # none of these may reach the child before it ignores them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    dispatcher, guard = os.getpid(), os.fork()
    if guard == 0:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if guard == 0:
        os.close(writer)
        _stand(reader, dispatcher, lock_path, grace, relieve)
    os.close(reader)
    try:
        yield
    except BusyError:
        _dismiss(writer, guard)
        raise
    except BaseException:
        os.close(writer)
        raise
    _dismiss(writer, guard)


def _dismiss(writer: int, guard: int) -> None:
    with suppress(BrokenPipeError):
        os.write(writer, b".")
    os.close(writer)
    with suppress(ChildProcessError):
        os.waitpid(guard, 0)


def _stand(reader: int, dispatcher: int, lock_path: str, grace: float, relieve: Callable[[], None]) -> None:
    """The child: never returns."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # who reads the dispatcher's output must see its end
            os.dup2(null, standard)
        if not os.read(reader, 1):
            _wait_for_end(dispatcher)
            keep_clean(lock_path, grace, relieve)
    except BaseException:
        log.send(f"guard: {traceback.format_exc(limit=-3)!r}")
    finally:
        os._exit(0)


def _wait_for_end(dispatcher: int) -> None:
    """The kernel closes a dying process's files one by one: the pipe may be closed while the lock still looks held."""
    deadline = time.monotonic() + DYING
    while os.getppid() == dispatcher and time.monotonic() < deadline:
        time.sleep(0.01)


def keep_clean(lock_path: str, grace: float, relieve: Callable[[], None]) -> bool:
    """After the dispatcher's death: False where a successor has taken over."""
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline:
        if taken(lock_path):
            return False
        time.sleep(0.1)
    for pause in ROUNDS:
        time.sleep(pause)
        if not _once(lock_path, relieve):
            return False
    return True


def _once(lock_path: str, relieve: Callable[[], None]) -> bool:
    """Until Slurm takes it; False where a successor has taken over."""
    deadline, pause = time.monotonic() + LONGEST, 1.0
    while not taken(lock_path):
        try:
            relieve()
        except (SlurmError, SnapshotError, BusyError) as err:
            log.send(f"guard: {err}")
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(60.0, 2 * pause)
        else:
            return True
    return False


def taken(lock_path: str) -> bool:
    """A dispatcher works: it holds the lock."""
    try:
        descriptor = os.open(lock_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
