"""The integration tests on other versions of Slurm: `python -m tests.versions [SUITE …] [-- PYTEST ARGUMENTS]`.

Debian's suites bring Slurm 22.05 (bookworm), 24.11 (trixie) and 26.05 (testing, forky). Each gets a folder of its own
(debootstrap, kept for the next time); the checkout is copied in and `./install.sh test integration` runs inside. Needs
root, debootstrap and Debian's mirror; takes minutes for each suite, so it is no part of CI.

--pyslurm CHECKOUT builds pyslurm out of a checkout of its branch for that Slurm (24.11.x for trixie; 10 minutes on one core)
and takes it away afterwards: tests that compare it with sacct run then, and `auto` reads with it in all others.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITES = {"bookworm": "22.05", "trixie": "24.11", "forky": "26.05"}
BASE = ("python3", "python3-venv", "ca-certificates", "procps", "git", "passwd", "util-linux", "mount")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
UPDATE = ("apt-get", "-qq", "update")
TEST = ("/checkout/install.sh", "test", "integration")
PIP = ("/checkout/.venv/bin/pip", "--disable-pip-version-check")
NEEDED = ("apt-get", "-qq", "install", "-y", "--no-install-recommends", "libslurm-dev", "python3-dev", "gcc", "libc6-dev")
BUILDERS = ("Cython<3.2", "setuptools", "wheel", "packaging")


class VersionsError(Exception):
    """What went wrong, in a sentence."""


def mirror() -> str:
    """The archive that this machine's apt uses."""
    argv = ["apt-get", "indextargets", "--format", "$(SITE)"]
    sites = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    if not sites:
        raise SystemExit("apt has no sources here: debootstrap wouldn't know where to get Debian from; run on a Debian machine")
    return sites[0]


def prepared(suite: str, folder: Path) -> Path:
    """The folder with this suite in it, made where it isn't yet; a half-made one is made anew."""
    root, done = folder / suite, folder / suite / ".complete"
    if done.exists():
        return root
    if shutil.which("debootstrap") is None:
        raise VersionsError("debootstrap is missing; run: apt-get install debootstrap")
    shutil.rmtree(root, ignore_errors=True)
    print(f"making {root} …", flush=True)
    argv = ["debootstrap", "--variant=minbase", f"--include={','.join(BASE)}", suite, str(root), mirror()]
    script = Path("/usr/share/debootstrap/scripts") / suite
    if not script.exists():  # a suite younger than this debootstrap is made as sid is
        argv.append("/usr/share/debootstrap/scripts/sid")
    log = folder / f"{suite}.log"
    with open(log, "wb") as out:
        if subprocess.run(argv, stdout=out, stderr=out, check=False).returncode:
            raise VersionsError(f"debootstrap of {suite} failed: {log.read_text(errors='replace')[-600:]}")
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # no package starts a daemon
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    (root / "etc/apt/apt.conf.d/99versions").write_text('Acquire::Check-Valid-Until "false";\n')
    done.touch()
    return root


@contextmanager
def mounted(root: Path) -> Iterator[None]:
    """With /proc, /dev and /sys in place, and this host's names and certificates."""
    for name in ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt"):
        if Path("/", name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).unlink(missing_ok=True)
            shutil.copy(Path("/", name), root / name)
    try:
        # onto itself: tests make mount namespaces, for which the root has to be a mount
        subprocess.run(["mount", "--bind", str(root), str(root)], check=True)
        subprocess.run(["mount", "--make-rprivate", str(root)], check=True)
        for name in ("proc", "dev", "sys"):
            subprocess.run(["mount", "--rbind", "--make-rslave", f"/{name}", str(root / name)], check=True)
        yield
    finally:  # (os.path.ismount doesn't see a folder that is mounted onto itself)
        subprocess.run(["umount", "--recursive", "--lazy", str(root)], check=False)


def copied(root: Path) -> None:
    """The checkout's files at /checkout, without what tests leave; the environment built there before stays."""
    target = root / "checkout"
    target.mkdir(exist_ok=True)
    for entry in target.iterdir():
        if entry.name != ".venv":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True).stdout
    for name in listed.decode().split("\0")[:-1]:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place)


def tested(root: Path, words: Sequence[str], pyslurm: Path | None = None) -> int:
    """Runs the integration tests inside, with pyslurm if a checkout of it is given; the exit code of what failed first."""
    if ran(root, UPDATE):
        return 1
    if pyslurm is None:
        return ran(root, [*TEST, *words])
    try:
        return built(root, pyslurm) or ran(root, [*TEST, *words])
    finally:
        ran(root, [*PIP, "uninstall", "-qy", "pyslurm"])
        shutil.rmtree(root / "pyslurm", ignore_errors=True)


def ran(root: Path, argv: Sequence[str], **more: str) -> int:
    """Runs a command inside; its exit code."""
    passed = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    env = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(["chroot", str(root), *argv], env={**env, **passed, **more}, check=False).returncode


def built(root: Path, source: Path) -> int:
    """pyslurm into the tests' own environment, which is made first; 0 when it is there."""
    shutil.rmtree(root / "pyslurm", ignore_errors=True)
    shutil.copytree(source, root / "pyslurm", ignore=shutil.ignore_patterns(".git"))
    code = ran(root, [*TEST, "--collect-only", "-q"]) or ran(root, NEEDED) or ran(root, [*PIP, "install", "-q", *BUILDERS])
    library = next((root / "usr/lib").glob("*/slurm*/libslurmfull.so"), None)
    if code or library is None:
        return code or 1
    where = {"SLURM_LIB_DIR": f"/{library.parent.relative_to(root)}", "SLURM_INCLUDE_DIR": "/usr/include"}
    return ran(root, [*PIP, "install", "-q", "--no-build-isolation", "/pyslurm"], **where)


def main(argv: Sequence[str]) -> int:
    """0 if every suite passed."""
    words = list(argv)
    rest = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; default: all")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp/workhorse-versions"), help="where the folders are kept")
    parser.add_argument("--pyslurm", type=Path, help="a checkout of PySlurm/pyslurm to build and test with (one suite)")
    asked = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    unknown = [suite for suite in asked.suites if suite not in SUITES]
    if unknown:
        parser.error(f"{unknown[0]}: must be one of {', '.join(SUITES)}")
    if asked.pyslurm is not None and (len(asked.suites) != 1 or not (asked.pyslurm / "setup.py").is_file()):
        parser.error("--pyslurm: name one suite, and a checkout of the branch for its Slurm")
    if os.geteuid() != 0:
        parser.error("debootstrap and chroot need root")
    asked.dir.mkdir(parents=True, exist_ok=True)
    failed = []
    for suite in asked.suites or list(SUITES):
        started = time.monotonic()
        try:
            root = prepared(suite, asked.dir)
            copied(root)
            with mounted(root):
                code = tested(root, rest, asked.pyslurm)
        except VersionsError as err:
            print(f"{suite}: {err}", file=sys.stderr)
            code = 1
        failed += [suite] if code else []
        result = f"{'failed' if code else 'passed'} in {time.monotonic() - started:.0f} s"
        print(f"{suite} (Slurm {SUITES[suite]}): {result}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
