"""What sbatch was given by whoever started it: seen in /proc while it can't write to a stderr that is full."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from tests.wrapped import REAL

PATIENCE = 4  # seconds
WAITS = ("7 ", "1 0x2 ")  # the system calls poll (Slurm asks before it writes, and gives up after some seconds) and write
KEPT = ("Umask", "Uid", "Gid", "Groups", "Threads", "SigBlk", "SigIgn", "NoNewPrivs")


class Probe(NamedTuple):
    """argv without its first word."""

    argv: tuple[str, ...]
    environment: tuple[bytes, ...]
    descriptors: dict[str, str]
    status: dict[str, str]
    limits: str
    cwd: str


def look(pid: int) -> Probe | None:
    """The process, once it is the real sbatch and waits for room in stderr; None where it never is."""
    until = time.monotonic() + PATIENCE
    place = Path(f"/proc/{pid}")
    while time.monotonic() < until:
        try:
            if os.readlink(place / "exe") == REAL and (place / "syscall").read_text().startswith(WAITS):
                return _take(place)
        except OSError:
            return None
        time.sleep(0.003)
    return None


def _take(place: Path) -> Probe:
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line)
    descriptors = {}
    for entry in os.listdir(place / "fd"):
        kind = re.sub(r"\d+", "N", os.readlink(place / "fd" / entry)) if int(entry) > 0 else os.readlink(place / "fd" / entry)
        descriptors[entry] = re.sub(r":\[\d+\]", "", kind) + " " + _position(place, entry)
    stat = (place / "stat").read_text().rpartition(")")[2].split()
    own = {"leads": str(stat[2] == stat[3] == place.name), "nice": stat[16]}
    return Probe(
        tuple(os.fsdecode((place / "cmdline").read_bytes()).split("\0")[1:-1]),
        tuple(sorted((place / "environ").read_bytes().split(b"\0"))),
        descriptors,
        {key: status.get(key, "") for key in KEPT} | own,
        (place / "limits").read_text(),
        os.readlink(place / "cwd"),
    )


def _position(place: Path, entry: str) -> str:
    lines = (place / "fdinfo" / entry).read_text().splitlines()
    return " ".join(line.replace("\t", "") for line in lines if line.startswith(("pos:", "flags:")))
