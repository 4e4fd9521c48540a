"""The alert rules as a Prometheus weighs them, on series that `workhorse metrics` itself has written as time goes by.

`promtool test rules` is Prometheus' own evaluator; it comes with Debian's package prometheus.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from accounting.evaluation import decisions
from accounting.reports import metrics
from accounting.sources.records import Reject
from slurm_hook import __version__
from slurm_hook.common.config import Settings
from slurm_hook.published import decision_log
from slurm_hook.published.snapshot import Live, NodeScore, Scores, live_to_json, scores_to_json, write_json
from tests.accounting_rows import put, row, stores

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "etc/prometheus/workhorse-rules.yml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool isn't here (Debian: apt-get install prometheus)")
TARGET = {"instance": "head:9100", "job": "node"}  # what scraping node_exporter adds
HOUR, DAY = 3600, 86400
ALERTS = dict(zip(*[iter(re.split(r"^ +- alert: (\w+)\n", RULES.read_text(), flags=re.MULTILINE)[1:])] * 2))
Moments = Callable[[int], "int | None"]  # now → when something was last done; None: never


def never(now: int) -> None:
    return None


def until(end: int, last: Moments) -> Moments:
    """Goes well, and stops at `end`."""
    return lambda now: last(min(now, end))


@dataclass(frozen=True)
class Site:
    """A cluster's management host, and when what was last done there. metrics: the file that node_exporter reads."""

    metrics: Moments = lambda now: now - now % 300
    collected: Moments = lambda now: now - 10
    scores: Moments = lambda now: now - now % DAY
    live: Moments = lambda now: max(now - 20, 0)
    mode: str = "steer"
    disabled: bool = False
    nodes: int = 8
    lemons: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    rejects: int = 0
    failed_open: int = 0
    target: dict = field(default_factory=lambda: TARGET)


def write_site(site: Site, folder: Path, now: int, store) -> Settings:
    """The site's files as they stand at `now`; what hasn't happened anew since isn't written anew."""
    nodes = {f"n{i}": NodeScore(f"n{i}", capability=1.0, relative=1.0, reliability=100.0, hazard=0.01, tasks=7,
                                lemon=f"n{i}" in site.lemons, suspect_until=now + 60.0 if f"n{i}" in site.suspects else 0.0)
             for i in range(site.nodes)}  # fmt: skip
    made = site.scores(now)
    if made is not None and (now == made or not (folder / "scores.json").exists() or site.suspects):
        write_json(str(folder), "scores.json", scores_to_json(Scores("id", "c", made, made, "attributed", {}, nodes)))
    seen = site.live(now)
    if seen is not None:
        write_json(str(folder), "live.json", live_to_json(Live("c", seen)))
    read = site.collected(now)
    if read is not None:
        store.set_high_water(read)
    path = folder / ("h.db" if read is not None else "none.db")
    return Settings({"publish.path": str(folder), "history.path": str(path), "steer.mode": site.mode}, str(folder / "w.toml"))


def prepare(site: Site, folder: Path):
    """Its history and its log of decisions; returns the store."""
    folder.mkdir()
    made = stores(folder / "h.db")
    made[""].conn.execute("PRAGMA synchronous = OFF")
    put(made, *[row(i) for i in range(1, 51)])
    made[""].add_rejects("sacct", [Reject("no number", f"JobIDRaw={i}") for i in range(site.rejects)], 0)
    if site.disabled:
        (folder / "disable").touch()
    line = decision_log.failure("wrapper", "slurm", "words")
    (folder / "log").write_text(f"1970-01-01T00:00:01+00:00 h workhorse: {line}\n" * site.failed_open)
    return made[""]


def series(site: Site, folder: Path, monkeypatch, minutes: int) -> list[dict[str, str]]:
    """What Prometheus has scraped each minute since 1970 began, in promtool's notation."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    store = prepare(site, folder)
    monkeypatch.setattr(decisions, "source", lambda: str(folder / "log"))
    found: dict[str, list[float | None]] = {}
    scraped, current = -1, {}
    for at, minute in enumerate(range(0, minutes + 1, step_of(minutes))):
        written = site.metrics(minute * 60)
        if written is not None and written != scraped:
            settings = write_site(site, folder, written, store)
            text = metrics.gather(settings, uids=[0, os.geteuid()], now=written).text()
            scraped, current = written, {named({**s.labels, **site.target}, s.name): s.value
                                         for f in text_string_to_metric_families(text) for s in f.samples}  # fmt: skip
        for name in current:
            found.setdefault(name, [None] * at)
        for name, values in found.items():
            values.append(current.get(name))
    return [{"series": name, "values": folded(values)} for name, values in found.items()]


def step_of(minutes: int) -> int:
    """Minutes between two scrapes; five are as many as Prometheus passes over."""
    return 1 if minutes < 300 else 5


def named(labels: dict[str, str], name: str = "") -> str:
    return name + "{" + ", ".join(f'{key}="{value}"' for key, value in sorted(labels.items())) + "}"


def folded(values: list[float | None]) -> str:
    """1 1 1 as 1x2."""
    runs = ((value, len(list(same))) for value, same in groupby(values))
    return " ".join(f"{'_' if value is None else value}x{n - 1}" if n > 1 else f"{'_' if value is None else value}"
                    for value, n in runs)  # fmt: skip


def told(alert: str, summary: str, target: dict[str, str] | None = None, **labels: str) -> dict:
    """An alert that fires, as promtool wants it: what the rules file says, with the labels' values in the description."""
    severity = re.search(r"severity: (\w+)", ALERTS[alert])[1]
    (text,) = re.findall(r'description: "(.*)"', ALERTS[alert])
    own = {**labels, **(TARGET if target is None else target)}
    description = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: own[found[1]], text)
    return {"exp_labels": {"severity": severity, **own},
            "exp_annotations": {"summary": summary, "description": description}}  # fmt: skip


def asked(minute: int, expected: dict[str, list[dict]]) -> list[dict]:
    """All alerts at a moment: those that fire, and that no other does."""
    return [{"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": expected.get(alert, [])} for alert in ALERTS]


def promtool(folder: Path, test: dict, minutes: int) -> None:
    """Fails with what promtool says. JSON is YAML too."""
    path, step = folder / "rules-test.yml", f"{step_of(minutes)}m"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": step, "tests": [{"interval": step, **test}]}))
    done = subprocess.run([PROMTOOL, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


WELL = Site()
QUIET = {"live": until(HOUR, WELL.live)}  # dispatch has died
LEMONS = ("n1", "n2", "n3")
NEVER = {"version": __version__}
OTHER = {"instance": "other:9100", "job": "node"}

# name: sites, minute, what fires then
FIRE: dict[str, tuple[list[Site], int, dict[str, list[dict]]]] = {
    "no metrics": ([Site(metrics=never)], 16, {
        "WorkhorseMetricsMissing": [told("WorkhorseMetricsMissing", "workhorse writes no metrics", {})]}),
    "timer dead": ([Site(metrics=until(HOUR, WELL.metrics))], 110, {
        "WorkhorseMetricsStale": [told("WorkhorseMetricsStale", "metrics of head:9100 were last written 50m 0s ago")]}),
    "slurmdbd down": ([Site(collected=until(HOUR, WELL.collected))], 100, {
        "WorkhorseCollectStale": [told("WorkhorseCollectStale", "accounting of c is read up to 40m 10s ago only", cluster="c")]}),
    "no history": ([Site(collected=never)], 61, {
        "WorkhorseNeverCollected": [
            told("WorkhorseNeverCollected", "head:9100 has no history of accounting that can be read", **NEVER)]}),
    "nights without scores": ([Site(scores=lambda now: 0, metrics=lambda now: now - now % 1500)], 37 * 60, {
        "WorkhorseScoresStale": [told("WorkhorseScoresStale", "scores of c are 1d 13h 0m 0s old", cluster="c")]}),
    "no scores": ([Site(scores=never)], 61, {
        "WorkhorseScoresMissing": [told("WorkhorseScoresMissing", "head:9100 has no published scores that can be read: "
                                        "submissions pass through", **NEVER)]}),
    "dispatch dead": ([Site(**QUIET)], 80, {
        "WorkhorseDispatchSilent": [
            told("WorkhorseDispatchSilent", "dispatch of c has made no pass for 20m 20s", cluster="c")]}),
    "dispatch dead beside one that observes": ([Site(**QUIET, mode="avoid"), Site(**QUIET, mode="observe", target=OTHER)], 80, {
        "WorkhorseDispatchSilent": [
            told("WorkhorseDispatchSilent", "dispatch of c has made no pass for 20m 20s", cluster="c")]}),
    "dispatch never ran": ([Site(live=never)], 16, {
        "WorkhorseDispatchMissing": [
            told("WorkhorseDispatchMissing", "head:9100 has no live.json of dispatch that can be read", mode="steer")]}),
    "a lemon": ([Site(lemons=("n7",))], 61, {
        "WorkhorseLemons": [
            told("WorkhorseLemons", "n7 of c fails far more often than the others", cluster="c", node="n7")]}),
    "many lemons": ([Site(lemons=LEMONS)], 61, {
        "WorkhorseLemons": [told("WorkhorseLemons", f"{n} of c fails far more often than the others", cluster="c", node=n)
                            for n in LEMONS],
        "WorkhorseManyLemons": [told("WorkhorseManyLemons", "37.5% of the scored nodes of c are lemons", cluster="c")]}),
    "a suspect": ([Site(suspects=("n7",))], 1, {
        "WorkhorseSuspect": [
            told("WorkhorseSuspect", "n7 of c kills jobs early and is excluded for an hour", cluster="c", node="n7")]}),
    "fail-opens": ([Site(failed_open=11)], 6, {
        "WorkhorseFailOpen": [
            told("WorkhorseFailOpen", "11 submissions of the last day passed through because our part failed")]}),
    "rows set aside": ([Site(rejects=2)], 61, {
        "WorkhorseRejectedRows": [
            told("WorkhorseRejectedRows", "2 rows of accounting of c could not be understood", cluster="c")]}),
}  # fmt: skip

# name: sites, minutes after which nothing may have fired at any of them
SILENT: dict[str, tuple[list[Site], range]] = {
    # for twenty minutes a nightly run keeps collect, and so the metrics, waiting
    "all is well": ([Site(metrics=lambda now: HOUR if HOUR <= now < HOUR + 1200 else now - now % 300)], range(0, 181, 3)),
    "two sites that are well": ([WELL, replace(WELL, target=OTHER)], range(0, 120, 30)),
    "nobody dispatches while it is off, on this host or everywhere": (
        [Site(**QUIET, disabled=True), Site(**QUIET, mode="observe", target=OTHER)], range(0, 121, 20)),
    "nobody dispatches where only is observed": ([Site(live=never, mode="observe")], range(0, 121, 20)),
    "all at the edge": ([Site(rejects=0, failed_open=10)], range(0, 121, 20)),
    "metrics that come back": ([Site(metrics=lambda now: None if now < 840 else now - now % 300)], range(0, 60)),
}  # fmt: skip


def input_of(sites: list[Site], folder: Path, monkeypatch, minutes: int) -> list[dict[str, str]]:
    return [one for i, site in enumerate(sites) for one in series(site, folder / str(i), monkeypatch, minutes)]


def test_each_alert_is_tried():
    assert len(ALERTS) >= 13 and set(ALERTS) == {alert for _, _, expected in FIRE.values() for alert in expected}


@needs_promtool
@pytest.mark.parametrize("name", FIRE)
def test_an_alert_fires_alone_and_says_where(name, tmp_path, monkeypatch):
    sites, minute, expected = FIRE[name]
    found = input_of(sites, tmp_path, monkeypatch, minute)
    promtool(tmp_path, {"input_series": found, "alert_rule_test": asked(minute, expected)}, minute)


@needs_promtool
@pytest.mark.parametrize("name", SILENT)
def test_none_fires_without_reason(name, tmp_path, monkeypatch):
    sites, minutes = SILENT[name]
    found = input_of(sites, tmp_path, monkeypatch, minutes[-1])
    promtool(tmp_path, {"input_series": found, "alert_rule_test": [one for m in minutes for one in asked(m, {})]}, minutes[-1])


@needs_promtool
def test_each_panel_of_the_dashboard_has_something_to_show(tmp_path, monkeypatch):
    dashboard = json.loads((ROOT / "etc/grafana/workhorse.json").read_text())
    asks = [target["expr"].replace("$cluster", "c") for panel in dashboard["panels"] for target in panel["targets"]]
    found = input_of([Site(failed_open=1)], tmp_path, monkeypatch, 5)
    shown = [{"expr": f"count({ask}) > bool 0", "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": 1}]} for ask in asks]
    promtool(tmp_path, {"input_series": found, "promql_expr_test": shown}, 5)


@needs_promtool
def test_prometheus_own_checker_has_nothing_to_say(tmp_path, monkeypatch):
    rules = subprocess.run([PROMTOOL, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert rules.returncode == 0, rules.stdout + rules.stderr
    site = Site(lemons=LEMONS, suspects=("n4",), rejects=1, failed_open=1)
    store = prepare(site, tmp_path / "site")
    monkeypatch.setattr(decisions, "source", lambda: str(tmp_path / "site/log"))
    text = metrics.gather(write_site(site, tmp_path / "site", 600, store), uids=[0, os.geteuid()], now=600.0).text()
    assert (
        'workhorse_fail_opens_last_day{reason="slurm"} 1.0' in text and 'workhorse_node_lemon{cluster="c",node="n1"} 1.0' in text
    )
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=text, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_words_of_the_alerts_name_what_is_there():
    """Each check of doctor that they send people to."""
    from accounting.doctor import site_checks, slurm_checks

    checks = {check.name for check in (*site_checks.CHECKS, *slurm_checks.CHECKS)}
    asked_for = set(re.findall(r"--check ([\w-]+)", RULES.read_text()))
    assert asked_for and asked_for <= checks
