"""A real systemd as PID 1 with the product's units under it: `python -m tests.booted`.

A Debian 12 in an overlay over the folder that `tests.versions` keeps, in namespaces of its own (processes, mounts, control
groups, IPC, host name); a sandbox is its cluster. Installs, lets the units run, kills a dispatcher, moves the history below
/home, takes all away again. Needs root, debootstrap, cgroup v2 and a Debian 12 (its Python is the root's); takes two
minutes and is no part of CI.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.sandbox import Sandbox
from tests.versions import ROOT, mounted, prepared

PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3-venv", "slurm-client", "logrotate")
KEPT = Path("/var/tmp/workhorse-versions")
# where cgroup v2 is, alone or beside v1
GROUPS = next((p for p in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if (p / "cgroup.procs").exists()), None)
_BOOT = r"""
set -eu
root=$1 scratch=$2; shift 2
mount --make-rprivate /
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
cd "$scratch/root"
for folder do mkdir -p ".$folder"; mount --bind "$folder" ".$folder"; done
mount -t proc proc proc
mount --rbind /sys sys
umount -l sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mkdir dev/pts dev/shm old
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
pivot_root . old
umount -l /old
exec env -i container=tests PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd systemd.unit=multi-user.target
"""


class Booted:
    """A booted root; `run` executes a shell line inside. Use as context manager."""

    def __init__(self, root: Path, folders: list[str], env: dict[str, str]) -> None:
        self.root, self.folders, self.env = root, folders, env

    def __enter__(self) -> Booted:
        assert GROUPS, "no cgroup v2 here"
        self.group = GROUPS / f"workhorse-booted-{os.getpid()}"
        self.group.mkdir()
        self.scratch = tempfile.mkdtemp(prefix="workhorse-booted-")
        script = f'echo $$ >{self.group}/cgroup.procs; exec unshare --pid --mount --cgroup --ipc --uts --fork sh -c "$@"'
        argv = ["sh", "-c", script, "sh", _BOOT, "sh", str(self.root), self.scratch, *self.folders]
        self._holder = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.poll("systemctl is-system-running | grep -E 'running|degraded'", 60)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["kill", "-9", str(self._first())], check=False)  # the namespace ends with its first process
        self._holder.wait(timeout=20)
        for folder, _, _ in os.walk(self.group, topdown=False):
            os.rmdir(folder)
        os.rmdir(self.scratch)

    def _first(self) -> int:
        return int(subprocess.run(["pgrep", "-P", str(self._holder.pid)], capture_output=True, text=True, check=True).stdout)

    def run(self, line: str, *, check: bool = True) -> str:
        """Output of a shell line; raises with it where the line fails."""
        enter = [
            "nsenter",
            "--target",
            str(self._first()),
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--cgroup",
            "--root",
            "--wdns=/",
        ]
        argv = [*enter, "--", "bash", "-c", line]
        done = subprocess.run(argv, capture_output=True, text=True, env=self.env, timeout=300, check=False)
        assert not check or done.returncode == 0, f"{line} failed ({done.returncode}):\n{done.stdout}{done.stderr}"
        return done.stdout

    def poll(self, line: str, seconds: float) -> str:
        """Output of a line once it succeeds."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.run(line)
            except (AssertionError, subprocess.CalledProcessError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.3)


def packages_in(root: Path) -> None:
    """The root's own systemd and Slurm's clients, once."""
    if (root / "lib/systemd/systemd").exists() and (root / "usr/bin/sacct").exists():
        return
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    with mounted(root):
        for argv in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
            subprocess.run(["chroot", str(root), "apt-get", "-qq", *argv], env=env, check=True, stdout=subprocess.DEVNULL)


UNITS = ("collect", "refresh", "dispatch")
SETTINGS = "/etc/workhorse/workhorse.toml"


def the_units_run(host: Booted, install: str) -> None:
    """Timers are on, each unit ends well, doctor sees it."""
    host.run(f"{install} --role controller")
    host.run("sacctmgr -i add user workhorse account=root adminlevel=Operator", check=False)
    timers = host.run("systemctl list-timers --no-legend --no-pager")
    assert all(f"workhorse-{unit}.timer" in timers for unit in UNITS), timers
    for unit in UNITS:
        host.run(f"systemctl start workhorse-{unit}.service")
    checked = host.run("workhorse doctor --check timers --check collected --check log --check rights")
    assert checked.startswith("WORKHORSE OK: 4 of 4"), checked


def people_submit_there_too(host: Booted, install: str) -> None:
    """That adds a timer and leaves the others on."""
    host.run(f"{install} --role controller --submit")
    for unit in (*UNITS, "hints"):
        assert host.run(f"systemctl is-active workhorse-{unit}.timer") == "active\n"
    host.run("systemctl start workhorse-hints.service && grep -q min_nodes /etc/workhorse/hints")


def the_history_below_home(host: Booted, install: str) -> None:
    """Units may write where the settings say, once install.sh has seen them."""
    host.run(f'install -d -o workhorse /home/wh && sed -i \'s|^#path = .*history.db"|path = "/home/wh/history.db"|\' {SETTINGS}')
    assert "Read-only" in host.run("systemctl start workhorse-collect; journalctl -u workhorse-collect -n 20", check=False)
    host.run(f"{install} --role controller && systemctl start workhorse-collect.service && test -s /home/wh/history.db")


def a_dispatcher_that_is_killed(host: Booted, install: str) -> None:
    """The service comes back by itself, and its next pass is told."""
    host.run(f"sed -i 's/^#mode = .*/mode = \"avoid\"/' {SETTINGS} && {install} --role controller --watch")
    before = host.run("systemctl show -p MainPID --value workhorse-dispatch-watch").strip()
    host.run(f"kill -9 {before}")
    after = f"systemctl show -p MainPID --value workhorse-dispatch-watch | grep -vx -e 0 -e {before}"
    host.poll(after, 20)
    host.poll("workhorse doctor --check dispatcher --check timers", 20)


def nothing_is_left(host: Booted, install: str) -> None:
    """Taken away, with timers, units and the user."""
    host.run(f"{install.split(' --wheels', maxsplit=1)[0]} --uninstall --purge")
    assert host.run("systemctl list-units --all --no-legend --no-pager 'workhorse*'") == ""
    left = host.run("find / -xdev -iname '*workhorse*' -not -path '/srv/*' -not -path '/proc/*' -not -path '/tmp/*'")
    assert left == "", left
    host.run("! getent passwd workhorse")


STEPS: tuple[Callable[[Booted, str], None], ...] = (
    the_units_run, people_submit_there_too, the_history_below_home, a_dispatcher_that_is_killed, nothing_is_left,
)  # fmt: skip


def main() -> int:
    """0 where every step did what it should; what failed is told by its assertion."""
    KEPT.mkdir(parents=True, exist_ok=True)
    root = prepared("bookworm", KEPT)
    packages_in(root)
    # neither /tmp nor /var/tmp: units have their own
    with tempfile.TemporaryDirectory(prefix="booted-", dir="/srv") as shared:
        os.chmod(shared, 0o755)
        wheels = f"{shared}/wheels"
        subprocess.run([ROOT / "install.sh", "--download-wheels", wheels], check=True, capture_output=True)
        checkout = f"{shared}/checkout"
        subprocess.run(["git", "clone", "-q", str(ROOT), checkout], check=True)
        with Sandbox(dir=f"{shared}/slurm") as sandbox:
            env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8",
                   "SLURM_CONF": str(sandbox.conf)}  # fmt: skip
            with Booted(root, [shared], env) as host:
                for step in STEPS:
                    started = time.monotonic()
                    step(host, f"{checkout}/install.sh --wheels {wheels}")
                    print(f"{step.__name__.replace('_', ' ')}: {time.monotonic() - started:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
