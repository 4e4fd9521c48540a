"""What earlier runs left gives what reading everything anew gives, whatever happens to the history in between."""

import sqlite3
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.history import event_rows, maintenance, node_rows, settled
from accounting.history.columns_reader import load_history, window_of
from accounting.history.schema import BLOCK_BITS
from accounting.publishing import refresh
from accounting.scoring import carried
from accounting.sources import events, node_inventory
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import StoreError
from tests.accounting_rows import put, row, stores

DAY = 86_400
BEGIN = 1_700_000_000


def same(one, other):
    """Both histories, column by column."""
    for table in ("tasks", "attempts", "nodes", "events"):
        left, right = getattr(one, table), getattr(other, table)
        for field in fields(left):
            np.testing.assert_array_equal(getattr(left, field.name), getattr(right, field.name), f"{table}.{field.name}")
    assert one.notes == other.notes


def next_block(store):
    """What is collected from now on goes into a block of its own: those before it have all their attempts."""
    number = ((store.next_attempt_id() >> BLOCK_BITS) + 1) << BLOCK_BITS
    store.conn.execute(
        "INSERT INTO attempts (id, cluster_id, job_id, submit, digest, is_open, label, work_id, state_id, nnodes, node_list,"
        " nsteps, flags) SELECT ?, c.id, ?, 0, x'00', 0, '', w.id, s.id, 0, '', 0, 0 FROM clusters c, works w, states s"
        " WHERE c.name = 'far' LIMIT 1",
        (number, number),
    )


def a_job(draw, number, now):
    """A row of a job that began in the last ten days."""
    start = now - draw(st.integers(0, 10 * DAY))
    end = start + draw(st.sampled_from([0, 60, 3000, 40_000, 300_000]))
    state = draw(st.sampled_from(["COMPLETED", "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT", "CANCELLED"]))
    width = draw(st.integers(1, 3))
    first = draw(st.integers(1, 4))
    names = f"n[{first}-{first + width - 1}]"
    mem = draw(st.sampled_from([1000, 8000, 30_000]))
    still = end > now
    return row(
        number, Submit=str(start - 10), Start=str(start), End="Unknown" if still else str(end),
        State="RUNNING" if still else state, ExitCode="1:0" if state == "FAILED" else "0:0", NodeList=names,
        AllocNodes=str(width), JobName=f"w{number % 3}", User=draw(st.sampled_from(["alice", "bob", "carol"])),
        AllocTRES=f"cpu=8,mem={mem * width}M,node={width}",
    )  # fmt: skip


def disturb(draw, made, now, number):
    """Something that changes what is known of the past."""
    store, what = made["c"], draw(st.sampled_from(["late", "changed", "mark", "event", "spec", "prune", "nothing"]))
    if what == "late":
        put(made, a_job(draw, 500 + number, now - draw(st.integers(0, 30)) * DAY))
    elif what == "changed":
        put(made, a_job(draw, draw(st.integers(1, 20)), now))
        store.conn.execute("UPDATE attempts SET state_id = 1 WHERE id = (SELECT min(id) FROM attempts)")
    elif what == "mark":
        store.conn.execute(
            "INSERT OR IGNORE INTO job_marks SELECT cluster_id, job_id, submit, 'wrong', NULL, NULL, 0 FROM attempts"
            " WHERE job_id = ?",
            (draw(st.integers(1, 20)),),
        )
    elif what == "event":
        kind = draw(st.sampled_from(["down", "drain", "repaired", "bad", "ignore"]))
        start = now - draw(st.integers(0, 20 * DAY))
        reason = draw(st.sampled_from(["hardware", "planned", "unknown", "repaired"]))
        end = draw(st.sampled_from([None, start + DAY]))
        event_rows.save(store, [events.Event(f"n{draw(st.integers(1, 6))}", kind, start, end, "", reason, reason, "", "mark")])
    elif what == "spec":
        node_rows.save(
            store, [node_inventory.NodeSpec(f"n{draw(st.integers(1, 6))}", draw(st.sampled_from([32_000, 64_000])))], now, "file"
        )
    elif what == "prune":
        maintenance.prune(store.db, store.path, now - 20 * DAY)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_nights_give_the_same_as_reading_everything_anew(tmp_path_factory, data):
    made = stores(tmp_path_factory.mktemp("db") / "h.db")
    store, now, number = made["c"], BEGIN, 1
    node_rows.save(store, [node_inventory.NodeSpec(f"n{i}", 32_000) for i in range(1, 7)], BEGIN - 40 * DAY, "file")
    made["far"]
    for _ in range(data.draw(st.integers(2, 4))):
        count = data.draw(st.integers(1, 12))
        put(made, *(a_job(data.draw, number + i, now) for i in range(count)))
        number += count
        next_block(store)
        disturb(data.draw, made, now, number)
        settled.settle(store.db, window_of(store.db, "c", now, 15))
        disturb(data.draw, made, now, number)
        moment = now - data.draw(st.sampled_from([0, 0, 3 * DAY]))
        same(*(load_history(store.db, "c", moment, 15, Settings(), kept=kept) for kept in (True, False)))
        now += data.draw(st.sampled_from([1, 1, 9])) * DAY


def block(made):
    return [r[0] for r in made["c"].conn.execute("SELECT block FROM settled WHERE cluster_id = 1 ORDER BY block")]


@pytest.fixture
def night(tmp_path):
    """A history of one settled block and a job after it."""
    made = stores(tmp_path / "h.db")
    made["c"], made["far"]
    put(made, *(row(i, Start=str(BEGIN + i), End=str(BEGIN + 60 + i), Submit=str(BEGIN)) for i in range(1, 6)))
    next_block(made["c"])
    put(made, row(9, Start=str(BEGIN + 9), End=str(BEGIN + 99), Submit=str(BEGIN)))
    return made, window_of(made["c"].db, "c", BEGIN + DAY, 15)


def test_only_blocks_with_all_their_attempts_are_kept_and_once(night):
    made, window = night
    assert settled.settle(made["c"].db, window) == 1 and block(made) == [0]
    assert settled.settle(made["c"].db, window) == 0


def test_what_is_kept_is_read_in_place_of_the_rows(night):
    """With the rows of the block's tasks gone behind its back, what is kept still tells of them."""
    made, window = night
    settled.settle(made["c"].db, window)
    made["c"].conn.execute("DELETE FROM tasks")
    assert len(settled.read(made["c"].db, window).tasks["node"]) == 5
    assert len(settled.read(made["c"].db, window, kept=False).tasks["node"]) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda made: put(made, row(2, Start=str(BEGIN + 2), End=str(BEGIN + 900), Submit=str(BEGIN), State="FAILED")),
        lambda made: made["c"].conn.execute("DELETE FROM attempts WHERE job_id = 3"),
        lambda made: maintenance.prune(made["c"].db, made["c"].path, BEGIN + 62),
    ],
    ids=["a row comes changed", "an attempt goes", "old ones are pruned"],
)
def test_a_change_drops_the_block(night, change):
    made, window = night
    settled.settle(made["c"].db, window)
    change(made)
    assert block(made) == []


def test_a_block_whose_last_ids_are_given_out_again_is_dropped(night):
    made, window = night
    settled.settle(made["c"].db, window)
    made["c"].conn.execute("DELETE FROM attempts WHERE id > 5")
    assert block(made) == [0]
    put(made, row(10, Start=str(BEGIN + 9), End=str(BEGIN + 99), Submit=str(BEGIN)))
    assert block(made) == []


def test_the_same_row_again_leaves_the_block(night):
    made, window = night
    settled.settle(made["c"].db, window)
    put(made, row(2, Start=str(BEGIN + 2), End=str(BEGIN + 62), Submit=str(BEGIN)))
    assert block(made) == [0]


def test_blocks_that_left_the_window_are_forgotten(night):
    made, window = night
    settled.settle(made["c"].db, window)
    settled.settle(made["c"].db, window_of(made["c"].db, "c", BEGIN + 90 * DAY, 15))
    assert block(made) == []


def test_a_failed_write_keeps_nothing(night, monkeypatch):
    made, window = night

    def broken(rows):
        raise MemoryError

    monkeypatch.setattr(settled, "_packed", broken)
    with pytest.raises(MemoryError):
        settled.settle(made["c"].db, window)
    assert block(made) == [] and not made["c"].conn.in_transaction


def test_an_empty_window_has_the_columns_of_any_other(night):
    made, window = night
    full = settled.read(made["c"].db, window)
    empty = settled.read(made["c"].db, window._replace(start=9e9, as_of=9.1e9))
    for some, none in zip(full, empty):
        assert {n: v.dtype for n, v in some.items()} == {n: v.dtype for n, v in none.items()}
        assert all(len(v) == 0 for v in none.values())


def test_a_night_gives_the_same_scores_with_and_without_what_was_left(tmp_path):
    """Five nights; in the last the past has changed. A full run that writes leaves anew what it dropped."""
    made = stores(tmp_path / "h.db")
    store = made["c"]
    made["far"]
    node_rows.save(store, [node_inventory.NodeSpec(f"n{i}", 8000) for i in (1, 2)], BEGIN, "file")
    chosen = Settings({"publish.path": str(tmp_path), "scoring.heavy_threshold": 0.5})
    for day in range(60):
        at = BEGIN + day * DAY
        jobs = [(1, 1, 7000), (2, 2, 500), (3, 1, 400), (4, 2, 6000)]
        put(made, *(
            row(day * 10 + k, Submit=str(at), Start=str(at + k * 9000), End=str(at + k * 9000 + 8000), NodeList=f"n{n}",
                AllocTRES=f"mem={mem}M", State="FAILED" if (day + k) % 9 == 0 else "COMPLETED")
            for k, n, mem in jobs
        ))  # fmt: skip
        next_block(store)
        if day >= 55:
            if day == 59:
                put(made, row(202, Submit=str(BEGIN + 20 * DAY), Start=str(BEGIN + 20 * DAY), End=str(BEGIN + 20 * DAY + 99)))
            usual = refresh.run(store.db, "c", chosen, as_of=at + DAY).scores
            full = refresh.run(store.db, "c", chosen, as_of=at + DAY, write=False, full=True).scores
            for name, node in usual.nodes.items():
                assert node.relative == pytest.approx(full.nodes[name].relative, rel=1e-9)
                assert node.hazard == pytest.approx(full.nodes[name].hazard, rel=1e-9)
    before = block(made), len(carried.past(store.db, "c"))
    assert len(before[0]) > 50 and before[1] > 10
    refresh.run(store.db, "c", chosen, as_of=at + DAY, full=True)
    assert (block(made), len(carried.past(store.db, "c"))) == before


def test_a_history_that_another_program_holds_is_named(tmp_path):
    made = stores(tmp_path / "h.db")
    put(made, row(1))
    held = sqlite3.connect(tmp_path / "h.db", isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    db = made["c"].db
    db.execute("PRAGMA busy_timeout = 0")
    for write in (lambda: settled.forget(db, 1), lambda: carried.keep_threshold(db, "c", "published", 1.0, 2.0)):
        with pytest.raises(StoreError, match=r"h\.db: locked by another program"):
            write()
    held.close()
