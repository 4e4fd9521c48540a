"""Metrics: named after Prometheus' conventions, true to the scores, and all that rules and dashboard ask for exist."""

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from accounting.evaluation import decisions
from accounting.history.store import Store, connect
from accounting.reports import metrics
from slurm_hook.cli import workhorse
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SlurmError, WorkhorseError
from slurm_hook.published import decision_log
from slurm_hook.published import decision_log as slurm_log
from slurm_hook.published.snapshot import Live, NodeScore, Scores, live_to_json, scores_to_json, write_json

ROOT = Path(__file__).resolve().parents[2]
NOW = 1_800_000_000.0


@pytest.fixture
def families(tmp_path, monkeypatch):
    """All metrics of a small site, as Prometheus reads them: (name, labels) → value."""
    monkeypatch.setattr(decisions, "source", lambda: str(decision_log))
    decision_log = tmp_path / "log"
    steered = {"by": "wrapper", "action": "avoid"}
    lines = [steered, steered, {"by": "dispatch", "action": "fail_open"}, {"by": 'evil"}\n', "action": "x\n"}]
    lines += [json.loads(slurm_log.failure("wrapper", reason, "words")) for reason in ("slurm", "snapshot", "slurm")]
    lines += [{"action": "avoid", "fallback": label} for label in ("waiting", "waiting", "dispatch", "", {"x": 1}, "made\nup")]
    lines += [{"action": "fail_open", "reason": reason} for reason in ("no answer", {"x": 1}, "slurm\n")]
    decision_log.write_text("".join(f"2027-01-15T07:00:00+00:00 h workhorse: {json.dumps(line)}\n" for line in lines))
    nodes = {
        "n1": NodeScore("n1", capability=9.0, relative=1.5, reliability=100.0, hazard=0.01, tasks=7),
        "n2": NodeScore("n2", capability=1.0, relative=0.2, reliability=2.0, hazard=0.5, tasks=3, lemon=True),
        "n3": NodeScore("n3", suspect_until=NOW + 60),
    }
    scores = Scores("id", "alpha", NOW - 60, NOW, "attributed", {}, nodes)
    write_json(str(tmp_path), "scores.json", scores_to_json(scores))
    write_json(str(tmp_path), "live.json", live_to_json(Live("alpha", NOW - 30)))
    path = str(tmp_path / "h.db")
    store = Store(connect(path), path, "alpha")
    store.set_high_water(int(NOW) - 300)
    settings = Settings({"publish.path": str(tmp_path), "history.path": path})
    found = metrics.gather(settings, uids=[0, os.geteuid()], now=NOW)
    return list(text_string_to_metric_families(found.text()))


def test_values(families):
    value = {(s.name.removeprefix("workhorse_"), *s.labels.values()): s.value for f in families for s in f.samples}
    assert value["node_capability_ratio", "alpha", "n1"] == 1.5
    assert value["node_mtbf_seconds", "alpha", "n2"] == 7200
    assert value["node_hazard_per_second", "alpha", "n2"] == pytest.approx(0.5 / 3600)
    assert ("node_capability_ratio", "alpha", "n3") not in value
    flags = ("node_lemon", "n2"), ("node_lemon", "n1"), ("node_suspect", "n3"), ("node_suspect", "n1")
    assert [value[name, "alpha", node] for name, node in flags] == [1, 0, 1, 0]
    assert [value["nodes", "alpha", s] for s in ("scored", "unscored", "lemon", "suspect")] == [2, 1, 1, 1]
    assert value["scores_timestamp_seconds", "alpha"] == NOW - 60 and value["live_timestamp_seconds", "alpha"] == NOW - 30
    assert value["collect_timestamp_seconds", "alpha"] == NOW - 300 and value["history_attempts", "alpha"] == 0
    assert value["decisions_last_day", "avoid", "wrapper"] == 7 and value["decisions_last_day", "other", "other"] == 1
    fails = {reason: value["fail_opens_last_day", reason] for reason in ("slurm", "snapshot", "no answer", "other")}
    assert fails == {"slurm": 2, "snapshot": 1, "no answer": 1, "other": 2}
    fell_back = {
        f.labels["reason"]: f.value for x in families if x.name == "workhorse_steer_fallbacks_last_day" for f in x.samples
    }
    assert fell_back == {"waiting": 2, "dispatch": 1, "other": 1, **dict.fromkeys(("nodes", "partition", "job", "comment"), 0)}
    assert value["history_size_bytes",] > 0


def test_fail_opens_are_counted_as_those_who_fail_write_them():
    """The shim's own line, where Python gives no answer, and that of the Python part."""
    (shim,) = re.findall(r"'(\{[^']*fail_open[^']*\})'", (ROOT / "etc/sbatch").read_text())
    for line in (
        shim,
        decision_log.failure("cli_filter", "slurm", "slurmctld does not answer"),
        decision_log.failure("dispatch", "snapshot", "x"),
    ):
        assert metrics.decision_key(json.loads(line))[1] == "fail_open"
    assert metrics.decision_key(json.loads(shim))[0] == "wrapper"


def test_names_follow_the_conventions(families):
    for family in families:
        assert re.fullmatch(r"workhorse_[a-z]+(_[a-z]+)*", family.name), family.name
        assert family.documentation and family.type == "gauge"
        assert not re.search(r"_(total|count|sum|hours?|minutes|days|ms|age|mib|percent)$", family.name), family.name
        assert ("timestamp" in family.name) == family.name.endswith("_timestamp_seconds")
        if family.name.endswith("_info"):
            assert all(sample.value == 1 for sample in family.samples)
        for sample in family.samples:
            assert all(re.fullmatch(r"[a-z_]+", label) for label in sample.labels)


@pytest.mark.parametrize("name", ["prometheus/workhorse-rules.yml", "grafana/workhorse.json"])
def test_every_metric_that_rules_and_dashboard_ask_for_exists(families, name):
    text = (ROOT / "etc" / name).read_text()
    asked = set(re.findall(r"\bworkhorse_[a-z_]+", text))
    assert asked and asked <= {f.name for f in families}
    labels = {f.name: {label for s in f.samples for label in s.labels} for f in families}
    for metric, selector in re.findall(r"\b(workhorse_[a-z_]+)\{([^}]*)\}", text.replace('\\"', '"')):
        assert set(re.findall(r"(\w+)\s*=", selector)) <= labels[metric], (metric, selector)


def test_alerts_have_words_for_people():
    text = (ROOT / "etc/prometheus/workhorse-rules.yml").read_text()
    alerts = re.split(r"^ +- alert: ", text, flags=re.MULTILINE)[1:]
    assert len(alerts) == len({a.split()[0] for a in alerts}) >= 8
    for alert in alerts:
        assert all(word in alert for word in ("expr:", "severity:", "summary:", "description:")), alert


def test_dashboard_is_one_that_grafana_takes():
    dashboard = json.loads((ROOT / "etc/grafana/workhorse.json").read_text())
    panels = dashboard["panels"]
    assert len({p["id"] for p in panels}) == len(panels) and all(p["targets"] and p["title"] for p in panels)
    taken = [(p["gridPos"]["x"] + dx, p["gridPos"]["y"] + dy) for p in panels
             for dx in range(p["gridPos"]["w"]) for dy in range(p["gridPos"]["h"])]  # fmt: skip
    assert len(taken) == len(set(taken)) and max(x for x, _ in taken) < 24, "panels overlap"


@pytest.mark.parametrize(("method", "told"), [("attributed", [7200.0]), ("published", [])])
def test_hours_between_failures_are_told_by_the_method_that_knows_them(method, told):
    """The published method's reliability is a contribution per MiB, often below 0."""
    found = metrics.Metrics()
    found.fill_scores(Scores("id", "c", NOW, NOW, method, {}, {"n1": NodeScore("n1", capability=1.0, reliability=2.0)}), NOW)
    assert [v["value"] for v in found.values() if v["name"] == "workhorse_node_mtbf_seconds"] == told


def test_nothing_there_is_no_error_and_the_file_is_whole_or_old(tmp_path, monkeypatch):
    monkeypatch.setattr(decisions, "source", lambda: None)
    settings = Settings({"publish.path": str(tmp_path / "none"), "history.path": str(tmp_path / "none.db")})
    found = metrics.gather(settings, uids=[0], now=NOW)
    assert "workhorse_scores_timestamp_seconds{" not in found.text()
    path = metrics.write(found, str(tmp_path))
    assert oct(os.stat(path).st_mode & 0o777) == "0o644" and os.listdir(tmp_path) == ["workhorse.prom"]
    with pytest.raises(WorkhorseError, match="can't be written"):
        metrics.write(found, str(tmp_path / "missing"))


def test_collect_writes_them_where_the_settings_say_and_goes_on_when_it_cannot(tmp_path, monkeypatch):
    monkeypatch.setattr(decisions, "source", lambda: None)
    dump, settings = tmp_path / "jobs.psv", tmp_path / "w.toml"
    dump.write_text("JobIDRaw|JobID|User|JobName|State|Submit|Start|End|NodeList|NNodes\n"
                    "1|1|a|x|COMPLETED|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T01:00:00|n1|1\n")  # fmt: skip
    for folder, written in ((tmp_path / "textfile", True), (tmp_path / "none", False)):
        (tmp_path / "textfile").mkdir(exist_ok=True)
        settings.write_text(f"[history]\npath = '{tmp_path}/h.db'\n[publish]\npath = '{tmp_path}'\nmetrics = '{folder}'\n")
        shown = CliRunner().invoke(workhorse, ["--config", str(settings), "collect", "--file", str(dump), "-M", "alpha"])
        assert shown.exit_code == 0, shown.output
        assert (folder / "workhorse.prom").exists() == written and ("can't be written" in shown.output) != written
    assert 'workhorse_history_attempts{cluster="alpha"} 1.0' in (tmp_path / "textfile/workhorse.prom").read_text()


def test_a_collect_that_slurm_does_not_answer_writes_them_all_the_same(tmp_path, monkeypatch):
    """Or a dispatcher would seem dead while slurmdbd is down."""
    monkeypatch.setattr(decisions, "source", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = tmp_path / "w.toml"
    settings.write_text(f"[history]\npath = '{tmp_path}/h.db'\n[publish]\npath = '{tmp_path}'\nmetrics = '{tmp_path}'\n")
    with pytest.raises(SlurmError):
        CliRunner().invoke(workhorse, ["--config", str(settings), "collect"], catch_exceptions=False, standalone_mode=False)
    assert "workhorse_metrics_timestamp_seconds 1" in (tmp_path / "workhorse.prom").read_text()


def test_files_are_missed_one_by_one_and_disabled_is_a_mode(tmp_path, monkeypatch):
    monkeypatch.setattr(decisions, "source", lambda: None)
    write_json(str(tmp_path), "live.json", live_to_json(Live("alpha", NOW - 30)))
    values = {"publish.path": str(tmp_path), "history.path": str(tmp_path / "none.db"), "steer.mode": "steer"}
    settings = Settings(values, str(tmp_path / "w.toml"))
    for mode in ("steer", "off"):
        text = metrics.gather(settings, uids=[0, os.geteuid()], now=NOW).text()
        assert f'workhorse_mode_info{{mode="{mode}"}} 1.0' in text
        assert "workhorse_live_timestamp_seconds{" in text and "workhorse_scores_timestamp_seconds{" not in text
        (tmp_path / "disable").touch()
