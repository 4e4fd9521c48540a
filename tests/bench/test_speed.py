"""Scoring against a plain sort of the same columns, and its growth. The full size: `python -m tests.bench.speed`."""

import pytest

from tests.bench import nightly
from tests.bench.speed import make, measure

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("method", ["attributed", "published"])
def test_scoring_takes_at_most_twenty_sorts(method):
    assert measure(1_000_000, 10_000, method)["ratio"] <= 20


def test_time_grows_with_the_tasks_and_not_faster():
    small, large = (measure(n, 5_000, "attributed")["score_seconds"] for n in (500_000, 2_000_000))
    assert large / small <= 4 * 1.5


def test_the_made_history_is_what_it_says():
    history = make(50_000, 500)
    assert 50_000 <= len(history.tasks) < 50_032
    assert (history.tasks.end >= history.tasks.start).all()
    assert history.tasks.node.max() < 500


def test_a_night_reuses_what_did_not_change(tmp_path):
    """Read and scored in less than half of the time that it takes without what the nights before left; the same scores."""
    found = nightly.measure(600_000, 1500, tmp_path)
    print(f"\n{found}")
    assert found["difference"] <= 1e-9
    assert found["ratio"] >= 2
