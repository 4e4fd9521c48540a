"""The simulation's promises on a few seeds; the full campaign: `python -m tests.bench.simulate run` and `report`."""

import numpy as np
import pytest

from tests.bench.report import gain_share, precision, recall, recall_at
from tests.bench.simulate import WARM_UP, play

pytestmark = [pytest.mark.bench, pytest.mark.slow]
SEEDS = range(5000, 5008)
LOOKED_AT = range(5000, 5024)  # a seed has four bad nodes: one of them that never fails moves its AUC by an eighth


@pytest.fixture(scope="module")
def played():
    policies = ("published (A)", "attributed (B)", "attributed, sacrifice off", "all-knowing")
    found = {p: [play(("plain", 0.85, p, seed)) for seed in SEEDS] for p in policies}
    return {"random": [play(("plain", 0.85, "random", seed)) for seed in LOOKED_AT], **found}


@pytest.mark.parametrize(("policy", "least"), [("attributed (B)", 0.55), ("attributed, sacrifice off", 0.4)])
def test_b_gets_most_of_what_knowing_all_would(played, policy, least):
    """The targets are 0.70 and 0.55 over all seeds; eight of them are uncertain by some 0.08."""
    rows = [
        [b["failures_late"], r["failures_late"], k["failures_late"]]
        for b, r, k in zip(played[policy], played["random"], played["all-knowing"])
    ]
    assert WARM_UP == 480
    print(f"{policy}: {gain_share(np.array(rows)):.0%} of the all-knowing gain on {len(rows)} seeds")
    assert gain_share(np.array(rows)) > least


def test_b_beats_a(played):
    mean = {p: np.mean([r["failures_late"] for r in rows[: len(SEEDS)]]) for p, rows in played.items()}
    assert mean["attributed (B)"] < mean["published (A)"]


def test_b_finds_bad_nodes_that_a_does_not(played):
    found = [r["detection"] for r in played["random"]]
    assert np.mean([f["auc"] for f in found]) > 0.92 > np.mean([f["auc_published"] for f in found])
    table = np.array([f["rule"] for f in found])
    print(f"AUC {np.mean([f['auc'] for f in found]):.3f}, precision {precision(table):.2f}, recall {recall(table):.2f}")
    assert precision(table) > 0.7
    assert recall(table) > 0.45
    assert recall_at([f["curve_known"] for f in found])[0] >= recall_at([f["curve"] for f in found])[0] - 0.05


def test_steering_costs_no_waiting(played):
    waits = {p: np.mean([r["wait"] for r in rows[: len(SEEDS)]]) for p, rows in played.items()}
    assert waits["attributed (B)"] < 1.1 * waits["random"]
