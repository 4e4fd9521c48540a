"""Suspects reach the published scores between two scoring runs, and leave them again."""

import os

import pytest

from accounting.history import event_rows
from accounting.history.columns_reader import load_history
from accounting.publishing.publish import identified, publish
from accounting.publishing.renew import renew
from accounting.scoring.score import score_history
from accounting.sources import events
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SnapshotError
from slurm_hook.published.snapshot import WHILE_MARKED, NodeScore, Scores, read_scores
from tests.accounting_rows import put, row, stores

NOW = 1_800_000_000


@pytest.fixture
def site(tmp_path):
    """A history with jobs on n1 and n2, and published scores of both. Gives (stores, settings)."""
    made = stores(tmp_path / "h.db")
    put(made, row(1, Submit=str(NOW - 9000), Start=str(NOW - 9000), End=str(NOW - 60), NodeList="n2"))
    (tmp_path / "public").mkdir()
    settings = Settings({"publish.path": str(tmp_path / "public")})
    nodes = {n: NodeScore(n, capability=1.0, relative=1.0) for n in ("n1", "n2")}
    publish(identified(Scores("", "c", NOW - 4000.0, NOW - 4000.0, "attributed", {}, nodes)), settings)
    return made, settings


def _deaths(made, count=3, users=("alice", "bob"), first=2, start=NOW - 1800):
    rows = []
    for k in range(count):
        at = start + 300 * k
        fields = {"Submit": str(at), "Start": str(at), "End": str(at + 20), "NodeList": "n1", "JobName": f"j{k}"}
        rows.append(row(first + k, **fields, State="FAILED", ExitCode="1:0", User=users[k % len(users)]))
    put(made, *rows)


def _published(settings):
    return read_scores(settings.publish.path, trusted_uids=[os.geteuid()])


def test_a_node_that_kills_jobs_is_published_as_suspect(site):
    made, settings = site
    before = _published(settings)
    _deaths(made)
    assert renew(made["c"].db, "c", settings, NOW) == ("n1",)
    after = _published(settings)
    assert after.nodes["n1"].suspect_until == NOW - 1800 + 620 + 3600
    assert after.nodes["n2"] == before.nodes["n2"]
    assert after.id != before.id
    assert after.created == before.created  # fresh suspects don't make old scores fresh
    assert os.path.exists(os.path.join(settings.publish.path, "snapshots", f"{after.id}.json"))


def test_nothing_is_written_where_nothing_changed(site):
    made, settings = site
    _deaths(made)
    renew(made["c"].db, "c", settings, NOW)
    path = os.path.join(settings.publish.path, "scores.json")
    stamp = os.stat(path).st_mtime_ns
    assert renew(made["c"].db, "c", settings, NOW + 60) == ("n1",)
    assert renew(made["c"].db, "c", settings, NOW + 4 * 3600) == ()  # expired: the time in it says so
    assert os.stat(path).st_mtime_ns == stamp


def test_changed_settings_reach_the_submit_path_with_the_next_collect(site):
    made, settings = site
    renew(made["c"].db, "c", settings, NOW)
    before = _published(settings)
    renew(made["c"].db, "c", settings.replace(steer__mode="avoid", match__partitions=["llm"]), NOW)
    after = _published(settings)
    assert (before.settings["steer.mode"], after.settings["steer.mode"]) == ("observe", "avoid")
    assert after.settings["match.partitions"] == ["llm"] and after.id != before.id and after.nodes == before.nodes
    assert Settings.from_mapping(after.settings).steer.mode == "avoid"


@pytest.mark.parametrize(("count", "users"), [(2, ("alice", "bob")), (5, ("alice",))])
def test_too_little_makes_no_suspect(site, count, users):
    made, settings = site
    _deaths(made, count, users)
    assert renew(made["c"].db, "c", settings, NOW) == ()


def test_without_scores_the_suspects_are_still_told(site):
    made, settings = site
    os.unlink(os.path.join(settings.publish.path, "scores.json"))
    _deaths(made)
    assert renew(made["c"].db, "c", settings, NOW) == ("n1",)


def test_damaged_scores_are_an_error(site):
    made, settings = site
    path = os.path.join(settings.publish.path, "scores.json")
    with open(path, "w") as file:
        file.write("{")
    with pytest.raises(SnapshotError, match="not valid JSON"):
        renew(made["c"].db, "c", settings, NOW)
    with open(path) as file:
        assert file.read() == "{"


def test_scores_of_another_cluster_are_left_alone(site, tmp_path):
    made, settings = site
    publish(identified(_published(settings)._replace(cluster="other")), settings)
    _deaths(made)
    renew(made["c"].db, "c", settings, NOW)
    assert _published(settings).nodes["n1"].suspect_until == 0


@pytest.mark.parametrize(
    ("marks", "out"),
    [
        ((("bad", -86400, None),), True),
        ((("bad", -86400, -3600),), False),
        ((("bad", -864000, None), ("repaired", -432000, -432000)), False),
        ((("repaired", -864000, -864000), ("bad", -432000, None)), True),
        ((("ignore", -86400, None),), False),
    ],
)
def test_a_mark_counts_from_the_next_collect_for_all_jobs_until_it_ends(site, marks, out):
    made, settings = site
    _deaths(made, count=1)
    reasons = {"bad": "hardware", "repaired": "repaired", "ignore": "unknown"}
    for name, start, end in marks:
        stop = None if end is None else NOW + end
        event_rows.save(made["c"], [events.Event("n1", name, NOW + start, stop, "", "", reasons[name], "root", "mark")])
    assert renew(made["c"].db, "c", settings, NOW) == (), "a marked node is no news"
    assert _published(settings).nodes["n1"].suspect_until == (WHILE_MARKED if out else 0.0)
    stamp = os.stat(os.path.join(settings.publish.path, "scores.json")).st_mtime_ns
    renew(made["c"].db, "c", settings, NOW + 300)
    assert os.stat(os.path.join(settings.publish.path, "scores.json")).st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("kind", "at", "left"),
    [("repaired", NOW - 300, ()), ("repaired", NOW - 1700, ("n1",)), ("ignore", NOW - 3000, ()), ("ignore", NOW - 10, ("n1",))],
)
def test_deaths_before_a_repair_or_of_an_ignored_stretch_make_no_suspect(site, kind, at, left):
    made, settings = site
    _deaths(made, count=5)
    reason = "repaired" if kind == "repaired" else "unknown"
    event_rows.save(made["c"], [events.Event("n1", kind, at, None, "", "", reason, "root", "mark")])
    assert renew(made["c"].db, "c", settings, NOW) == left


@pytest.mark.parametrize(("wide", "left"), [(1, 1), (2, 2), (6, 0)])
def test_where_a_large_part_would_be_suspect_it_is_not_the_nodes(site, wide, left):
    """Two users' broken jobs on six of eight nodes would leave nothing to steer to."""
    made, settings = site
    rows = [row(50 + n, Submit=str(NOW - 9000), Start=str(NOW - 9000), End=str(NOW - 60), NodeList=f"n{n}") for n in range(1, 9)]
    for k in range(4):
        at, nodes = NOW - 1800 + 300 * k, f"n[1-{wide}]" if wide > 1 else "n1"
        fields = {"Submit": str(at), "Start": str(at), "End": str(at + 20), "NodeList": nodes, "JobName": f"w{k}"}
        rows.append(row(70 + k, **fields, State="FAILED", ExitCode="1:0", User=f"u{k % 2}"))
    put(made, *rows)
    assert len(renew(made["c"].db, "c", settings, NOW)) == left


@pytest.mark.parametrize("method", ["attributed", "published"])
def test_a_scoring_run_knows_what_the_collect_before_it_found(site, method):
    """Whatever the method: else a suspect, or a node marked bad, would be drawn until the next collect."""
    made, settings = site
    _deaths(made)
    event_rows.save(made["c"], [events.Event("n2", "bad", NOW - 100, None, "", "", "hardware", "root", "mark")])
    history = load_history(made["c"].db, "c", NOW, 30.0, settings)
    table = score_history(history, settings.replace(scoring__method=method))
    found = {row.name: row.suspect_until for row in table.rows}
    assert found == {"n1": NOW - 1800 + 620 + 3600, "n2": WHILE_MARKED}
