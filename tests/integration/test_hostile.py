"""A user whose jobs are made to do harm costs others nothing: the same as tests/bench/test_hostile.py, small."""

import pytest

from tests import hostile
from tests.dispatched import Dispatched
from tests.sandbox import Sandbox

pytestmark = pytest.mark.integration
BAD = "gpu07"


def test_others_are_decided_in_the_pass_that_meets_hostile_jobs(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    site = Dispatched(sandbox, monkeypatch)
    try:
        site.publish(bad=[BAD])
        site.fill()
        site.one_pass()
        before = site.live().pools  # of others' jobs that have just run
        site.submitted += hostile.submit(sandbox, 60, "carol")
        others = [site.sbatch("-N2", "--exclusive", user=user) for user in ("alice", "bob")]
        report = site.one_pass()
        assert [site.excludes(job) for job in others] == [BAD, BAD]
        assert {*site.live().pools} <= {*before}
        assert not report.problems
    finally:
        site.clean()
