"""The report: figures that add up, nothing of users that is executed, small and private at 5,000 nodes."""

import html.parser
import os
import stat
import time

import numpy as np
import pytest
from click.testing import CliRunner

from accounting.history.columns import WRONG
from accounting.history.columns_reader import load_history
from accounting.history.store import connect
from accounting.reports import contents, report_html
from accounting.reports.story import MOST_POINTS, Group, Story, _thinned
from accounting.scoring.outliers import Outlier
from slurm_hook.cli import workhorse
from slurm_hook.common.config import Settings
from tests import history_made

BAD = {3, 17}
END = time.time()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A collected history of 40 nodes, two of them bad, with names that attack."""
    folder = tmp_path_factory.mktemp("made")
    dump, nodes = history_made.write(folder, 40, 900, BAD, end=END, days=60)
    config = folder / "w.toml"
    config.write_text(f"[history]\npath = '{folder}/h.db'\n[publish]\npath = '{folder}/public'\n")
    how = ["--delimiter", "\x1f", "--nodes", str(nodes), "--timezone", "UTC", "-M", "alpha"]
    done = CliRunner().invoke(workhorse, ["--config", str(config), "collect", "--file", str(dump), *how])
    assert done.exit_code == 0, done.output
    db = connect(str(folder / "h.db"))
    rows = db.execute("SELECT id, name FROM nodes").fetchall()
    ids = {name: number for number, name in rows}
    for name, kind, reason in (
        ("n0004", "drain", "Xid 79 <script>document.title='owned'</script>"),
        ("n0018", "down", "\x1b[31m"),
    ):
        values = (ids[name], kind, int(END) - 9 * 86400, int(END) - 8 * 86400, reason)
        db.execute("INSERT INTO node_events (node_id, kind, start, end, state, reason, reason_class, source)"
                   " VALUES (?, ?, ?, ?, 'X', ?, 'hardware', 'slurmdbd')", values)  # fmt: skip
    for name, number in ids.items():
        db.execute("UPDATE node_specs SET switch = ? WHERE node_id = ?", (f"leaf{int(name[1:]) // 10}", number))
    return folder, config, db


@pytest.fixture(scope="module")
def found(made):
    names = history_made.HOSTILE
    what = {"by": "wrapper", "action": "avoid", "nodes": "<b>", "fallback": "waiting"}
    lines = [{"time": END - i * 3600, "reason": names[i % len(names)], **what} for i in range(60)]
    return contents.gather(made[2], "alpha", Settings(), as_of=END, decisions=lines)


def test_figures_add_up(made, found):
    o = found.overview
    history = load_history(made[2], "alpha", END, 90, Settings())
    hours = (history.tasks.end - history.tasks.start) / 3600
    lost = history.attempts.outcome[history.tasks.attempt] == WRONG
    assert o.nodes == 40 == sum(len(block.cells) for block in found.blocks)
    assert o.node_hours == pytest.approx(hours.sum()) and o.lost_hours == pytest.approx(hours[lost].sum())
    assert 0 < o.node_lost_hours < o.lost_hours
    assert o.failures == int((history.attempts.outcome == WRONG).sum())
    assert sum(w.by_nodes for w in found.weeks) == pytest.approx(o.node_failures)
    assert sum(w.by_nodes + w.by_jobs for w in found.weeks) == pytest.approx(o.failures)
    assert sum(report_html.histogram(found)) == o.scored
    assert [block.name for block in found.blocks] == [f"leaf{i}" for i in range(5)]
    assert sum(sum(counts.values()) for _, counts in found.by_day) == 60 == sum(found.routes.values())
    assert found.fallbacks == {"waiting": 60} and "why: 60 waiting" in report_html.render(found)


def test_planted_nodes_are_the_worst_and_are_blamed(found):
    planted = {history_made.name(number) for number in BAD}
    assert {worst.cell.name for worst in found.worst[:2]} == planted
    assert all(worst.cell.lemon and "scontrol update" in worst.command and worst.words for worst in found.worst[:2])
    blamed = [f.suspects[0][0] for f in found.failures if f.suspects and f.suspects[0][1] > 0.6]
    assert blamed and set(blamed) <= planted
    for worst in found.worst:
        assert all(0 <= f.blame <= 1 for f in worst.story.failures)
        assert all(g.start < g.end and g.tasks >= 1 for g in worst.story.groups)
    assert [e.reason_class for e in found.worst[0].story.events] == ["hardware"]


def test_a_node_that_only_stands_out_is_told_without_a_command(made, monkeypatch):
    one = Outlier("n0004", 9, 1.0, 3, 1e-9, (5, 4))
    monkeypatch.setattr(contents, "outliers", lambda *_: [one])
    monkeypatch.setattr(contents.lemons, "describe", lambda *_: [])
    again = contents.gather(made[2], "alpha", Settings(), as_of=END, decisions=[])
    assert [(w.words, w.command) for w in again.worst if w.words] == [(one.words, "")]
    html = report_html.render(again)
    assert "9 jobs of 3 users failed on it after over 2 h" in html and "<p><code>" not in html


def a_cell(name, relative, **more):
    usual = {"low": None, "high": None, "hazard": None, "tasks": 9, "lemon": False, "suspect": False, "note": ""}
    return contents.Cell(**{"name": name, "relative": relative, **usual, **more})


def test_worst_nodes_in_an_order_that_ties_do_not_change():
    """Lemons, suspects, capability to two digits, blame, work done, then names as people count."""
    ordered = [
        (a_cell("n9", 0.9, lemon=True), 0.0), (a_cell("n8", 0.2, suspect=True), 0.0), (a_cell("n7", 0.3), 0.0),
        (a_cell("n6", 0.5011), 2.0), (a_cell("n5", 0.5009, tasks=30), 1.0), (a_cell("n2", 0.5), 1.0), (a_cell("n10", 0.5), 1.0),
        (a_cell("n1", None), 9.0),
    ]  # fmt: skip
    for seed in range(5):
        mixed = [ordered[i] for i in np.random.default_rng(seed).permutation(len(ordered))]
        assert [c.name for c, _ in sorted(mixed, key=lambda pair: contents._badness(*pair))] == [c.name for c, _ in ordered]


def test_nodes_that_do_not_stand_out_are_not_called_worst(found):
    assert all(w.cell.lemon or w.cell.suspect or w.cell.relative < contents.ALIKE for w in found.worst)


def test_shares_of_blame_of_one_failure_are_at_most_one(found):
    for failure in found.failures:
        assert failure.nodes >= 2 and failure.lost_hours > 0 and failure.sentence
        if not failure.known:
            assert failure.own + sum(share for _, share in failure.suspects) <= 1.000001
    assert [f.time for f in found.failures] == sorted((f.time for f in found.failures), reverse=True)


class Page(html.parser.HTMLParser):
    """What a browser would make of the page, as far as it matters here."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.stack = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.stack.append(tag)

    def handle_endtag(self, tag):
        assert tag == self.stack.pop(), "tags that don't match: something was not escaped"

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


VOID = {"meta", "link"}


def test_nothing_of_users_becomes_markup(found):
    text = report_html.render(found)
    page = Page("".join(line for line in text.splitlines(True) if not line.startswith(("<meta", "<link"))))
    assert not {"script", "img", "iframe", "object", "embed", "form", "b"} - {"b"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not [value for name, value in page.attributes if name in ("href", "src") and not (value or "").startswith("data:,")]
    shown = "".join(page.text)
    assert "<script>document.title='owned'</script>" in shown, "the name is there, as text"
    assert "{{ 7 * 7 }}" in shown
    assert all(ch.isprintable() or ch == "\n" for ch in text), "control and direction characters are gone"
    assert "a" * 200 not in text, "endless names are cut"
    assert "default-src 'none'" in text


def test_file_is_private_whole_and_replaces_a_link(tmp_path):
    path, target = tmp_path / "report.html", tmp_path / "target"
    target.write_text("mine")
    path.symlink_to(target)
    before = os.umask(0)
    try:
        report_html.write(str(path), "text")
    finally:
        os.umask(before)
    assert path.read_text() == "text" and not path.is_symlink() and target.read_text() == "mine"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(Exception, match="can't be written"):
        report_html.write(str(tmp_path / "none" / "r.html"), "text")


def test_command(made, tmp_path):
    config = made[1]
    out = tmp_path / "r.html"
    done = CliRunner().invoke(workhorse, ["--config", str(config), "report", "-o", str(out)])
    assert done.exit_code == 0 and "40 nodes" in done.output and "2 lemons" in done.output
    before = CliRunner().invoke(workhorse, ["--config", str(config), "report", "-o", str(out), "--as-of", "now-300days"])
    assert before.exit_code == 0, "a stretch without work is a report too"
    assert "No failure" in out.read_text()


def test_five_thousand_nodes_stay_small(found):
    cell = found.blocks[0].cells[0]
    many = [contents.Block(f"leaf{i}", tuple(cell for _ in range(36))) for i in range(139)]
    text = report_html.render(contents.Report(**{**found.__dict__, "blocks": tuple(many)}))
    assert len(text) < 3_000_000
    drawn = report_html.heat_map(many)
    assert sum(len(block.cells) for block in drawn) == 139 * 36
    places = {(x, y) for _, x, y in drawn[0].cells}
    assert len(places) == 36 and max(y for _, y in places) + drawn[0].side < drawn[0].height


def test_timelines_stay_in_their_frame_and_are_thinned():
    points = tuple((float(t), 1.0 + t % 3) for t in range(5000))
    group = Group(0.0, 5000.0, 5000, 3.0, -0.2, points)
    thin = _thinned([group, group])
    assert (
        sum(len(g.points) for g in thin) <= MOST_POINTS + 4
        and thin[0].points[0] == points[0]
        and thin[0].points[-1] == points[-1]
    )
    line = report_html.timeline(Story("n", thin, (), (), 1.0, 1.0), 1000.0, 4000.0)
    assert all(0 <= mark.x <= report_html.WIDE and mark.x + mark.width <= report_html.WIDE + 2 for mark in line.groups)
    for text in line.lines:
        xy = np.array([[float(v) for v in pair.split(",")] for pair in text.split()])
        assert xy[:, 0].min() >= 0 and xy[:, 0].max() <= report_html.WIDE and xy[:, 1].min() >= 48 and xy[:, 1].max() <= 92


@pytest.mark.parametrize("ordered", [["n1", "n2", "n10"], ["a", "a2b9", "a2b10", "b1"], ["1", "x", "٣"]])
def test_names_in_human_order(ordered):
    assert sorted(ordered[::-1], key=contents.hostlist_key) == ordered
