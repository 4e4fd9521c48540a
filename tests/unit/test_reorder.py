"""Nice by allocation priority: only where the order is wrong, never a user's own, never a held job's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.dispatch import reorder
from slurm_hook.dispatch.tracking import Tracked
from tests.unit.jobs_made import job


@pytest.mark.parametrize(
    ("priorities", "wanted"),
    [
        ([], []), ([5], [0]), ([9, 5, 1], [0, 0, 0]), ([5, 5, 5], [0, 0, 0]), ([1, 5], [0, 100]), ([9, 1, 5], [0, 50, 100]),
        ([1, 2, 3, 4, 5], [0, 25, 50, 75, 100]),
    ],
)  # fmt: skip
def test_nice_changes_only_where_slurm_has_another_order(priorities, wanted):
    ordered = [job(i, priority=number) for i, number in enumerate(priorities, 1)]
    changed = {j.id: nice for j, nice in reorder.nices(ordered, 100)}
    assert [changed.get(j.id, 0) for j in ordered] == wanted


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100)), max_size=30), st.integers(1, 1000))
def test_nice_stays_in_range_and_a_second_look_changes_nothing(now, widest):
    ordered = [job(i, priority=number, nice=nice) for i, (number, nice) in enumerate(now, 1)]
    changes = {j.id: nice for j, nice in reorder.nices(ordered, widest)}
    assert all(0 <= nice <= widest for nice in changes.values())
    # whether or not Slurm's priorities follow (other factors may weigh more), there is nothing more to set
    assert reorder.nices([j._replace(nice=changes.get(j.id, j.nice)) for j in ordered], widest) == []


@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({}, True), ({"nice": 70}, True), ({"nice": 5}, False), ({"priority": 0}, False), ({"reason": "JobHeldUser"}, False),
        ({"dependency": "afterok:1"}, False), ({"state": "RUNNING"}, False), ({"nice": -10}, False),
    ],
)  # fmt: skip
def test_whose_nice_is_ours(changes, ours):
    assert bool(reorder.candidates([job(**changes)], {1: Tracked(nice=70)})) is ours


def test_resets_only_what_we_gave():
    found = [job(1, nice=70), job(2, nice=5), job(3, nice=70, priority=0), job(4, nice=70, state="RUNNING"), job(5)]
    known = {i: Tracked(nice=70) for i in range(1, 6)}
    assert [(j.id, nice) for j, nice in reorder.resets(found, known)] == [(1, 0)]
