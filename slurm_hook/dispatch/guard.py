"""Stands guard over a dispatcher: should it die without a word, or hang, what it had excluded is taken off.

A confined job waits for a pass that would never come, and submissions would go on to confine others as long as live.json
looks fresh. The guard is a child process at the other end of a pipe. The pipe's end comes with the dispatcher's death,
whatever ended it (a bug, the OOM killer, SIGKILL); a sign of life comes through it at each step that the dispatcher takes.
One that is silent for long (stopped, or held by a file system that doesn't answer) is ended, and is then as dead as the
others. Where a successor takes over in time, there is nothing to do.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
import traceback
from contextlib import contextmanager, suppress

from ..common.errors import BusyError, SlurmError, SnapshotError
from ..common.record import TYPE_CHECKING, Record
from ..published import decision_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SILENCE = 300.0  # seconds: five times what one command may take, and no step of a dispatcher is longer than two of these
STEPS = 20  # parts of a silence: the guard's waits, and the least pause between two signs of life
ROUNDS = (0.0, 1.0, 1.5, 2.5, 5.0)  # seconds before each look: a submission may still be about to confine its job
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DYING = 5.0  # seconds that the end of a process may take
ANSWER = 20.0  # seconds in which a file system must answer
PAUSE = 1.0  # seconds before it tries again, at first
LONGEST = 86400.0  # seconds that it goes on trying while Slurm, or a file system, doesn't answer
ALIVE, DISMISSED = b"+", b"."  # what comes through the pipe


class Duty(Record):
    """What a guard does. lock_path: the file that a working dispatcher holds locked; grace: seconds in which a successor
    may take over.

    relieve: takes everything off, called several times; None where another pass comes anyway. look: touches the files that
    relieve needs. without_files: what of relieve can be done while look gets no answer.
    """

    lock_path: str
    grace: float
    relieve: Callable[[], None] | None
    look: Callable[[], object]
    without_files: Callable[[], object]


class Pulse:
    """Signs of life, to be given wherever the dispatcher gets on: cheap, and never waiting for the guard."""

    def __init__(self, pipe: int, silence: float) -> None:
        self.pipe, self.pause = pipe, silence / STEPS
        self.due = 0.0
        os.set_blocking(pipe, False)

    def beat(self) -> None:
        now = time.monotonic()
        if now >= self.due:
            self.due = now + self.pause
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self.pipe, ALIVE)


class _Dispatcher:
    """This process, as its guard knows it: no other that might get its number later."""

    def __init__(self) -> None:
        self.pid, self.descriptor = os.getpid(), -1
        with suppress(OSError, AttributeError):  # a kernel, or a Python built on one, that is older
            self.descriptor = os.pidfd_open(self.pid)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            if self.descriptor >= 0:
                signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
            elif os.getppid() == self.pid:  # our parent, as long as it lives
                os.kill(self.pid, signal.SIGKILL)

    def gone(self, seconds: float) -> bool:
        """The kernel closes a dying process's files one by one: the pipe may be closed while the lock still looks held."""
        deadline = time.monotonic() + seconds
        while os.getppid() == self.pid:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

    def forget(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


@contextmanager
def posted(duty: Duty, silence: float = SILENCE) -> Iterator[Pulse]:
    """Post a guard for the time of the block, which must give a sign of life more often than each `silence` seconds. Only
    an end of the block without an error, or BusyError, dismisses it."""
    reader, writer = os.pipe()
    dispatcher = _Dispatcher()
    # none of these may reach the child before it ignores them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    guard = os.fork()
    if guard == 0:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if guard == 0:
        os.close(writer)
        _stand(reader, dispatcher, duty, silence)
    os.close(reader)
    dispatcher.forget()
    try:
        yield Pulse(writer, silence)
    except BusyError:
        _dismiss(writer, guard)
        raise
    except BaseException:
        os.close(writer)
        raise
    _dismiss(writer, guard)


def _dismiss(writer: int, guard: int) -> None:
    os.set_blocking(writer, True)
    with suppress(BrokenPipeError):
        os.write(writer, DISMISSED)
    os.close(writer)
    with suppress(ChildProcessError):
        os.waitpid(guard, 0)


def _stand(reader: int, dispatcher: _Dispatcher, duty: Duty, silence: float) -> None:
    """The child: never returns."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # who reads the dispatcher's output must see its end
            os.dup2(null, standard)
        heard = _listen(reader, silence)
        if heard is None:
            decision_log.send(
                f"guard: no sign of life of the dispatcher (process {dispatcher.pid}) for {silence:g} s: it is ended"
            )
        if heard != DISMISSED and _see_off(dispatcher, duty, hangs=heard is None) and duty.relieve is not None:
            keep_clean(duty.lock_path, duty.grace, duty.relieve)
    except BaseException:
        decision_log.send(f"guard: {traceback.format_exc(limit=-3)!r}")
    finally:
        os._exit(0)


def _listen(reader: int, silence: float) -> bytes | None:
    """Until the pipe's end (b""), DISMISSED, or silence (None).

    Silence is counted in waits of our own: what stops us too (the machine was suspended, the whole group stopped) is none
    of the dispatcher's, and the first wait after it is a chance to be heard again.
    """
    waits = 0
    while waits < STEPS:
        if not select.select([reader], [], [], silence / STEPS)[0]:
            waits += 1
            continue
        part = os.read(reader, 4096)
        if not part or DISMISSED in part:
            return DISMISSED if part else part
        waits = 0
    return None


def _see_off(dispatcher: _Dispatcher, duty: Duty, *, hangs: bool) -> bool:
    """Until a dispatcher that hangs is ended, and the files answer that `relieve` needs; False where they never do.

    Confined jobs don't wait for either. What can be done without files comes before the end of the dispatcher, since
    systemd ends the guard together with it.
    """
    deadline, pause, held = time.monotonic() + (LONGEST if duty.relieve is not None else 0.0), PAUSE, False
    while True:
        answers = _answers(duty.look)
        if held or not answers:
            _do_without_files(duty)
        if hangs:
            dispatcher.kill()
        held = not dispatcher.gone(DYING) and hangs  # in the kernel, which lets go of it only when its call returns
        if answers and not held:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(600.0, 2 * pause)


def _answers(look: Callable[[], object]) -> bool:
    """Files are looked at by a child: a call to a file system that doesn't answer may never return."""
    child = os.fork()
    if child == 0:
        try:
            look()
        except (OSError, SnapshotError):
            pass  # an answer, too
        finally:
            os._exit(0)
    deadline = time.monotonic() + ANSWER
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            return False
        time.sleep(0.01)
    return True


def _do_without_files(duty: Duty) -> None:
    try:
        duty.without_files()
    except SlurmError as err:
        decision_log.send(f"guard: {err}")


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
    deadline, pause = time.monotonic() + LONGEST, PAUSE
    while not taken(lock_path):
        try:
            relieve()
        except (SlurmError, SnapshotError, BusyError) as err:
            decision_log.send(f"guard: {err}")
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
