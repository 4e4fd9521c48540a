"""The published files: what is written is read again, and nothing else is trusted."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SnapshotError
from slurm_hook.published import snapshot
from slurm_hook.published.snapshot import (
    LIVE_NAME,
    SCORES_NAME,
    Live,
    NodeScore,
    Reservation,
    Scores,
    live_to_json,
    read_live,
    read_scores,
    scores_to_json,
    write_json,
)

NODES = {
    "gpu01": NodeScore("gpu01", capability=120.5, relative=1.1, tasks=9, capacity=655360.0, gpus=8, features=("a", "b")),
    "gpu02": NodeScore("gpu02", lemon=True, suspect_until=1800000000.0, partitions=("llm",), switch="leaf1"),
    "gpu03": NodeScore("gpu03"),
}
SCORES = Scores("s1", "cl", 1700000000.0, 1699999999.0, "attributed", Settings().hook_mapping(), NODES, (1.0, 2.0))
LIVE = Live(
    "cl", 1700000000.0, (Reservation("maint", 1.0, 2.0, ("gpu01",)),), {"llm": {"nodes": "gpu[01-03]"}}, "", {}, ((1.0, "gpu01"),)
)


@pytest.fixture
def folder(tmp_path):
    tmp_path.chmod(0o755)
    return str(tmp_path)


ME = [os.getuid()]


def test_round_trip(folder):
    write_json(folder, SCORES_NAME, scores_to_json(SCORES))
    write_json(folder, LIVE_NAME, live_to_json(LIVE))
    assert read_scores(folder, trusted_uids=ME) == SCORES
    assert read_live(folder, trusted_uids=ME) == LIVE
    assert sorted(os.listdir(folder)) == [LIVE_NAME, SCORES_NAME]
    assert stat.S_IMODE(os.stat(os.path.join(folder, SCORES_NAME)).st_mode) == 0o644


def test_a_failed_write_leaves_what_was_there(folder):
    write_json(folder, SCORES_NAME, scores_to_json(SCORES))
    with pytest.raises(TypeError):
        write_json(folder, SCORES_NAME, {"not json": object()})
    assert read_scores(folder, trusted_uids=ME) == SCORES
    assert os.listdir(folder) == [SCORES_NAME]
    with pytest.raises(SnapshotError, match="can't be written"):
        write_json(os.path.join(folder, "none"), SCORES_NAME, {})


def _damage(text):
    def change(path):
        with open(path, "w") as file:
            file.write(text)

    return change


def _edit(**changes):
    return lambda path: _damage(json.dumps({**json.load(open(path)), **changes}))(path)


def _fifo(path):
    os.unlink(path)
    os.mkfifo(path)


def _huge(path):
    os.truncate(path, 1 << 30)


FAULTS = {
    "missing": (os.unlink, "can't be opened"),
    "empty": (_damage(""), "not valid JSON"),
    "cut": (_damage('{"format":1,"nodes":{"gpu'), "not valid JSON"),
    "deep": (_damage("[" * 100000), "not valid JSON"),
    "list": (_damage("[]"), "not a JSON object"),
    "later format": (_edit(format=2), "format 2"),
    "no nodes": (_edit(nodes=None), "damaged"),
    "nodes as objects": (_edit(nodes={"gpu01": {"capability": 1.0}}), "damaged"),
    "names are a word": (_edit(nodes={"name": "gpu01"}), "damaged"),
    "a name twice": (_edit(nodes={"name": ["gpu01", "gpu01"]}), "damaged"),
    "a column too short": (_edit(nodes={"name": ["gpu01", "gpu02"], "capability": [1.0]}), "damaged"),
    "a place that isn't there": (_edit(nodes={"name": ["gpu01"], "switch": {"of": ["a"], "at": [1]}}), "damaged"),
    "a place from the end": (_edit(nodes={"name": ["gpu01"], "switch": {"of": ["a"], "at": [-1]}}), "damaged"),
    "places too few": (_edit(nodes={"name": ["gpu01", "gpu02"], "switch": {"of": ["a"], "at": [0]}}), "damaged"),
    "fifo": (_fifo, "not a regular file"),
    "a gigabyte": (_huge, "over the limit"),
    "writable by all": (lambda p: os.chmod(p, 0o666), "writable by others"),
    "folder writable by all": (lambda p: os.chmod(os.path.dirname(p), 0o777), "writable by others"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_or_untrusted_files_are_refused(folder, fault):
    path = write_json(folder, SCORES_NAME, scores_to_json(SCORES))
    breaks, message = FAULTS[fault]
    breaks(path)
    with pytest.raises(SnapshotError, match=message):
        read_scores(folder, trusted_uids=ME)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("target", ["file", "folder"])
def test_files_of_strangers_are_refused(folder, target):
    path = write_json(folder, SCORES_NAME, scores_to_json(SCORES))
    os.chown(path if target == "file" else folder, 12345, 12345)
    with pytest.raises(SnapshotError, match="uid 12345"):
        read_scores(folder)
    assert read_scores(folder, trusted_uids=[12345]) == SCORES


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_belongs_to_the_owner_of_the_folder(tmp_path):
    """`workhorse disable` or a collect run once by root must not lock the service user out."""
    from accounting.history.collect import one_at_a_time
    from accounting.history.store import connect
    from slurm_hook.dispatch.passes import lock

    os.chown(tmp_path, 12345, 12346)
    snapshot.write_json(str(tmp_path), "scores.json", {})
    with lock(str(tmp_path / "dispatch.json")), one_at_a_time(str(tmp_path / "h.db")):
        db = connect(str(tmp_path / "h.db"))
        owners = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in tmp_path.iterdir()}
        db.conn.close()
    assert {"scores.json", "dispatch.json.lock", "h.db.lock", "h.db"} <= set(owners) and set(owners.values()) == {(12345, 12346)}


VALUES = {
    "capability": [None, 0.5, 3, -1e299, float("nan"), float("inf"), 10**400, True, "1"], "relative": [None, 1.0],
    "lemon": [True, False, 1, None], "gpu_type": ["a100", "", 5], "features": [["a", "b"], [], "a", None],
    "tasks": [0, 7, 2.5], "of a newer version": [{"x": 1}, None],
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in VALUES.items() for value in values], ids=str)
def test_a_field_that_is_not_of_its_kind_damages_the_file(key, value):
    """Alone or among others, in both forms of a column; what a newer version tells is passed over."""
    good = {"capability": 1.0, "relative": 1.0, "lemon": False, "gpu_type": "", "features": [], "tasks": 1}
    kind = type(good.get(key))
    sound = key not in good or (type(value) is kind if kind is not float and key != "tasks" else value is None or (
        type(value) in (int, float) and -1e300 < value < 1e300))  # fmt: skip
    for column in ([good.get(key), value], {"of": [value, good.get(key)], "at": [1, 0]}):
        if sound:
            found = snapshot._made({"name": ["n1", "n2"], key: column})["n2"]
            assert key not in good or getattr(found, key) == (tuple(value) if kind is list else value)
        else:
            with pytest.raises((TypeError, ValueError, KeyError)):
                snapshot._made({"name": ["n1", "n2"], key: column})


NODE = st.builds(
    lambda **fields: NodeScore("", **fields),
    capability=st.none() | st.floats(-1e9, 1e9), lemon=st.booleans(), tasks=st.integers(0, 9),
    gpu_type=st.sampled_from(["", "a100", "h100"]), features=st.lists(st.sampled_from("ab"), max_size=2).map(tuple),
    partitions=st.sampled_from([(), ("llm",), ("llm", "small")]),
)  # fmt: skip


@given(st.dictionaries(st.text(min_size=1, max_size=4), NODE, max_size=9))
def test_whatever_is_written_is_read_again(nodes):
    scores = SCORES._replace(nodes={name: node._replace(name=name) for name, node in nodes.items()})
    assert snapshot.scores_from_json(json.loads(json.dumps(scores_to_json(scores)))) == scores


@pytest.mark.parametrize("nodes", [5, [], "n1", {}, {"name": None}, {"name": [5]}, {"name": ["n1"], "lemon": 1}], ids=str)
def test_nodes_that_are_none_are_a_damaged_file(nodes):
    data = {**snapshot.scores_to_json(snapshot.Scores("s", "c", 1.0, 1.0, "attributed", {}, {})), "nodes": nodes}
    with pytest.raises(SnapshotError, match="damaged"):
        snapshot.scores_from_json(data)


@pytest.mark.parametrize("last", [True, False], ids=["as written", "as older versions wrote it"])
def test_nodes_can_be_read_later(folder, last):
    node = snapshot.NodeScore('a","nodes":{', capability=1.0)
    scores = snapshot.Scores('x","nodes":{', "c", 1.0, 1.0, "attributed", {"a.b": ',"nodes":{'}, {node.name: node}, (1.0, 2.0))
    data = snapshot.scores_to_json(scores)
    if not last:
        data["cost_quantiles"] = data.pop("cost_quantiles")
    snapshot.write_json(str(folder), snapshot.SCORES_NAME, data)
    head, nodes = snapshot.read_scores_later(str(folder), trusted_uids=[os.geteuid()])
    assert head._replace(nodes=nodes()) == scores == snapshot.read_scores(str(folder), trusted_uids=[os.geteuid()])


def test_nodes_that_are_damaged_are_told_when_they_are_read(folder):
    scores = snapshot.Scores("s", "c", 1.0, 1.0, "attributed", {}, {"n1": snapshot.NodeScore("n1", capability=1.0)})
    snapshot.write_json(str(folder), snapshot.SCORES_NAME, snapshot.scores_to_json(scores))
    path = Path(folder) / snapshot.SCORES_NAME
    path.write_text(path.read_text()[:-3])
    head, nodes = snapshot.read_scores_later(str(folder), trusted_uids=[os.geteuid()])
    assert head.id == "s"
    with pytest.raises(SnapshotError, match="not valid JSON"):
        nodes()


@pytest.mark.parametrize(("ahead", "age"), [(-30, 30), (0, 0), (50, 0), (3600, 3600), (86400, 86400)])
def test_a_file_of_a_time_to_come_is_not_fresh_until_then(ahead, age):
    """Written by a clock that was set back since; a minute is what clocks differ."""
    made = snapshot.Live(cluster="c", created=1_000_000.0 + ahead)
    assert made.age(1_000_000.0) == age
