"""A decision can be drawn again from its log line and the archived scores."""

import json

import pytest

from slurm_hook import decide, log, mark, replay, snapshot
from slurm_hook.errors import InputError, SnapshotError
from slurm_hook.request import Request
from tests.unit.test_decide import case, four, node


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
    lines = ["noise", f"Nov 29 host workhorse[1]: {log.line(decision, by='wrapper')}", 'x {"seed":']
    fields = replay.find_line(lines, decision.seed, decision.snapshot)
    pool, chances = replay.redraw(fields, replay.archived(str(tmp_path), decision.snapshot))
    assert tuple(pool) == decision.pool and abs(sum(chances.values()) - 1) < 1e-9
    (tmp_path / "log").write_text("\n".join(lines))
    told = replay.words(
        mark.Mark(mode="steer", seed=decision.seed, snapshot=decision.snapshot), str(tmp_path), str(tmp_path / "log")
    )
    assert any("(the same)" in line for line in told)


def test_log_lines_hold_listed_fields_only_and_no_control_characters():
    text = log.line(decide.decide(case()), by="wrapper", partition="x\x1b[31m\n", argv="secret", comment="secret")
    assert "secret" not in text and text.isascii() and text.isprintable()
    assert set(json.loads(text)) <= log.FIELDS and len(text) <= log.MAX_LINE


@pytest.mark.parametrize("name", ["", "../../etc/passwd", ".hidden", "a/b", "x y"])
def test_hostile_snapshot_ids(tmp_path, name):
    with pytest.raises(InputError):
        replay.archived(str(tmp_path), name)


def test_scores_that_are_gone(tmp_path):
    with pytest.raises(SnapshotError, match="keep_days"):
        replay.archived(str(tmp_path), "s1")
