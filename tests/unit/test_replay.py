"""A decision can be drawn again from its log line and the archived scores."""

import gzip
import json
import math
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.common.errors import InputError, SnapshotError
from slurm_hook.decision import decide
from slurm_hook.explain import replay
from slurm_hook.published import decision_log, log_reader, mark, snapshot
from slurm_hook.slurm.request import Request
from tests.unit.test_decide import NAMES, case, four, node


def witness(folder, log="log", **more):
    return replay.Witness(str(folder / log), str(folder), **more)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("method", ["published", "attributed"])
@pytest.mark.parametrize(
    "request_", [four(), Request(nodes_min=6, nodes_max=6, gpus_per_node=2), Request(nodes_min=1, nodes_max=3)]
)
def test_the_same_pool_again(tmp_path, seed, method, request_):
    busy = {"state": "MIXED", "gpus_used": 2, "mem_used": 1e5}
    nodes = {f"gpu{i:02d}": node(f"gpu{i:02d}", **(busy if i % 3 else {})) for i in range(1, 17)}
    made = case(request_, nodes=nodes, seed=seed + 1, method=method, bad=("gpu05",))
    decision = decide.decide(made)
    (tmp_path / "snapshots").mkdir()
    snapshot.write_json(str(tmp_path / "snapshots"), f"{made.scores.id}.json", snapshot.scores_to_json(made.scores))
    lines = [
        "noise",
        f"Nov 29 18:01:00 host workhorse[1]: {decision_log.line(decision, by='wrapper', method=method)}",
        'x {"seed":',
    ]
    fields = log_reader.of_file(lines[1], time.time()).fields
    pool, chances = replay.redraw(fields, replay.archived(str(tmp_path), decision.snapshot))
    assert tuple(pool) == decision.pool and abs(sum(chances.values()) - 1) < 1e-9
    (tmp_path / "log").write_text("\n".join(lines))
    told = replay.words(mark.Mark(mode="steer", seed=decision.seed, snapshot=decision.snapshot), witness(tmp_path))
    assert any("(the same)" in line for line in told)
    assert any(line.startswith("cost rank ") for line in told) == (method == "attributed")
    assert told[0] == "decided by the sbatch wrapper; it is ours as ?; startable now"


STATES = (
    {}, {"state": "DOWN"}, {"state": "ALLOCATED"}, {"state": "MIXED", "gpus_used": 3, "cpus_used": 12, "mem_used": 123_456.0},
    {"mem": 256_000.0}, {"mem": 1_031_000.5}, {"gpus": 4}, {"flags": frozenset({"PLANNED"})},
)  # fmt: skip
REQUESTS = st.one_of(
    st.integers(1, 9).map(lambda n: Request(nodes_min=n, nodes_max=n)),
    st.tuples(st.integers(1, 6), st.integers(0, 6)).map(lambda t: Request(nodes_min=t[0], nodes_max=t[0] + t[1])),
    st.sets(st.integers(1, 9), min_size=1).map(
        lambda s: Request(nodes_min=min(s), nodes_max=max(s), nodes_sizes=tuple(sorted(s)))
    ),
    st.integers(1, 20).map(lambda n: Request(ntasks=n, cpus_per_task=4)),
    st.integers(1, 40).map(lambda n: Request(gpus=n)),
    st.floats(1.0, 5e6).map(lambda mib: Request(comment=mark.text(mark.Mark(demand=mib)))),
    st.floats(1.0, 5e6).map(lambda mib: Request(comment=mark.text(mark.Mark(demand=mib)), mem_node=1000.0)),
)


@given(
    REQUESTS, st.sampled_from(["published", "attributed"]), st.lists(st.sampled_from(STATES), min_size=16, max_size=16),
    st.lists(st.none() | st.floats(-2.0, 9.0), min_size=16, max_size=16), st.integers(1, 2**48),
    st.sampled_from(["mem", "gpu_mem"]), st.lists(st.floats(0, 1e4), max_size=21).map(sorted), st.none() | st.floats(1.0, 1e5),
    st.booleans(), st.floats(0.0001, 1.0),
)  # fmt: skip
def test_whatever_was_drawn_is_drawn_again(
    request_, method, states, values, seed, resource, quantiles, minutes, sacrifice, gamma
):
    """Both methods; a fixed count, ranges, lists of counts, tasks, GPUs and a total demand."""
    nodes = {name: node(name, **state) for name, state in zip(NAMES, states, strict=True)}
    values = [v if v is None or method == "published" else abs(v) + 0.01 for v in values]
    scores = {
        name: snapshot.NodeScore(name, capability=v, relative=v, switch=f"leaf{i // 4}")
        for i, (name, v) in enumerate(zip(NAMES, values, strict=True))
    }
    settings = {"scoring__capacity_resource": resource, "steer__sacrifice": sacrifice, "steer__gamma": gamma}
    made = case(request_._replace(minutes=minutes), nodes=nodes, method=method, scores=scores, seed=seed, settings=settings)
    made = made._replace(scores=made.scores._replace(cost_quantiles=tuple(quantiles)))
    decision = decide.decide(made)
    if decision.action != "steer":
        return
    fields = json.loads(decision_log.line(decision, by="wrapper"))
    published = snapshot.scores_from_json(json.loads(json.dumps(snapshot.scores_to_json(made.scores))))
    assert tuple(replay.redraw(fields, published)[0]) == decision.pool


@pytest.mark.parametrize("seed", range(1, 16))
@pytest.mark.parametrize("method", ["published", "attributed"])
def test_a_total_demand_is_told_apart_from_each_nodes(seed, method):
    """1.2 TB in all, 1 GB on each node: what the draw went by is not what it had to reach."""
    values = [0.4 + (seed * 7 + i * 13) % 17 / 5 for i in range(16)]
    scores = {name: snapshot.NodeScore(name, capability=v, relative=v) for name, v in zip(NAMES, values, strict=True)}
    nodes = {name: node(name, mem=256_000.0 * (1 + i % 4)) for i, name in enumerate(NAMES)}
    asked = Request(comment=mark.text(mark.Mark(demand=1.2e6)), mem_node=1000.0)
    settings = {"scoring__capacity_resource": "mem"}
    made = case(asked, nodes=nodes, method=method, scores=scores, seed=seed, settings=settings)
    decision = decide.decide(made)
    assert decision.action == "steer" and decision.total == 1.2e6
    fields = json.loads(decision_log.line(decision, by="wrapper"))
    assert tuple(replay.redraw(fields, made.scores)[0]) == decision.pool


def test_log_lines_hold_listed_fields_only_and_no_control_characters():
    text = decision_log.line(decide.decide(case()), by="wrapper", partition="x\x1b[31m\n", argv="secret", comment="secret")
    assert "secret" not in text and text.isascii() and text.isprintable()
    assert set(json.loads(text)) <= decision_log.FIELDS and len(text) <= decision_log.MAX_LINE


@pytest.mark.parametrize("name", ["", "../../etc/passwd", ".hidden", "a/b", "x y"])
def test_hostile_snapshot_ids(tmp_path, name):
    with pytest.raises(InputError):
        replay.archived(str(tmp_path), name)


def test_scores_that_are_gone(tmp_path):
    with pytest.raises(SnapshotError, match="keep_days"):
        replay.archived(str(tmp_path), "s1")


def test_what_dispatch_did_is_told_in_order(tmp_path, monkeypatch):
    """Of this job alone, with the draw made again; what others write to syslog does no harm."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    made = case(four(), seed=5, bad=("gpu05",))
    drawn, avoided = decide.decide(made), decide.decide(case(four(), seed=6, bad=("gpu05",), mode="avoid"))
    (tmp_path / "snapshots").mkdir()
    snapshot.write_json(str(tmp_path / "snapshots"), f"{made.scores.id}.json", snapshot.scores_to_json(made.scores))
    texts = [
        decision_log.line(drawn, by="dispatch", job=12, why="steer"),
        decision_log.line(avoided, by="dispatch", job=12, why="widen"),
        decision_log.line(avoided, by="dispatch", job=121, why="widen"), decision_log.line(avoided, by="wrapper"),
        decision_log.event("dispatch", "requeue", 12, excludes="gpu07"),
        decision_log.event("dispatch", "leave", 12, reason="x\x1b[2J"), decision_log.event("guard", "release", 12),
        '{"job":12,', '{"job":12,"by":"mallory"}', '{"job":12,"by":"dispatch","why":["a"]}',
        '{"job":12,"by":"dispatch","why":"widen","excludes":{"a":1}}', '{"job":12,"by":"dispatch","why":"mallory"}',
    ]  # fmt: skip
    heads = ["2026-11-29T18:00:00+00:00 ctl workhorse[7]: ", "Nov 29 18:01:00 ctl workhorse[7]: "]
    (tmp_path / "log").write_text("\n".join(heads[i % 2] + text for i, text in enumerate(texts)) + "\n")
    told = replay.dispatched(12, witness(tmp_path))
    pool = ",".join(drawn.pool)
    assert told[0].startswith("2026-11-29 18:00:00: dispatch confined it to gpu") and "16 nodes" in told[0], pool
    assert told[1].startswith("  drawn again with seed 5: gpu") and told[1].endswith("(the same)")
    assert told[2] == "2026-11-29 18:01:00: dispatch widened it again, as it had not started by then: gpu05 left out"
    assert told[3].endswith("requeued it under its number, as it died of its node: without gpu07")
    assert "did not requeue it" in told[4]
    assert told[5].endswith("the guard of a dispatcher that died took all our excludes off")
    assert told[6:] == [replay.UNVERIFIED]
    assert replay.dispatched(1, witness(tmp_path)) == []
    assert replay.dispatched(12, witness(tmp_path, "nolog")) == []


@pytest.mark.parametrize(("age", "kept"), [(3600, True), (-3600, False)], ids=["since the snapshot", "before it"])
def test_decisions_of_earlier_days_are_found_where_logrotate_put_them(tmp_path, age, kept):
    """Each night begins a new file; what was written before the snapshot was made tells nothing of it."""
    found = mark.Mark(mode="avoid", seed=5, snapshot="20261129T203741Z-7da14dc5")
    line = {"by": "wrapper", "match": "name", "seed": 5, "snapshot": found.snapshot, "reason": "lemons"}
    texts = [json.dumps(line, separators=(",", ":")), decision_log.event("dispatch", "requeue", 12, excludes="gpu07")]
    packed, made = tmp_path / "log.2.gz", replay.made_at(found.snapshot)
    packed.write_bytes(gzip.compress("".join(f"Nov 29 18:01:00 ctl workhorse[7]: {text}\n" for text in texts).encode()))
    os.utime(packed, (made + age, made + age))
    (tmp_path / "log").write_text("today\n")
    told = replay.words(found, witness(tmp_path))
    assert told[0].startswith(
        "decided by the sbatch wrapper; it is ours as its name fits" if kept else "no line of this decision"
    )
    assert len(replay.dispatched(12, witness(tmp_path), made)) == 2 * kept
    assert replay.dispatched(12, witness(tmp_path)) == []  # of no snapshot: nothing to look for


@pytest.mark.parametrize(("text", "when"), [("20261129T203741Z-7da14dc5", 1_795_984_661.0), ("", math.inf), ("9" * 40, math.inf)])
def test_when_a_snapshot_was_made(text, when):
    assert replay.made_at(text) == when


@pytest.mark.parametrize(
    ("rank", "word"), [(0.0, "any node is good enough"), (0.04, "cost rank 0.04 (0: any"), (1.0, "rank 1.00")]
)
def test_the_cost_rank_in_words(rank, word):
    assert word in replay.rank_words(rank)


MADE = {"by": "wrapper", "uid": 1000, "job": 12, "why": "steer", "seed": 5, "snapshot": "s", "pool": "gpu01", "count": 1}
WORDS = ["gpu[01-16]", "n" + "[0]" * 300, "x[0-65535]", "dispatch", "guard", "steer", "widen", "{pool}", "{", "1e400", "inf"]
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(sorted(decision_log.FIELDS)), ODD, max_size=8), st.text(max_size=30))
def test_no_line_that_anybody_writes_ends_explain(tmp_path_factory, odd, tail):
    """Fields of any kind and any value, in lines about this very job."""
    made = case(four(), seed=5)
    folder = tmp_path_factory.mktemp("explain")
    (folder / "snapshots").mkdir()
    snapshot.write_json(str(folder / "snapshots"), "s.json", snapshot.scores_to_json(made.scores))
    fields = {**MADE, **odd}
    texts = [json.dumps(fields), json.dumps(fields) + tail, json.dumps({**fields, "by": "dispatch", "job": 12, "seed": 5})]
    (folder / "log").write_text(
        "".join(f"2026-11-29T18:00:00+00:00 h workhorse[7]: {text}\n" for text in texts), errors="replace"
    )
    said = [
        *replay.words(mark.Mark(mode="steer", seed=5, snapshot="s"), witness(folder)),
        *replay.dispatched(12, witness(folder), 0.0),
    ]
    assert all(isinstance(line, str) for line in said)
    assert not said or replay.UNVERIFIED in said or "no line" in said[0]


MONSTERS = [
    {"free": {"1": "x[0-65535]"}}, {"free": {str(i): f"g{i}[0-999]" for i in range(200)}}, {"count": 10**17},
    {"total": -1}, {"free": {"1e300": "gpu01"}}, {"rank": 1e9}, {"free": {"1": "gpu01", "nan": "gpu02"}},
    {"free": {"1": "g" + "[0]" * 300 + "[0-65535]"}},
]  # fmt: skip


@pytest.mark.parametrize("fields", MONSTERS, ids=range(len(MONSTERS)))
def test_a_crafted_line_is_no_work(fields):
    with pytest.raises(InputError):
        replay.redraw({**MADE, "free": {"1": "gpu[01-16]"}, **fields}, case(four()).scores)


@pytest.mark.parametrize(("text", "none"), [
    ("[" * 100_000, True), ('{"a":' * 50_000, True), ('{"by":"wrapper"}', False), ('{"by":"wrapper","argv":1}', False),
    ('{"by":1}', True), ('{"seed":"5"}', True), ('{"seed":NaN}', True), ('{"seed":1e400}', True), ('{"applied":1}', True),
    ('{"free":{"1":2}}', True), ('{"by":"' + "w" * 9000 + '"}', True), ("7", True), ("", True),
])  # fmt: skip
def test_fields_are_of_the_kind_that_ours_are_of(text, none):
    assert (log_reader.parse(text) is None) is none


SERVICE = (0, 990)


@pytest.mark.parametrize(("by", "uid", "believed"), [
    ("wrapper", 1000, True), ("cli_filter", 1000, True), ("wrapper", 1001, False), ("wrapper", 0, True),
    ("dispatch", 1000, False), ("dispatch", 990, True), ("guard", 1000, False), ("job_submit", 1000, False),
    ("wrapper", None, True), ("dispatch", None, True),
])  # fmt: skip
def test_whose_lines_count(by, uid, believed):
    """The journal knows who wrote a line: a submission's counts of the job's owner, the others of root and the service user."""
    entry = log_reader.Entry({"by": by, "uid": 1000}, 0.0, uid)
    assert log_reader.believed(entry, 1000, SERVICE) is believed
    assert log_reader.believed(entry, None, SERVICE) is believed


def test_the_journal_is_believed_by_who_wrote(tmp_path, monkeypatch):
    """journalctl's output; another user's line about the job tells nothing, and what is told needs no caution."""
    found = mark.Mark(mode="avoid", seed=5, snapshot="20261129T203741Z-7da14dc5")
    line = {"by": "wrapper", "uid": 1000, "match": "name", "seed": 5, "snapshot": found.snapshot, "reason": "lemons"}
    rows = [
        ({**line, "reason": "forged"}, "1001"), (line, "1000"), ({**line, "reason": "forged"}, "77"), ({"x": 1}, "0"),
        ({"by": "dispatch", "job": 12, "action": "requeue", "excludes": "gpu01"}, "1000"),
        ({"by": "dispatch", "job": 12, "action": "requeue", "excludes": "gpu07"}, "990"),
    ]  # fmt: skip
    text = "".join(
        json.dumps(
            {"MESSAGE": json.dumps(fields, separators=(",", ":")), "_UID": uid, "__REALTIME_TIMESTAMP": "1796000000000000"}
        )
        + "\n"
        for fields, uid in rows
    )
    (tmp_path / "journalctl").write_text(f"#!/bin/sh\ncat <<'TXT'\n{text}[\n" + "{}\nTXT\n")
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    there = witness(tmp_path, "nolog", owner=1000, service=SERVICE, journal=True)
    assert replay.words(found, there) == ["decided by the sbatch wrapper; it is ours as its name fits [match] name; lemons"]
    (told,) = replay.dispatched(12, there, 0.0)
    assert told.endswith("requeued it under its number, as it died of its node: without gpu07")
