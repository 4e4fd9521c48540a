"""Start munged, MariaDB, slurmdbd, slurmctld and the slurmds, and wait until each serves."""

import os
import re
import secrets
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from . import conf, packages, procs, users
from .errors import SandboxError

START_TIMEOUT = 60


def version() -> conf.Version:
    """The installed Slurm's version, such as (22, 5)."""
    done = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, timeout=30, check=False, env=_path_env())
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    if match is None:
        raise SandboxError(f"`slurmctld -V` printed no version: {done.stdout!r} {done.stderr!r}.")
    return int(match[1]), int(match[2])


def _path_env() -> dict[str, str]:
    return {"PATH": packages.SEARCH_PATH, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


def client_env(root: Path) -> dict[str, str]:
    """The environment with which Slurm's commands find the sandbox (nothing of the caller's own)."""
    return {**_path_env(), "SLURM_CONF": str(root / "etc" / "slurm.conf"), procs.MARK: str(root)}


class Daemons:
    """The daemons of one sandbox; `start` returns when all nodes are idle. Ending them is the keeper's business."""

    def __init__(self, lay: conf.Layout, files: dict[str, str], make_users: Callable[[], None]) -> None:
        self.lay = lay
        self.files = files
        self.make_users = make_users
        self.env = client_env(lay.root)
        self.running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self) -> None:
        """Bring everything up."""
        _need_address()
        self.write_files()
        mariadb = self._install_db()
        self.launch("munged", self._munged())
        self.make_users()
        self._await_db(mariadb)
        self.launch("slurmdbd", ["slurmdbd", "-D"])
        self._until(lambda: procs.listening(self.lay.ports[1]), "slurmdbd to listen")
        self._accounts()
        self.launch("slurmctld", ["slurmctld", "-D"])
        self._until(lambda: procs.listening(self.lay.ports[0]), "slurmctld to listen")
        for name in self.lay.nodes:
            self.launch(f"slurmd-{name}", ["slurmd", "-D", "-N", name])
        self._until(self._all_idle, "all nodes to be idle", pause=0.05)

    def write_files(self) -> None:
        """Folders and configuration."""
        root = self.lay.root
        for name in ("etc", "log", "run", "state", "spool", "dev", "munge", "db", "plant", "scripts", "home"):
            (root / name).mkdir()
        for name in ("out", "requests"):
            (root / name).mkdir()
            (root / name).chmod(0o1777)
        for number in range(conf.GPUS_PER_NODE):
            _fake_device(root / "dev" / f"gpu{number}")
        self._write_conf()
        _private(root / "munge" / "key", secrets.token_bytes(128))

    def _write_conf(self) -> None:
        etc = self.lay.etc
        for name, text in (
            ("slurm.conf", conf.slurm_conf(self.lay)),
            ("gres.conf", conf.gres_conf(self.lay)),
            ("topology.conf", conf.topology_conf(self.lay)),
            ("cgroup.conf", conf.cgroup_conf(self.lay)),
            *self.files.items(),
        ):
            (etc / name).write_text(text)
        _private(etc / "slurmdbd.conf", conf.slurmdbd_conf(self.lay).encode())
        (self.lay.root / "db" / "init.sql").write_text(conf.init_sql())

    def launch(self, name: str, argv: list[str]) -> subprocess.Popen[bytes]:
        """Start a daemon in the foreground, in a session of its own (a Ctrl-C in the terminal doesn't reach it)."""
        with open(self.lay.root / "log" / f"{name}.out", "ab") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                cwd=self.lay.root,
                start_new_session=True,
            )
        self.running.append((name, process))
        return process

    def call(self, *argv: str, timeout: float = 30) -> str:
        """Run a client command as root; its output."""
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise SandboxError(f"{' '.join(argv)} failed ({done.returncode}): {done.stderr.strip()}")
        return done.stdout

    def _munged(self) -> list[str]:
        place = self.lay.root / "munge"
        # --force: a directory that others may write above ours (/tmp without its sticky bit) is only warned about.
        return [
            "munged", "--foreground", "--force", f"--socket={self.lay.munge_socket}",
            *(f"--{what}-file={place / what}" for what in ("key", "pid", "seed")),
            f"--log-file={self.lay.root / 'log' / 'munged.log'}",
        ]  # fmt: skip

    def _install_db(self) -> subprocess.Popen[bytes]:
        """Start the creation of MariaDB's system tables; it takes most of a second, so other things go on meanwhile.

        Its temporary tables are its own: each server that starts removes all that it finds in a folder that it shares.
        """
        data = self.lay.root / "db" / "data"
        data.mkdir()
        for path in (data.parent, data):
            shutil.chown(path, "mysql")
        return self.launch(
            "mariadb-install-db",
            [
                "mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}", f"--tmpdir={data}",
                "--skip-name-resolve", "--auth-root-authentication-method=normal", "--skip-test-db", *_small_innodb(),
            ],
        )  # fmt: skip

    def _await_db(self, installing: subprocess.Popen[bytes]) -> None:
        if installing.wait(timeout=START_TIMEOUT) != 0:
            text = (self.lay.root / "log" / "mariadb-install-db.out").read_text(errors="replace")
            told = [line for line in text.splitlines() if re.search("error|fatal|denied|no space", line, re.IGNORECASE)]
            raise SandboxError(f"mariadb-install-db failed ({installing.returncode}): {' / '.join(told[:5]) or 'see its log'}")
        self.running = [item for item in self.running if item[1] is not installing]
        place = self.lay.root / "db"
        self.launch(
            "mariadbd",
            [
                "mariadbd", "--no-defaults", "--user=mysql", f"--datadir={place / 'data'}",
                f"--socket={self.lay.mysql_socket}", f"--pid-file={place / 'pid'}", f"--init-file={place / 'init.sql'}",
                "--skip-networking", "--character-set-server=utf8mb4", "--innodb-flush-log-at-trx-commit=0",
                f"--tmpdir={place / 'data'}", *_small_innodb(),
            ],
        )  # fmt: skip
        self.env["MYSQL_UNIX_PORT"] = str(self.lay.mysql_socket)  # libmariadb's default socket, for slurmdbd
        self._until(lambda: _connects(self.lay.mysql_socket), "MariaDB to answer")

    def _accounts(self) -> None:
        path = self.lay.root / "db" / "accounts"
        path.write_text(conf.accounts(self.lay.cluster, users.ACCOUNT, users.ORDINARY, users.SERVICE))
        self.call("sacctmgr", "-i", "load", str(path))

    def _all_idle(self) -> bool:
        argv = ["sinfo", "-h", "-N", "-p", "llm", "-o", "%T"]
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout.split() == ["idle"] * len(self.lay.nodes)

    def _until(self, ready: Callable[[], bool], what: str, pause: float = 0.01) -> None:
        """Poll `ready`, but give up at once when a daemon ends."""

        def check() -> bool:
            for name, process in self.running:
                if process.poll() is not None:
                    raise SandboxError(f"{name} ended with code {process.returncode} while waiting for {what}.")
            return ready()

        procs.poll(check, START_TIMEOUT, what, pause)


def _need_address() -> None:
    """Slurm's daemons ask for addresses of the kinds that the machine has, where loopback doesn't count."""
    try:
        socket.getaddrinfo(None, 1, socket.AF_INET, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG | socket.AI_PASSIVE)
    except socket.gaierror:
        raise SandboxError(
            "This machine has no IPv4 address but loopback's, and Slurm's daemons don't listen then: give it one, "
            "such as: ip addr add 192.0.2.1/32 dev lo"
        ) from None


def _private(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _fake_device(path: Path) -> None:
    """A twin of /dev/null, since jobs get no CUDA_VISIBLE_DEVICES for a plain file; one that will do in a container."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        path.touch()
    path.chmod(0o666)


def _small_innodb() -> list[str]:
    """Small files, and no waiting for the disk: nothing here needs to survive a crash."""
    return [
        "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=64M", "--innodb-flush-method=nosync", "--sync-frm=0",
    ]  # fmt: skip


def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
    return True
