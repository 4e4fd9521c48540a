"""The simulation's promises on a few seeds; the full campaign: `python -m tests.bench.simulate run` and `report`."""

import numpy as np
import pytest

from tests.bench.report import gain_share, precision, recall, recall_at
from tests.bench.simulate import WARM_UP, play

pytestmark = [pytest.mark.bench, pytest.mark.slow]
SEEDS = range(5000, 5008)


@pytest.fixture(scope="module")
def played():
    policies = ("random", "published (A)", "attributed (B)", "all-knowing")
    return {p: [play(("plain", 0.85, p, seed)) for seed in SEEDS] for p in policies}


def test_b_gets_most_of_what_knowing_all_would(played):
    rows = [
        [b["failures_late"], r["failures_late"], k["failures_late"]]
        for b, r, k in zip(played["attributed (B)"], played["random"], played["all-knowing"])
    ]
    assert WARM_UP == 480
    assert gain_share(np.array(rows)) > 0.5


def test_b_beats_a(played):
    mean = {p: np.mean([r["failures_late"] for r in rows]) for p, rows in played.items()}
    assert mean["attributed (B)"] < mean["published (A)"]


def test_b_finds_bad_nodes_that_a_does_not(played):
    found = [r["detection"] for r in played["random"]]
    assert np.mean([f["auc"] for f in found]) > 0.92 > np.mean([f["auc_published"] for f in found])
    table = np.array([f["rule"] for f in found])
    assert precision(table) > 0.7
    assert recall(table) > 0.45
    assert recall_at([f["curve_known"] for f in found])[0] >= recall_at([f["curve"] for f in found])[0] - 0.05


def test_steering_costs_no_waiting(played):
    waits = {p: np.mean([r["wait"] for r in rows]) for p, rows in played.items()}
    assert waits["attributed (B)"] < 1.1 * waits["random"]
