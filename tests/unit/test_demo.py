"""The demo's own words: no title is cut short where a terminal is narrow, and the verdict counts what was planted."""

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests import demo


@pytest.fixture
def printed(monkeypatch):
    def at(width):
        out = io.StringIO()
        monkeypatch.setattr(demo, "console", Console(file=out, width=width, highlight=False, soft_wrap=True))
        return out

    return at


TITLE = "A real Slurm of 16 nodes with 2 bad ones: gpu06, gpu11"


@pytest.mark.parametrize("width", [20, 40, len(TITLE), len(TITLE) + 1, len(TITLE) + 2, 80, 200])
def test_a_title_is_whole_at_every_width(printed, width):
    out = printed(width)
    with demo.step(TITLE):
        pass
    assert out.getvalue().splitlines()[0].rstrip(" ─") == TITLE
    assert max(map(len, out.getvalue().splitlines())) <= max(width, len(TITLE))


@pytest.mark.parametrize(
    ("bad", "holds", "words"),
    [
        (["n5"], True, "the planted node is among the worst four"),
        (["n1"], False, "the planted node is not among the worst four"),
        (["n4", "n5"], True, "2 of 2 planted nodes are among the worst four"),
        (["n1", "n5"], False, "1 of 2 planted nodes are among the worst four"),
    ],
)
def test_the_verdict_counts_what_was_planted(printed, bad, holds, words):
    rows = [{"name": f"n{i}", "capability": 5.0 - i} for i in range(1, 6)] + [{"name": "n6", "capability": None}]
    site = SimpleNamespace(workhorse=lambda *words: SimpleNamespace(stdout=json.dumps(rows) if "--json" in words else ""))
    out = printed(100)
    assert demo.show_scores(site, bad) is holds
    assert words in out.getvalue().splitlines()
