"""Makes a call as an ordinary user and takes down all that its caller sees of it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.call import Call
from tests.fuzz.probe import Probe, look
from tests.sandbox.client import Client
from tests.wrapped import REAL

PATIENCE = 20  # seconds after which a call counts as hung
PIPE = 4096
OURS = {"sbatch", "python3", "scontrol"}  # of what a call starts; the rest are its own pipes' other ends


@dataclass
class Outcome:
    """status: exit code, or minus the signal, or None where it hung; session: what its processes and jobs are known by."""

    status: int | None
    out: bytes
    err: bytes
    session: int
    seconds: float
    files: tuple[str, ...]
    probe: Probe | None = None
    alive: tuple[str, ...] = ()  # which of our processes were there when the caller's had ended by the signal
    jobs: tuple[dict[str, str], ...] = ()
    stored: tuple[tuple[bytes, bytes], ...] = ()
    dumped: tuple[tuple[bytes, ...], ...] = ()  # what its jobs saw, if they ran
    living: tuple[str, ...] = ()
    ids: tuple[int, ...] = field(default=())


class Caller:
    """Makes calls in a folder of its own, one after the other. Threads have one each."""

    def __init__(self, sandbox: Client, folder: Path, user: str = "alice") -> None:
        self.folder = folder
        folder.mkdir(mode=0o755, exist_ok=True)
        who = pwd.getpwnam(user)
        self._ids = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": [who.pw_gid]}
        self._owner = who.pw_uid
        _, named = sandbox._as_user(user)
        self.env = {**sandbox.env, **named}

    def run(self, call: Call, sbatch: str, *, killed: bool = True) -> Outcome:
        """The call with this sbatch. killed: whether the call's signal, if it has one, is sent."""
        here = self.folder / "w"
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir()
        os.chown(here, self._owner, -1)
        begun = time.monotonic()
        process, full = self._start(call, sbatch, here)
        alive: tuple[str, ...] = ()
        if call.kill and killed:
            alive = _kill(process, *call.kill)
        probe = None
        if full is not None:
            probe = look(process.pid)
            os.read(full, PIPE)
        out, err, hung = _read(process, full)
        files = tuple(sorted(p.name for p in here.iterdir())) if here.exists() else ("gone",)
        status = None if hung else process.returncode
        return Outcome(status, out, err, process.pid, time.monotonic() - begun, files, probe, alive)

    def _start(self, call: Call, sbatch: str, here: Path) -> tuple[subprocess.Popen[bytes], int | None]:
        errors: Any = subprocess.STDOUT if call.merged else subprocess.PIPE
        full = None
        if call.probe:
            full, errors = os.pipe()
            fcntl.fcntl(errors, fcntl.F_SETPIPE_SZ, PIPE)
            os.write(errors, b"." * PIPE)
        process = subprocess.Popen(
            ["bash", "-c", f"S={sbatch}; {call.program()}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=self.env, cwd=here, start_new_session=True,
            **self._ids,
        )  # fmt: skip
        if call.probe:
            os.close(errors)
        return process, full


def _kill(process: subprocess.Popen[bytes], number: signal.Signals, after: float, group: bool) -> tuple[str, ...]:
    """Send the signal; gives what of the call submits or holds the caller's pipes, though the caller knows it as dead."""
    assert process.stdout
    pipes = {os.readlink(f"/proc/self/fd/{file.fileno()}") for file in (process.stdout, process.stderr) if file}
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(process.pid, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        if process.wait(1) == -number:
            return tuple(name for pid, name in sessions().get(process.pid, []) if name in OURS and _goes_on(pid, pipes))
    return ()


def _goes_on(pid: int, pipes: set[str]) -> bool:
    place = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        words = (place / "cmdline").read_bytes().split(b"\0")
        submits = os.readlink(place / "exe") == REAL and b"--test-only" not in words
        return submits or any(os.readlink(entry) in pipes for entry in (place / "fd").iterdir())
    return False


def _read(process: subprocess.Popen[bytes], full: int | None) -> tuple[bytes, bytes, bool]:
    """What the call says, until nobody can say more; whether it hung."""
    said: list[bytes] = []
    reader = None
    if full is not None:
        reader = threading.Thread(target=lambda: said.append(_all(full)))
        reader.start()
    try:
        out, err = process.communicate(timeout=PATIENCE)
        hung = False
    except subprocess.TimeoutExpired:
        end(process.pid)
        out, err = process.communicate()
        hung = True
    if reader:
        reader.join()
        err = said[0]
    return out or b"", err or b"", hung


def _all(number: int) -> bytes:
    with open(number, "rb") as file:
        return file.read()


def sessions() -> dict[int, list[tuple[int, str]]]:
    """Session → its processes that aren't dead, with their names."""
    found: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path(f"/proc/{entry}/stat").read_text(errors="replace")
        except OSError:
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if rest[0] not in "ZX":
            found.setdefault(int(rest[3]), []).append((int(entry), name))
    return found


def end(session: int) -> None:
    """Kill what is left of a session."""
    for pid, _ in sessions().get(session, []):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
