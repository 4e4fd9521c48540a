"""The entry to both methods: rows in the history's order, by the method that the settings name."""

import numpy as np
import pytest

from accounting.columns import Attempts, History, Nodes, Tasks, empty_events
from accounting.scoring import score_history
from slurm_hook.config import Settings

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
