"""`Sandbox`: a throwaway Slurm for tests, from the owner's side. The daemons belong to a keeper process (keeper.py)."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from . import keeper, packages, procs, users
from .client import Client
from .errors import SandboxError

UP_TIMEOUT = 120
DOWN_TIMEOUT = 30
REPO = Path(__file__).resolve().parents[2]
# -I: neither the caller's PYTHON* variables nor the current folder matter to the keeper.
KEEPER = "import sys; sys.path.insert(0, sys.argv[1]); from tests.sandbox import keeper; keeper.main()"


class Sandbox(Client):
    """A real Slurm in a temporary directory.

    `extra_conf` lines end slurm.conf (and win), `files` (name → text) are written beside it before slurmctld starts.
    """

    def __init__(
        self,
        nodes: int = 16,
        cluster: str = "sandbox",
        extra_conf: list[str] | tuple[str, ...] | str = (),
        files: dict[str, str] | None = None,
        dir: str | Path | None = None,
        detached: bool = False,
    ) -> None:
        lines = extra_conf.splitlines() if isinstance(extra_conf, str) else list(extra_conf)
        self._order = keeper.Order(nodes, cluster, lines, files or {}, str(dir) if dir else None, detached, str(REPO))
        self._keeper: subprocess.Popen[bytes] | None = None
        self._old_sigterm: Any = None

    def __enter__(self) -> "Sandbox":
        self.up()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()

    def up(self) -> "Sandbox":
        """Install what is missing, start all, return when all nodes are idle; on failure nothing is left."""
        if self._keeper is not None:
            raise SandboxError(f"This sandbox is up already, in {self.root}.")
        self._catch_sigterm()
        try:
            packages.ensure()
            if os.geteuid() != 0:
                raise SandboxError("The sandbox needs root: its slurmds start jobs of several users.")
            self._start_keeper()
            self._attach(self._await_ready())
            if self._order.detached:
                self._tell(keeper.STAY)
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Take all down; harmless when it is down already. A signal meanwhile is honoured after it."""
        with _uninterrupted():
            process, self._keeper = self._keeper, None
            try:
                if process is not None:
                    self._end_keeper(process)
            finally:
                self._restore_sigterm()

    def _end_keeper(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        root: Path | None = getattr(self, "root", None)
        # Should we be killed, the closed pipe still tells the keeper to stop.
        with process.stdin, process.stdout:
            process.terminate()
            process.wait(timeout=DOWN_TIMEOUT)
            errors = process.stdout.read().decode()
        if root is not None and root.exists():  # the keeper was killed
            take_down(root)
        if process.returncode > 0 and errors:
            raise SandboxError(f"The sandbox ended badly: {errors}")

    def _start_keeper(self) -> None:
        argv = [sys.executable, "-IB", "-c", KEEPER, str(REPO)]
        self._keeper = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True
        )
        self._tell(json.dumps(asdict(self._order)).encode() + b"\n")

    def _tell(self, message: bytes) -> None:
        assert self._keeper is not None and self._keeper.stdin is not None
        self._keeper.stdin.write(message)
        self._keeper.stdin.flush()

    def _await_ready(self) -> Path:
        assert self._keeper is not None and self._keeper.stdout is not None
        if not select.select([self._keeper.stdout], [], [], UP_TIMEOUT)[0]:
            raise SandboxError(f"The sandbox wasn't up after {UP_TIMEOUT} s.")
        line = self._keeper.stdout.readline()
        answer = json.loads(line) if line else {"error": "the keeper process died"}
        if "error" in answer:
            raise SandboxError(f"The sandbox didn't come up: {answer['error']}\n{answer.get('logs', '')}".rstrip())
        return Path(answer["ready"])

    def _catch_sigterm(self) -> None:
        """Let SIGTERM unwind the `with` block instead of killing Python outright (the keeper would clean up all the
        same, but a moment after we are gone)."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._old_sigterm = signal.signal(signal.SIGTERM, _exit_on_sigterm)

    def _restore_sigterm(self) -> None:
        if self._old_sigterm is not None and signal.getsignal(signal.SIGTERM) is _exit_on_sigterm:
            signal.signal(signal.SIGTERM, self._old_sigterm)
        self._old_sigterm = None


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """An impatient second Ctrl-C waits, too: who leaves before the keeper says that all is down when it isn't yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_on_sigterm(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


_STATE_TYPES = {
    "pid": int,
    "started": int,
    "detached": bool,
    "checkout": str,
    "cluster": str,
    "nodes": list,
    "version": list,
}


def state(root: Path) -> dict[str, Any]:
    """What the keeper wrote down about itself. Anyone can make a directory in /tmp, and this tells whom to end, so it
    counts only where none but root or ourselves can have written it."""
    file = root / keeper.STATE
    try:
        for path in (root, file):
            info = path.lstat()
            if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
                raise ValueError(f"{path} is someone else's, or others may write it")
        found: dict[str, Any] = json.loads(file.read_text())
        if not isinstance(found, dict) or any(not isinstance(found.get(name), kind) for name, kind in _STATE_TYPES.items()):
            raise ValueError(f"{file} is not what a keeper writes")
    except (OSError, ValueError) as error:
        raise SandboxError(f"{root} is no sandbox: {error}. List them with: python3 -m tests.sandbox list") from error
    return found


def take_down(root: Path) -> None:
    """Take down the sandbox in this directory through its keeper; without the keeper (killed), by the mark alone."""
    known = state(root)
    if not procs.end(known["pid"], known["started"], DOWN_TIMEOUT):
        raise SandboxError(f"The keeper (pid {known['pid']}) of {root} didn't end within {DOWN_TIMEOUT} s.")
    if root.exists():
        keeper.sweep(root, set())
        keeper.remove_tree(root)
        users.remove()


def attach(root: Path) -> Client:
    """A client of a sandbox that someone else brought up."""
    state(root)
    client = Client()
    client._attach(root)
    return client
