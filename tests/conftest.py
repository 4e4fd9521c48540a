"""Fixtures for all tests."""

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.bare import BareHost
from tests.sandbox import Sandbox

# What the caller's shell sets for its own Slurm, for our commands and for terminals doesn't count for those of the tests.
FOREIGN = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SACCT_", "SQUEUE_", "SINFO_", "SPRIO_", "SSHARE_", "SCRON_", "WORKHORSE")
TERMINAL = {
    "CLICOLOR_FORCE",
    "COLUMNS",
    "FORCE_COLOR",
    "JUPYTER_COLUMNS",
    "LINES",
    "NO_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
}
OURS = {"WORKHORSE_SEARCH", "WORKHORSE_CLIENTS"}
for _name in [name for name in os.environ if name in TERMINAL or (name.startswith(FOREIGN) and name not in OURS)]:
    del os.environ[_name]

# The same examples each time, and no long search for a smaller one: a run says yes or no, at once and again the same.
# WORKHORSE_SEARCH=1 looks at others each time (a larger number at as many times more, where a test sets none itself);
# what it finds becomes an explicit example.
settings.register_profile(
    "same", derandomize=True, print_blob=False, database=None, deadline=None, phases=(Phase.explicit, Phase.generate)
)
SEARCH = int(os.environ.get("WORKHORSE_SEARCH") or 0)
settings.register_profile("search", derandomize=False, print_blob=True, deadline=None, max_examples=100 * max(SEARCH, 1))
settings.load_profile("search" if SEARCH else "same")

ROOT = Path(__file__).resolve().parents[1]
# Files of tests/integration for the second of two test processes (`-n 2`), about half of the time; each has a
# Slurm of its own. Files of one process run in their order.
SECOND = ("readme_site", "sandbox", "site_real", "survives", "trace", "transparent")
_running: list[Sandbox] = []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests stay together where several processes share them, whatever --dist says.

    The files of a Slurm, and each file of tests without one. (Marks of xdist_group do nothing under pytest 9.2 with xdist 3.8.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return ByGroup(config, log)


def group(nodeid: str) -> str:
    """The group of a test."""
    path = Path(nodeid.split("::", 1)[0])
    name = path.stem.removeprefix("test_")
    if path.parent.name != "integration":
        return name
    return "second Slurm" if name in SECOND else "first Slurm"


@pytest.fixture(scope="module", autouse=True)
def quiet_cluster() -> Iterator[None]:
    """Whatever a module left on the shared Slurm (jobs, reservations, plants, nodes out of service) is gone for the next."""
    yield
    for sandbox in _running:
        make_quiet(sandbox)


def make_quiet(sandbox: Sandbox) -> None:
    """Cancel all jobs, delete all reservations, take all plants off, bring all nodes back."""

    def jobs() -> list[str]:
        return sandbox.run(["squeue", "-h", "-o", "%A"]).stdout.split()

    for name in sandbox.nodes:
        sandbox.unplant(name)
    if jobs():
        sandbox.run(["scancel", *sorted(set(jobs()))], check=False)
        sandbox.poll(lambda: not jobs(), 60, "the queue to be empty")
    for line in sandbox.run(["scontrol", "-o", "show", "reservation"]).stdout.splitlines():
        if line.startswith("ReservationName="):
            sandbox.run(["scontrol", "delete", line.split()[0]], check=False)
    for line in sandbox.run(["sinfo", "-h", "-N", "-o", "%N %t"]).stdout.splitlines():
        name, state = line.split()
        if state.rstrip("*") in ("down", "drain", "drng"):
            sandbox.resume(name)


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the first of several test processes fills, and the others wait for."""
    base = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder, done = base / name, base / f"{name}.done"
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of both kinds of role, fetched once as an admin would on a host with internet."""

    def fetch(folder: Path) -> None:
        for role in ("login", "controller"):
            argv = [ROOT / "install.sh", "--download-wheels", folder, "--role", role]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
        folder.chmod(0o755)

    return once(tmp_path_factory, "wheels", fetch)


@pytest.fixture(scope="session")
def built(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What install.sh builds for a controller and for a login node, built once: a tar of /opt/workhorse/releases.

    `BareHost.unpack` puts it on a host, where install.sh then finds its release complete.
    """

    def build(folder: Path) -> None:
        with BareHost(tmp_path_factory.mktemp("builder")) as host:
            for role in ("login", "controller"):
                host.run([ROOT / "install.sh", "--role", role, "--cron", "--wheels", wheels])
            host.run(["tar", "-cf", folder / "releases.tar", "-C", "/", "opt/workhorse/releases"])

    return once(tmp_path_factory, "built", build) / "releases.tar"


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A running Slurm of 16 nodes, shared by the whole session. Where Slurm can't be had the tests fail, never skip."""
    # A SIGTERM shall end pytest as Ctrl-C does: it takes a SystemExit for a failed test and goes on.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Sandbox() as running:
            _running.append(running)
            yield running
            _running.clear()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def slow() -> Iterator[Sandbox]:
    """A Slurm that looks at one job of a partition only: what comes behind it waits while nodes are idle."""
    with Sandbox(nodes=8, extra_conf=["SchedulerParameters=partition_job_depth=1,bf_interval=10000,sched_interval=1"]) as running:
        yield running
