"""Ordinary users for the tests.

Those that a sandbox made are known by their comment field; the last sandbox removes them.
"""

import pwd
import subprocess

from . import claims
from .errors import SandboxError

ORDINARY = ("alice", "bob", "carol")
SERVICE = "workhorse"
ACCOUNT = "ml"
COMMENT = "made by a slurm sandbox"


def create() -> None:
    """Make the users that are missing; call it with the claim on `live/…` held, so that nobody removes them."""
    with claims.lock("users"):
        for name in (*ORDINARY, SERVICE):
            if _entry(name) is None:
                _run(
                    "useradd",
                    *("--user-group", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/sh"),
                    *("--comment", COMMENT, name),
                )


def remove() -> None:
    """Remove the users that sandboxes made, unless a sandbox lives; call it without a claim on `live/…` of one's own."""
    with claims.lock("users"):
        if any(name.startswith("live/") for name in claims.held()):
            return
        for name in (*ORDINARY, SERVICE):
            entry = _entry(name)
            if entry is not None and entry.pw_gecos == COMMENT:
                _run("userdel", name)


def _entry(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise SandboxError(f"{' '.join(argv)} failed ({done.returncode}): {done.stderr.strip()}")
