"""Install what the sandbox needs with apt-get, without starting or enabling the packages' own services."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from . import claims
from .errors import SandboxError

PACKAGES = (
    "slurmctld", "slurmd", "slurmdbd", "slurm-client", "slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin",
    "munge", "mariadb-server", "procps", "liblua5.1-0", "util-linux", "passwd",
)  # fmt: skip
# Programs that the sandbox calls; a site with Slurm from elsewhere (no Debian packages) passes when it has them all.
PROGRAMS = (
    "slurmctld", "slurmd", "slurmdbd", "sbatch", "sacctmgr", "sacct", "scontrol", "munged", "mariadbd",
    "mariadb-install-db", "setpriv", "useradd", "userdel",
)  # fmt: skip
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# made by a slurm sandbox while it installs packages\nexit 101\n"
INSTALL_TIMEOUT = 900
ENDING_TIMEOUT = 300
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def missing_programs() -> list[str]:
    """Names of the programs the sandbox calls and this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=SEARCH_PATH) is None]


def missing_packages() -> list[str]:
    """Names of the packages that dpkg doesn't report as installed."""
    argv = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    have = {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in PACKAGES if name not in have]


def ensure() -> list[str]:
    """Install what is missing; returns the packages that were installed now (none when all was there)."""
    if not missing_programs() and shutil.which("dpkg-query") is None:
        return []
    if shutil.which("apt-get") is None:
        raise SandboxError(
            "Slurm cannot be installed here: there is no apt-get on this machine and these programs are missing: "
            f"{', '.join(missing_programs())}. Use Debian 12 or 13, or install Slurm, munge and MariaDB by hand."
        )
    wanted = missing_packages()
    if wanted:
        _need_root(wanted)
        with claims.lock("packages", INSTALL_TIMEOUT):
            before = _enabled()
            try:
                with _no_service_starts():
                    _install(wanted)
            finally:
                _disable(_enabled() - before)
    lacking = missing_programs()
    if lacking:
        raise SandboxError(f"Slurm cannot be used here: packages are installed, but no {', '.join(lacking)} was found.")
    return wanted


def _need_root(wanted: list[str]) -> None:
    if os.geteuid() != 0:
        raise SandboxError(
            f"Slurm cannot be installed here: not root, and these packages are missing: {' '.join(wanted)}. "
            "Run as root, or ask the admin to install them."
        )


def _install(wanted: list[str]) -> None:
    """apt-get install; when that fails, once more after apt-get update (a fresh image has no lists)."""
    failed = _apt("install", "-y", "--no-install-recommends", *wanted)
    if failed is None:
        return
    _apt("update")
    failed = _apt("install", "-y", "--no-install-recommends", *wanted)
    if failed is not None:
        raise SandboxError(
            f"Slurm cannot be installed here: apt-get install {' '.join(wanted)} failed:\n{failed}\n"
            "Check that apt reaches a Debian 12 or 13 mirror (main)."
        )


def _apt(*args: str) -> str | None:
    """Run apt-get; None on success, the end of its output otherwise. A signal ends a download at once, but not dpkg."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    argv = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *args]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # an interrupted Popen would not tell us whom to end
    try:
        process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a signal to our group doesn't reach it, nor its dpkg
            preexec_fn=partial(signal.pthread_sigmask, signal.SIG_SETMASK, before),  # noqa: PLW1509 - it starts no thread
        )
        output = _outcome(process, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return None if process.returncode == 0 else "\n".join(output.splitlines()[-15:])


def _outcome(process: subprocess.Popen[str], mask: set[int]) -> str:
    """Its output, waited for with `mask`. When that is interrupted it gets a SIGINT and time to end.

    apt-get stops then as soon as it is safe. A killed dpkg leaves packages half set up, and every later apt-get refuses.
    """
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return process.communicate(timeout=INSTALL_TIMEOUT)[0]
    except BaseException:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=ENDING_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """A policy-rc.d that forbids service starts, while the packages' scripts run; an existing one comes back after."""
    saved = POLICY.with_name("policy-rc.d.sandbox-saved")
    # One of ours can be there when an earlier run was killed: that isn't the machine's own.
    if POLICY.exists() and POLICY.read_text(errors="replace") != POLICY_TEXT:
        POLICY.rename(saved)
    POLICY.write_text(POLICY_TEXT)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
        if saved.exists():
            saved.rename(POLICY)


def _enabled() -> set[Path]:
    """Links through which systemd and the run levels start services at boot."""
    found = Path("/etc/systemd/system").glob("*.wants/*")
    return {*found, *Path("/etc").glob("rc?.d/S*")}


def _disable(links: set[Path]) -> None:
    """Take back the links that the packages' scripts made (as `systemctl disable` does, which may be absent)."""
    for link in links:
        if link.parent.name.endswith(".wants"):
            link.unlink(missing_ok=True)
    for name in {link.name[3:] for link in links if link.parent.name.startswith("rc")}:
        argv = ["update-rc.d", name, "disable"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise SandboxError(f"Cannot disable the service {name}: {done.stderr.strip()}. Do: update-rc.d {name} disable")
