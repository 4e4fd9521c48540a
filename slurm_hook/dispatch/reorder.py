"""Waiting stages of ours in the order of their allocation priority, through nice: opt-in (`dispatch.reorder`). Pure.

Nice only ever makes a job later, so the first stage keeps 0. Jobs that are held (some schedulers release a held job
whose nice is changed) or whose user chose a nice of their own are left alone.
"""

from __future__ import annotations

from ..common.record import TYPE_CHECKING
from .tracking import Tracked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..slurm.jobs import Job


def candidates(ordered: Iterable[Job], tracked: Mapping[int, Tracked]) -> list[Job]:
    """Stages whose nice is ours to set."""
    return [job for job in ordered if job.eligible and not job.held and job.nice in (0, _ours(job, tracked))]


def _ours(job: Job, tracked: Mapping[int, Tracked]) -> int:
    return tracked[job.id].nice if job.id in tracked else 0


def nices(ordered: Sequence[Job], widest: int) -> list[tuple[Job, int]]:
    """The nice values to set, for stages in descending allocation priority; none where Slurm has them in that order."""
    if list(ordered) == sorted(ordered, key=lambda job: (-job.priority, job.id)):
        return []
    last = max(1, len(ordered) - 1)
    wanted = [(job, round(i * widest / last)) for i, job in enumerate(ordered)]
    return [(job, nice) for job, nice in wanted if job.nice != nice]


def resets(found: Iterable[Job], tracked: Mapping[int, Tracked]) -> list[tuple[Job, int]]:
    """Waiting jobs that still have the nice we gave them."""
    return [(job, 0) for job in found if job.pending and not job.held and job.nice and job.nice == _ours(job, tracked)]
