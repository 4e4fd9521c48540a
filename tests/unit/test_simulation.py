"""The simulated world and cluster: what is common to all policies, and what they may do."""

import json

import numpy as np
import pytest

from accounting.history.columns import RIGHT, SURVIVED, WRONG
from tests.bench.cluster import Cluster
from tests.bench.policies import POLICIES, Default, LeastUsed, Random, RoundRobin, capped_roulette, roulette
from tests.bench.report import auc, recall_at, show_short
from tests.bench.world import BASE, WORLDS, make, parameters

SMALL = {"nodes": 32, "days": 10.0, "per_switch": 8}


def _run(policy, seed=3, world="plain", **changes):
    return Cluster(make(parameters(world, **{**SMALL, **changes}), seed), policy(seed)).run()


def test_a_world_is_its_seed():
    one, two, other = (make(parameters(**SMALL), seed) for seed in (1, 1, 2))
    for name in ("hazard", "submit", "size", "own", "fatal"):
        assert np.array_equal(getattr(one, name), getattr(two, name))
    assert not np.array_equal(one.hazard, other.hazard)


def test_the_world_is_as_its_parameters_say():
    world = make(parameters(), 7)
    p = world.parameters
    assert world.bad.sum() == round(p.bad_share * p.nodes)
    assert (world.hazard[world.bad] >= 10 * BASE).all()
    assert (world.hazard[world.bad] <= 40 * BASE).all()
    assert np.isfinite(world.own).mean() == pytest.approx(p.own_error, abs=0.02)
    taken = (world.size * np.minimum(world.hours, world.own)).sum()
    assert taken / (p.nodes * p.days * 24) == pytest.approx(p.load, rel=0.01)
    assert set(world.size.tolist()) == {1, 2, 4, 8, 16, 32}


def test_own_errors_and_jobs_are_common_to_all_policies():
    runs = [_run(p) for p in (Default, Random)]
    first = [{r[1]: r[4] for r in reversed(run.ledger.rows) if r[6] < 0} for run in runs]
    both = set(first[0]) & set(first[1])
    own = {j for j in both if np.isfinite(runs[0].world.own[j])}
    assert len(own) > 20
    assert all(first[0][j] == first[1][j] == WRONG for j in own)


@pytest.mark.parametrize("world", WORLDS)
def test_no_node_runs_two_jobs_at_once(world):
    history = _run(Random, world=world).history()
    order = np.lexsort((history.tasks.start, history.tasks.node))
    node, start, end = history.tasks.node[order], history.tasks.start[order], history.tasks.end[order]
    assert (start[1:] - end[:-1])[node[1:] == node[:-1]].min() > -1e-6


def test_visible_failures_name_their_node_and_others_do_not():
    run = _run(Random, days=40.0, bad_share=0.2)
    history = run.history()
    culprits = int(history.tasks.culprit.sum())
    known = int(run.history(all_known=True).tasks.culprit.sum())
    assert 0 < culprits < known
    assert (history.attempts.outcome[history.tasks.attempt[history.tasks.culprit]] == WRONG).all()


def test_failure_rate_follows_the_hazards():
    """Node failures seen over many days against Σ hazard · busy hours (wear off)."""
    run = _run(Random, days=100.0, wear=0.0, own_error=0.01)
    expected = float((run.world.hazard * run.busy_hours).sum())
    seen = sum(r[6] >= 0 for r in run.ledger.rows)
    assert abs(seen - expected) < 4 * np.sqrt(expected)


def test_hangs_end_at_the_limit_and_say_nothing():
    run = _run(Random, world="hangs", days=40.0, bad_share=0.2, visible=0.0)
    hung = [r for r in run.ledger.rows if r[4] == SURVIVED]
    assert len(hung) > 5
    assert all(r[3] - r[2] <= run.world.limit[r[1]] + 1e-9 for r in hung)


def test_an_outage_takes_the_jobs_of_its_switch():
    run = _run(Random, world="outages", outages_per_switch_day=0.5)
    moments = {w for w, _ in run.world.outages}
    died = [r for r in run.ledger.rows if r[3] in moments]
    assert died
    assert all(r[4] == WRONG and r[6] < 0 for r in died)


def test_bad_nodes_heal_while_others_turn_bad():
    """All of them in the world "turning", and the hazards at the end are those of the nodes that are bad then."""
    run = _run(Random, world="turning", bad_share=0.1)
    world, still = run.world, make(parameters(**{**SMALL, "bad_share": 0.1}), 3)
    assert world.bad.sum() == still.bad.sum() == 3
    assert not (world.bad & still.bad).any()
    assert (run.hazard[world.bad] >= 10 * BASE).all() and (run.hazard[~world.bad] < 10 * BASE).all()
    assert sorted(run.hazard) == sorted(still.hazard)
    assert np.array_equal(world.submit, still.submit)  # all else is the same


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_takes_as_many_idle_nodes_as_asked(policy):
    run = _run(POLICIES[policy], days=4.0)
    for nodes, job, *_ in run.ledger.rows:
        assert len(set(nodes.tolist())) == run.world.size[job]
    assert sum(r[4] == RIGHT for r in run.ledger.rows) > 10


def test_least_used_levels_the_hours():
    busy = {p: _run(p).busy_hours for p in (Default, LeastUsed, RoundRobin)}
    assert busy[LeastUsed].std() < busy[Default].std()


def test_roulettes_follow_their_weights():
    rng = np.random.default_rng(0)
    picks = np.bincount([int(roulette(rng, np.array([1.0, 2.0, 5.0]), 1)[0]) for _ in range(4000)], minlength=3) / 4000
    assert picks == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.03)
    capped = np.bincount([int(capped_roulette(rng, np.array([0.0, -99.0]), 1)[0]) for _ in range(6000)], minlength=2) / 6000
    assert capped[1] == pytest.approx(1 / 51, abs=0.006)


def test_recall_at_a_precision():
    curves = [[[0.9, 0.8, 0.1], [0.85, 0.2]], [[0.95], []]]
    assert recall_at(curves, 1.0) == (0.5, 0.9)
    assert recall_at(curves, 0.75) == (0.75, 0.8)


def test_auc_halves_ties():
    assert auc(np.array([1.0, 1.0, 0.0]), np.array([True, False, False])) == 0.75


def test_the_short_report_pairs_seeds_and_names_each_setting(tmp_path, capsys):
    """Shares and waits come from the seeds that all policies have; a setting without the main policies is left out."""
    found = {"auc": 0.9, "auc_known": 1.0, "auc_published": 0.6, "auc_counts": 0.7, "rule": [3, 1, 4], "rule_known": [4, 1, 4],
             "curve": [[0.99, 0.2], [0.5]], "curve_known": [[0.99, 0.9], [0.5]]}  # fmt: skip
    late = {"random": 30.0, "attributed (B)": 23.0, "attributed, sacrifice off": 24.0, "all-knowing": 20.0}
    rows = [
        {"world": world, "load": load, "policy": policy, "seed": seed, "failures": 40.0, "failures_late": value + seed,
         "lost": 100.0, "wait": 1.0 + (policy == "attributed (B)") * 0.02, "wear": 0.1, "detection": found}
        for world, load in (("plain", 0.85), ("storms", 0.85), ("plain", 0.6))
        for policy, value in late.items() for seed in (1, 2)
        if (load, policy) != (0.6, "all-knowing")
    ]  # fmt: skip
    path = tmp_path / "r.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {**rows[0], "seed": 3, "failures_late": 99.0}]))
    show_short(str(path))
    told = capsys.readouterr().out
    assert "| attributed (B) | 2 | 24.5 [24.0, 25.0] | 70% [70%, 70%] | 100 [100, 100] | +2.0% [+2.0%, +2.0%] | 0.100 |" in told
    assert "| attributed, sacrifice off | 2 | 25.5 [25.0, 26.0] | 60% [60%, 60%]" in told
    assert "| storms, 0.85 | 2 | 70% [70%, 70%] | 60% [60%, 60%] |" in told
    assert "plain, 0.6 " not in told
    assert "precision 0.75 [0.75, 0.75], recall 0.75 [0.75, 0.75]" in told
