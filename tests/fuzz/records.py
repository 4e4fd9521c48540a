"""What became of calls: Slurm's records of their jobs, looked up for many at once, and what it stored of each."""

from __future__ import annotations

import re
import time
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from tests.fuzz.running import Outcome
from tests.sandbox.client import Client

# of `scontrol show job`: what differs between two submissions of the same call
VOLATILE = {
    "JobId", "SubmitTime", "EligibleTime", "AccrueTime", "StartTime", "EndTime", "LastSchedEval", "Priority", "SuspendTime",
    "HetJobIdSet", "ArrayJobId", "HetJobId", "Reason", "RunTime", "Deadline", "SubmitLine", "Scheduler", "SiteFactor",
    "PreSusTime", "AllocNode:Sid", "Dependency", "NodeList", "BatchHost", "NodeListIndices",
}  # fmt: skip
PATIENCE = 15  # seconds that a job may take to run
NAMES_IDS = {"StdOut", "StdErr"}
_FIELD = re.compile(r"(?:^| )([A-Za-z][\w/:.]*)=")


def fill(sandbox: Client, outcomes: Sequence[Outcome], running: Container[int] = (), after: int = 0) -> int:
    """Look up the jobs of these calls, and wait for the end of those whose sessions are `running`; gives the last job's number.

    after: the last job from before these calls (numbers of sessions come again).
    """
    until = time.monotonic() + PATIENCE
    by_session = _by_session(sandbox, after)
    while time.monotonic() < until and any(
        job["JobState"] in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        for session, jobs in by_session.items() if session in running for job in jobs
    ):  # fmt: skip
        time.sleep(0.2)
        by_session = _by_session(sandbox, after)
    for outcome in outcomes:
        found = sorted(by_session.get(outcome.session, []), key=_place)
        whole = {int(job.get("HetJobId") or job.get("ArrayJobId") or job["JobId"]) for job in found}
        outcome.ids = tuple(sorted(whole))
        outcome.jobs = tuple(_steady(job) for job in found)
        outcome.stored = tuple(_stored(sandbox.root / "state", int(job["JobId"])) for job in found)
        if outcome.session in running:
            outcome.dumped = tuple(_dumped(sandbox.outdir / f"dump-{number}") for number in outcome.ids)
    return max((number for outcome in outcomes for number in outcome.ids), default=after)


def _by_session(sandbox: Client, after: int) -> dict[int, list[dict[str, str]]]:
    text = sandbox.run(["scontrol", "-a", "-o", "show", "jobs"], check=False).stdout
    found: dict[int, list[dict[str, str]]] = {}
    for line in re.split(r"\n(?=JobId=)", text):
        job = fields(line.rstrip("\n"))
        if int(job.get("JobId", 0)) > after:
            found.setdefault(int(job["AllocNode:Sid"].rpartition(":")[2]), []).append(job)
    return found


def _dumped(path: Path) -> tuple[bytes, ...]:
    """What a job that ran wrote down of itself, without what Slurm gives it by its number and its nodes."""
    try:
        words = path.read_bytes().split(b"\0")
    except OSError:
        return ()
    return tuple(
        sorted(
            word for word in words if not word.startswith((b"SLURM", b"HOSTNAME", b"TMPDIR", b"CUDA", b"GPU", b"ROCR", b"ZE_"))
        )
    )


def _place(job: dict[str, str]) -> int:
    return int(job["JobId"])


def fields(line: str) -> dict[str, str]:
    """Fields of one record; a job's name may hold line breaks."""
    marks = list(_FIELD.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    return {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)}


def _steady(job: dict[str, str]) -> dict[str, str]:
    number, whole = job["JobId"], job.get("HetJobId") or job.get("ArrayJobId") or job["JobId"]
    kept = {key: value for key, value in job.items() if key not in VOLATILE}
    for key in NAMES_IDS & job.keys():
        kept[key] = re.sub(rf"(?<!\d)({number}|{whole})(?!\d)", "N", job[key])
    return kept


def _stored(state: Path, number: int) -> tuple[bytes, bytes]:
    """Script and environment as slurmctld keeps them, empty where the job has none of its own."""
    folder = state / f"hash.{number % 10}" / f"job.{number}"
    found = []
    for name in ("script", "environment"):
        try:
            found.append((folder / name).read_bytes())
        except OSError:
            found.append(b"")
    return found[0], found[1]


def cancel(sandbox: Client, outcomes: Iterable[Outcome]) -> None:
    """Cancel all of their jobs."""
    ids = [str(number) for outcome in outcomes for number in outcome.ids]
    if ids:
        sandbox.run(["scancel", *ids], check=False)
