"""Steered against control: intervals that hold what they say, and how long it still takes."""

import numpy as np
import pytest

from accounting.cli import effect as cli_effect
from accounting.evaluation import effect, treatment
from accounting.evaluation.effect import Group
from accounting.reports import report_html
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SlurmError
from tests.unit.test_report import found as report_found
from tests.unit.test_report import made as report_made

found, made = report_found, report_made


def group(failed, lost=None, waited=None):
    failed = np.asarray(failed, float)
    return Group(
        failed, failed * 8.0 if lost is None else np.asarray(lost, float), np.ones(len(failed)) if waited is None else waited
    )


def rates(rng, n, rate):
    return (rng.random(n) < rate).astype(float)


def test_a_clear_difference_is_sure_and_none_is_not():
    rng = np.random.default_rng(1)
    clear = effect.compare(group(rates(rng, 2000, 0.02)), group(rates(rng, 500, 0.10)), weeks=8)
    assert [row.measure for row in clear] == ["failed", "lost", "waited"]
    failed, lost, waited = clear
    assert failed.high < 0 and failed.more_weeks == 0.0 and failed.low < failed.difference < failed.high
    assert lost.high < 0 and (waited.difference, waited.more_weeks) == (0.0, None)
    same = effect.compare(group(rates(rng, 2000, 0.05)), group(rates(rng, 500, 0.05)), weeks=8)[0]
    assert same.low < 0 < same.high and same.more_weeks > 0


def test_the_interval_for_failures_is_newcombes():
    """Newcombe (1998), table II, example a: 56/70 against 48/80, method 10: 0.0524 to 0.3339."""
    a, b = np.r_[np.ones(56), np.zeros(14)], np.r_[np.ones(48), np.zeros(32)]
    row = effect.compare(group(a), group(b), weeks=1)[0]
    assert (row.low, row.high) == (pytest.approx(5.24, abs=0.005), pytest.approx(33.39, abs=0.005))


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(2)
    truth, held = -0.04, 0
    for _ in range(300):
        a, b = rates(rng, 400, 0.06), rates(rng, 200, 0.10)
        row = effect.compare(Group(a, a[:0], a[:0]), Group(b, b[:0], b[:0]), weeks=1)[0]
        held += row.low <= 100 * truth <= row.high
    assert held / 300 == pytest.approx(0.95, abs=0.035)


def test_where_nothing_failed_the_interval_still_has_a_width():
    row = effect.compare(group(np.zeros(50)), group(np.zeros(20)), weeks=4)[0]
    assert row.low < 0 < row.high and row.more_weeks is None


def test_small_groups_say_nothing_and_unknown_waits_are_left_out():
    assert effect.compare(group(np.zeros(9)), group(np.zeros(50)), weeks=4) == []
    waits = np.r_[np.full(45, np.nan), np.ones(5)]
    rows = effect.compare(group(np.zeros(50), waited=waits), group(np.zeros(50)), weeks=4)
    assert [row.measure for row in rows] == ["failed", "lost"]


def test_more_weeks_grow_with_the_square_of_the_interval():
    assert effect.more_weeks(-1.0, -3.0, 1.0, weeks=4) == pytest.approx(4 * (2**2 - 1))
    assert effect.more_weeks(1.0, 0.1, 1.9, weeks=4) == 0.0
    assert effect.more_weeks(0.0, -1.0, 1.0, weeks=4) is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (0.0, "; sure"),
        (0.02, "not sure: about a week more"),
        (None, "no difference yet"),
        (12.4, "about 12 more weeks"),
        (9e9, "ten years"),
    ],
)
def test_the_verdict_in_words(more, words):
    row = effect.Difference("failed", "failures per 100 jobs", 1.0, 2.0, -1.0, -3.0, 1.0, more)
    assert cli_effect.line(row).endswith(words)


def test_only_jobs_of_the_same_time_are_compared():
    """control_share was set after a while, and taken back later."""
    found = {1: ("steer", 100.0), 2: ("control", 200.0), 3: ("avoid", 250.0), 4: ("control", 300.0), 5: ("steer", 301.0)}
    assert treatment.side_by_side(found) == ({2: "control", 3: "avoid", 4: "control"}, 100.0)
    assert treatment.side_by_side({1: ("steer", 100.0)}) == ({}, 0.0)
    assert treatment.side_by_side({}) == ({}, 0.0)


COMPARED = Settings({"steer.control_share": 0.1})


@pytest.mark.parametrize(
    ("sizes", "settings", "words"),
    [
        ((100, 50), COMPARED, ["100 steered jobs of the last 28 days against the 50", "node-hours lost per job",
                               "failures per 100 jobs: 5 steered", "hours waited per job"]),
        ((9, 50), COMPARED, ["9 steered and 50 control jobs side by side since 28 days ago: 10 of each are needed"]),
        ((100, 50), Settings(), ["control_share] is 0"]),
        (None, COMPARED, ["Not compared: sacct is not in PATH"]),
    ],
)  # fmt: skip
def test_the_report_tells_the_effect(monkeypatch, found, sizes, settings, words):
    def ask(*_):
        if sizes is None:
            raise SlurmError("sacct is not in PATH")
        return {}

    def groups(*_):
        return tuple(group((np.arange(n) % 20 == 0).astype(float)) for n in sizes)

    monkeypatch.setattr(treatment, "marks", ask)
    monkeypatch.setattr(treatment, "groups", groups)
    lines = cli_effect.told(None, "alpha", None, settings, 1_800_000_000)
    page = report_html.render(type(found)(**{**found.__dict__, "effect": tuple(lines)}))
    assert all(word.replace("control_share]", "[steer] control_share") in page for word in words), lines


def test_the_report_command_asks_for_the_effect(monkeypatch, made, tmp_path):
    from click.testing import CliRunner

    from slurm_hook.cli import workhorse

    monkeypatch.setattr(cli_effect, "told", lambda *_: ["the effect <told>"])
    out = tmp_path / "r.html"
    assert CliRunner().invoke(workhorse, ["--config", str(made[1]), "report", "-o", str(out)]).exit_code == 0
    assert "the effect &lt;told&gt;" in out.read_text()
