"""The keeper: one process per sandbox, parent of all its daemons and the one that takes it down.

It ends the sandbox when it is told to (SIGTERM), and also when its owner dies in any way: it holds the read end of a pipe
whose write end only the owner has. As a subreaper it stays the ancestor of everything that the daemons start (slurmstepd,
jobs), so "what this sandbox started" is its process tree.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from . import claims, conf, daemons, plant, procs, users
from .errors import SandboxError

# Not TMPDIR: that may be private, or too long for socket paths. The first of these that will do, see `unfit`.
TEMP_FOLDERS, TEMP_PREFIX = (Path("/tmp"), Path("/var/tmp"), Path("/var/lib")), "slurm-sandbox-"
ROOM_NEEDED = 128 << 20  # bytes: MariaDB's files, mostly
STATE = "sandbox.json"
WATCH_PAUSE = 0.05
STAY = b"stay\n"  # what an owner sends that leaves the sandbox running


class Stop(BaseException):
    """Raised by the signal handler: take the sandbox down."""


@dataclass(frozen=True)
class Order:
    """What the owner wants; sent as one line of JSON on the keeper's standard input."""

    nodes: int
    cluster: str
    extra_conf: list[str]
    files: dict[str, str]
    dir: str | None
    detached: bool
    checkout: str


class Keeper:
    """Life of one sandbox, from its directory's creation to its removal."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.root: Path | None = None
        self.claims: list[object] = []
        self.live: socket.socket | None = None
        self.stopping = False
        self.uninterrupted = False

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Only the first signal counts: nothing interrupts the taking down."""
        if not self.stopping:
            self.stopping = True
            if not self.uninterrupted:
                raise Stop

    @contextmanager
    def whole(self) -> Iterator[None]:
        """What is done in it is not left half done: a signal waits for its end."""
        self.uninterrupted = True
        try:
            yield
        finally:
            self.uninterrupted = False
        if self.stopping:
            raise Stop

    def make_users(self) -> None:
        """Make the test users (a killed useradd leaves half a user)."""
        with self.whole():
            users.create()

    def up(self) -> None:
        """Start all; tells the owner where."""
        with self.whole():  # a directory of which we don't know would stay
            self.root = self._make_root()
        self.live = claims.claim(f"live/{self.root}")
        names = conf.node_names(self.order.nodes)
        held, ports = claims.ports(len(names) + 2)
        self.claims += held
        lay = conf.Layout(
            root=self.root,
            cluster=self.order.cluster,
            host=os.uname().nodename.split(".")[0],
            nodes=names,
            ports=tuple(ports),
            version=daemons.version(),
            extra_conf=tuple(self.order.extra_conf),
        )
        self._write_state(lay)
        self.daemons = daemons.Daemons(lay, self.order.files, self.make_users)
        self.daemons.start()

    def _make_root(self) -> Path:
        if self.order.dir is None:
            root = Path(tempfile.mkdtemp(prefix=TEMP_PREFIX, dir=temp_folder())).resolve()
        else:
            root = Path(self.order.dir).resolve()
            fault = unfit(root if root.exists() else root.parent)
            if fault:
                raise SandboxError(f"The directory {root} won't do: {fault}. Name another one with --dir.")
            root.mkdir(parents=False, exist_ok=True)
            if any(root.iterdir()):
                raise SandboxError(f"The directory {root} isn't empty: name another one, or take that sandbox down.")
        self.root = root
        root.chmod(0o755)
        if len(str(root)) > conf.MAX_ROOT_LENGTH or any(char in str(root) for char in " ,#%[]="):
            raise SandboxError(
                f"The directory {root} won't do: Slurm's socket paths and configuration need a path of at most "
                f"{conf.MAX_ROOT_LENGTH} characters without blanks and , # % [ ] =. Name a shorter one with --dir."
            )
        closed = [str(path) for path in root.parents if not path.stat().st_mode & 0o001]
        if closed:
            raise SandboxError(f"Ordinary users can't reach {root}: do chmod o+x {' '.join(closed)}, or name another --dir.")
        return root

    def _write_state(self, lay: conf.Layout) -> None:
        state = {
            "pid": os.getpid(),
            "started": procs.start_time(os.getpid()),
            "detached": self.order.detached,
            "checkout": self.order.checkout,
            "cluster": lay.cluster,
            "nodes": lay.nodes,
            "version": lay.version,
        }
        path = lay.root / STATE
        path.with_suffix(".new").write_text(json.dumps(state))
        path.with_suffix(".new").rename(path)

    def watch(self) -> None:
        """Serve the planted DOWN nodes until a signal comes."""
        assert self.root is not None
        while True:
            procs.reap()
            for node in plant.take_requests(self.root):
                self._set_down(node)
            time.sleep(WATCH_PAUSE)

    def _set_down(self, node: str) -> None:
        """Set a node DOWN. A failure is logged: it fails the test that waits for it, not the whole sandbox."""
        try:
            self.daemons.call("scontrol", "update", f"NodeName={node}", "State=DOWN", f"Reason={plant.DOWN_REASON}")
        except (SandboxError, subprocess.TimeoutExpired) as error:
            with open(self.daemons.lay.root / "log" / "keeper.log", "a") as log:
                log.write(f"{error}\n")

    def down(self) -> None:
        """Kill the tree, remove the directory, give back users and ports."""
        self.stopping = True
        root = self.root
        if root is not None:
            sweep(root, {os.getpid()})
            remove_tree(root)
            if self.live is not None:  # first: of two that end at once each would see the other live, and leave the users
                self.live.close()
            users.remove()


def unfit(folder: Path) -> str:
    """Why no sandbox can live in this folder; empty when it can."""
    try:
        info = os.statvfs(folder)
    except OSError as error:
        return error.strerror
    if info.f_flag & (os.ST_NOEXEC | os.ST_RDONLY):
        return "it is mounted " + ("noexec" if info.f_flag & os.ST_NOEXEC else "read-only")
    room = info.f_bavail * info.f_frsize
    return "" if room >= ROOM_NEEDED else f"it has {room >> 20} MiB free, and {ROOM_NEEDED >> 20} are needed"


def temp_folder() -> Path:
    """The folder in which a sandbox's directory is made; sites mount /tmp noexec, or it is full."""
    faults = {folder: unfit(folder) for folder in TEMP_FOLDERS}
    for folder, fault in faults.items():
        if not fault:
            return folder
    told = "; ".join(f"{folder}: {fault}" for folder, fault in faults.items())
    raise SandboxError(
        f"No folder for a sandbox ({told}). Make room, or name a directory with: python3 -m tests.sandbox up --dir"
    )


def sweep(root: Path, trees: set[int]) -> None:
    """Kill all processes below `trees` and all that carry the sandbox's mark; not ourselves and those above us."""
    spared = procs.ancestors(os.getpid())
    procs.kill_all(lambda: (procs.descendants(trees) | procs.marked(root)) - spared)


def remove_tree(root: Path) -> None:
    """Remove the directory; a dying process may still add a file for a moment."""

    def gone() -> bool:
        shutil.rmtree(root, ignore_errors=True)
        return not root.exists()

    procs.poll(gone, 10, f"the removal of {root}")


def _stop_with_owner() -> None:
    """Turn the end of the owner (end of file on our standard input) into a SIGTERM to ourselves, unless it lets us go."""

    def wait() -> None:
        while chunk := os.read(0, 4096):
            if chunk == STAY:
                return
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _report(**message: object) -> None:
    """One line of JSON to the owner, who may be gone."""
    try:
        os.write(1, json.dumps(message).encode() + b"\n")
    except OSError:
        return


def _read_order() -> Order:
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 16)
        if not chunk:
            raise SystemExit(1)
        line += chunk
    return Order(**json.loads(line))


def tails(root: Path, count: int) -> str:
    """The last lines of each log file that has any; slurmctld's at the end, where it is read first."""
    parts = []
    # A daemon that logs to a file says the same on its standard error: *.out counts where there is no *.log.
    paths = [path for path in (root / "log").glob("*") if path.suffix != ".out" or not path.with_suffix(".log").exists()]
    for path in sorted(paths, key=lambda path: (path.name == "slurmctld.log", path.name)):
        lines = path.read_text(errors="replace").splitlines()[-count:]
        if lines:
            parts.append("\n".join([f"==> {path.name} <==", *lines]))
    return "\n".join(parts)


def main() -> None:
    """Entry point of the keeper's process."""
    os.umask(0o022)  # test users and MariaDB's read what is made here, whatever root's own habit
    procs.become_subreaper()
    keeper = Keeper(_read_order())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, keeper.on_signal)
    code = 1
    try:
        try:
            _stop_with_owner()
            keeper.up()
            _report(ready=str(keeper.root))
            keeper.watch()
        except Stop:
            code = 0
        except Exception as error:
            keeper.stopping = True
            logs = tails(keeper.root, 15) if keeper.root else ""
            known = isinstance(error, SandboxError | OSError)
            _report(error=str(error) if known else repr(error), logs=logs)
    finally:
        try:
            keeper.down()
        except Exception as error:
            code = 1
            _report(error=f"Taking down {keeper.root} failed: {error!r}")
    sys.exit(code)
