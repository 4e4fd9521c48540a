"""The entry to both methods: rows in the history's order, by the method that the settings name."""

import numpy as np
import pytest

from accounting.history.columns import Attempts, History, Nodes, Tasks, empty_events
from accounting.scoring.published_method import Options
from accounting.scoring.score import score_history
from slurm_hook.common.config import Settings

H = 3600.0
T0 = 1_760_000_000.0


def _history(rows, names=("a", "b", "c"), as_of=T0 + 100 * H):
    """rows: (node index, start h, end h, demand, correct)."""
    node, start, end, demand, correct = (np.array(c, float) for c in zip(*rows)) if rows else [np.zeros(0)] * 5
    n = len(rows)
    tasks = Tasks(
        node.astype(np.int32), np.arange(n, dtype=np.int32), T0 + start * H, T0 + end * H, demand, np.full(n, 100.0), correct,
        np.zeros(n, bool),
    )  # fmt: skip
    zero = np.zeros(n, np.int32)
    outcome = np.where(correct > 0, 1, np.where(correct < 0, 2, 0)).astype(np.int8)
    attempts = Attempts(np.arange(n), zero, zero, np.arange(n, dtype=np.int32), outcome, ["u"], ["w"])
    k = len(names)
    nodes = Nodes(list(names), np.full(k, -1, np.int32), np.full(k, -1, np.int32), np.full(k, T0), np.full(k, as_of))
    return History("c", tasks, attempts, nodes, empty_events(), T0, as_of)


PUBLISHED = Settings({"scoring.method": "published", "scoring.heavy_threshold": 0.5})


def test_published_rows():
    table = score_history(_history([(0, 0, 1, 80, 1), (1, 0, 1, 80, 1), (1, 1, 3, 95, -1)]), PUBLISHED)
    assert table.method == "published"
    assert [r.name for r in table.rows] == ["a", "b", "c"]
    assert table.rows[0].capability == pytest.approx(1 / 80, rel=1e-9)
    assert table.rows[2].capability is None
    assert "median" in table.rows[2].note
    assert [r.tasks for r in table.rows] == [1, 2, 0]
    assert table.heavy_threshold == 0.5


def test_published_reads_nothing_after_as_of():
    rows = [(0, 0, 1, 80, 1), (0, 1, 2, 95, 1)]
    early = score_history(_history([*rows, (0, 50, 60, 95, -1)], as_of=T0 + 10 * H), PUBLISHED)
    assert early.rows[0] == score_history(_history(rows, as_of=T0 + 10 * H), PUBLISHED).rows[0]


def test_empty_history():
    for method in ("published", "attributed"):
        table = score_history(_history([]), Settings({"scoring.method": method}))
        assert [r.tasks for r in table.rows] == [0, 0, 0]
        assert not any(r.lemon for r in table.rows)


def test_attributed_rows_agree_with_the_attribution():
    from accounting.scoring.attributed_method import attribute
    from tests.unit.histories import history, random_rows

    h = history(random_rows(7, n_jobs=120), n_nodes=7)
    table, scored = score_history(h, Settings({"scoring.heavy_threshold": 0.5})), attribute(h, Options(0.5))
    assert table.method == "attributed"
    assert [r.hazard for r in table.rows[:6]] == pytest.approx(scored.hazard[:6].tolist())
    assert table.rows[6].capability is None  # no work there
    middle = np.median(scored.capability[:6])
    for i, row in enumerate(table.rows[:6]):
        assert row.relative == pytest.approx(scored.capability[i] / middle)
        assert row.low < row.relative < row.high
        assert row.low == pytest.approx(1 / scored.hazard_quantile(0.95)[i] / (1 + scored.breakdown[i]) / middle)


def test_interval_narrows_with_evidence():
    few = score_history(_history([(0, 0, 1, 80, 1)]), Settings())
    many = score_history(_history([(0, k, k + 1, 80, 1 if k % 9 else -1) for k in range(90)]), Settings())
    assert many.rows[0].high / many.rows[0].low < few.rows[0].high / few.rows[0].low


def test_a_carried_threshold_is_used_unless_one_is_set():
    h = _history([(0, k, k + 1, 20 + 60 * (k % 2), 1) for k in range(20)])
    assert score_history(h, Settings(), threshold=0.61).heavy_threshold == 0.61
    assert score_history(h, Settings({"scoring.heavy_threshold": 0.4}), threshold=0.61).heavy_threshold == 0.4


def test_the_threshold_is_carried_for_thirty_days(tmp_path):
    from accounting.history.store import connect
    from accounting.scoring import carried

    db = connect(str(tmp_path / "h.db"))
    db.execute("INSERT INTO clusters (name) VALUES ('c')")
    assert carried.threshold(db, "c", "attributed", 1e6) is None
    carried.keep_threshold(db, "c", "attributed", 1e6, 0.55)
    assert carried.threshold(db, "c", "attributed", 1e6 + 29 * 86400) == 0.55
    assert carried.threshold(db, "c", "attributed", 1e6 + 30 * 86400) is None
    assert carried.threshold(db, "c", "attributed", 1e6 - 1) is None  # not known yet then
    assert carried.threshold(db, "c", "published", 1e6) is None
    kinds = {carried.kind(Settings({"scoring.capacity_resource": r}), m) for r in ("mem", "gpu_mem") for m in ("", "published")}
    assert kinds == {"attributed/mem", "attributed/gpu_mem", "published/mem", "published/gpu_mem"}
