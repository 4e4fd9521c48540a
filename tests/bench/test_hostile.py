"""A thousand jobs of one user who means ill, on a real Slurm: what a pass of dispatch costs, and whether others are decided."""

import resource
from collections.abc import Iterator

import pytest

from slurm_hook.slurm import jobs
from tests import hostile
from tests.dispatched import Dispatched
from tests.sandbox import Sandbox

pytestmark = pytest.mark.bench
BAD, COUNT, LIMIT = "gpu07", 1000, 2.0  # seconds of processor time, Slurm's own commands included


@pytest.fixture
def site(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatched]:
    made = Dispatched(sandbox, monkeypatch, dispatch__period=60.0)
    made.publish(bad=[BAD])
    yield made
    made.clean()


def cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(of.ru_utime + of.ru_stime for of in used)


def test_a_pass_over_a_thousand_hostile_jobs_decides_for_others_within_two_seconds(site: Dispatched, sandbox: Sandbox) -> None:
    site.fill()
    site.submitted += hostile.submit(sandbox, COUNT, "carol")
    others = [site.sbatch("-N2", "--exclusive", user=user) for user in ("alice", "bob") * 3]
    took = []
    for number in range(4):
        jobs._remembered.known.clear()  # as in a process of its own, which cron starts
        before = cpu()
        report = site.one_pass()
        took.append(cpu() - before)
        print(f"pass {number + 1}: {took[-1]:.2f} s of processor, {report.applied} applied, {report.left} left")
        if number == 0:
            assert [site.excludes(job) for job in others] == [BAD] * len(others)
        assert site.live().pools == () and site.live().queue_head["llm"] > 0
    assert max(took) < LIMIT, took
