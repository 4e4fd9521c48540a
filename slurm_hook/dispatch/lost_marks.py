"""Marks that are gone: a job whose Comment was changed before dispatch first saw it, found again by its submission's own words.

Slurm's accounting keeps the command line of each submission, with the options that the wrapper added. It is the owner's own
word as the Comment is, nobody else can write it, and unlike a line of the log it belongs to this very job. What a plugin
added stands in no command line; where accounting keeps none, what is found by nothing else stays.
"""

from __future__ import annotations

import re
import secrets

from ..common.record import TYPE_CHECKING
from ..published import mark
from ..slurm import commands, jobs
from . import tracking
from .tracking import Tracked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..slurm.jobs import Job

MOST = 200  # jobs asked for at once; the others at the next passes
TIMEOUT = 20.0  # seconds
# as wrapper.arguments writes them, side by side
_ADDED = re.compile(r"(?:^|\s)--exclude=(\S+) (?:--nodes=\d+ )?--comment=(wh=\S+)")


def candidates(found: Iterable[Job], known: Mapping[int, Tracked]) -> list[Job]:
    """Waiting jobs with excludes that neither a mark nor our memory explains."""
    return [job for job in found if job.pending and job.excludes and job.mark is None and job.id not in known]


def search(wanted: Sequence[Job]) -> dict[int, Tracked]:
    """What is known of those jobs that accounting has by now: also that all excludes are the user's. Raises SlurmError."""
    asked = {(str(job.id), job.user, f"{job.submit:.0f}"): job for job in wanted[:MOST]}
    if not asked:
        return {}
    separator = f"\x1f{secrets.token_hex(8)}\x1f"
    numbers = ",".join(number for number, _, _ in asked)
    fields = "JobIDRaw,User,Submit,SubmitLine"
    argv = ["sacct", "-a", "-X", "-D", "-n", "-P", f"--jobs={numbers}", "-o", fields, f"--delimiter={separator}"]
    rows = re.split(rf"(?:^|\n)(?=\d+{separator})", commands.run(argv, timeout=TIMEOUT))
    told = [row.split(separator, 3) for row in rows if row.count(separator) >= 3]
    return {asked[key].id: tracked_of(asked[key], line) for *fields, line in told if (key := tuple(fields)) in asked}


def tracked_of(job: Job, line: str) -> Tracked:
    """Whose excludes are whose, where they still are as the wrapper wrote them; else all are the user's."""
    now_set = frozenset(jobs.nodes_of(job.excludes))
    for added in _ADDED.finditer(line):
        found = mark.parse(added[2])
        if found is not None and found.decided and frozenset(jobs.nodes_of(added[1])) == now_set:
            return tracking.adopt(job._replace(comment=added[2]), None)
    return Tracked(submit=job.submit, user=job.excludes)
