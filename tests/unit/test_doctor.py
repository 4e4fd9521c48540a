"""Doctor's checks, each against the states that it is there to tell apart."""

import gzip
import json
import os
import re
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import ClassVar

import pytest
from click.testing import CliRunner

from accounting.cli import doctor as cli_doctor
from accounting.doctor import checks, site_checks, slurm_checks
from accounting.doctor.checks import CRITICAL, OK, UNKNOWN, WARNING, Answer, Host
from accounting.evaluation import decisions
from accounting.history.store import Store, connect
from slurm_hook.cli import workhorse
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SlurmError
from slurm_hook.published import log_reader
from slurm_hook.published.snapshot import Live, NodeScore, Scores, live_to_json, scores_to_json, write_json
from tests.accounting_rows import put, row, stores

NOW = 1_800_000_000.0
CONFIG = """Configuration data as of 1795964985
AccountingStorageTRES   = cpu,mem,energy,node,billing,gres/gpu
AccountingStorageType   = accounting_storage/slurmdbd
AccountingStoreFlags    = job_comment
CliFilterPlugins        = (null)
ClusterName             = alpha
GresTypes               = gpu
JobAcctGatherType       = jobacct_gather/linux
JobSubmitPlugins        = (null)
PrivateData             = none
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 22.05.8
TopologyPlugin          = topology/tree
"""
DBD = """SLURM_VERSION          = 22.05.8
PrivateData            = jobs

SlurmDBD configuration:
MaxQueryTimeRange      = UNLIMITED
PrivateData            = none
PurgeEventAfter        = NONE
PurgeJobAfter          = 12 months*
PurgeStepAfter         = NONE
"""


class Fake(Host):
    """A host whose Slurm says what the test wants; anything not told fails as Slurm would."""

    said: ClassVar[dict] = {}

    def slurm(self, *argv):
        for words, text in self.said.items():
            if words in " ".join(argv):
                return text
        raise SlurmError(f"{argv[0]}: no answer")


def host(said=None, conf="", dbd="", **values):
    # @30 in an answer: thirty seconds before this call
    said = {k: re.sub(r"@(\d+)", lambda m: str(int(time.time()) - int(m[1])), v) for k, v in (said or {}).items()}
    settings = values.pop("settings", {})
    fake = Fake(Settings(settings), now=NOW, trusted_uids=(0, os.geteuid()), service_user="svc", **values)
    object.__setattr__(fake, "said", {"show configuration": DBD + dbd, "show config": CONFIG + conf, **said})
    return fake


SLURM_CASES = [
    ("slurm", {"ping": "Slurmctld(primary) at h is UP"}, "", OK, "UP"),
    ("slurm", {"ping": "Slurmctld(primary) at h is DOWN"}, "", CRITICAL, "DOWN"),
    ("slurm", {"ping": "Slurmctld(primary) at h is UP\nSlurmctld(backup) at i is DOWN"}, "", WARNING, "backup"),
    ("slurm", {}, "", CRITICAL, "no answer"),
    ("version", {}, "", OK, "22.05.8"),
    ("version", {}, "SLURM_VERSION = 19.05.1\n", CRITICAL, "older"),
    ("version", {}, "SLURM_VERSION = 27.11.0\n", WARNING, "newer"),
    ("version", {}, "SLURM_VERSION = nonsense\n", UNKNOWN, "no version"),
    ("slurmdbd", {"list cluster": "alpha|10.0.0.1\n"}, "", OK, "alpha"),
    ("slurmdbd", {"list cluster": "beta|10.0.0.1\n"}, "", CRITICAL, "isn't registered"),
    ("slurmdbd", {"list cluster": "alpha|\n"}, "", WARNING, "isn't connected"),
    ("slurmdbd", {}, "AccountingStorageType = accounting_storage/none\n", CRITICAL, "aren't kept"),
    ("rights", {"show user": "svc|Operator\n"}, "PrivateData = jobs\n", OK, "Operator"),
    ("rights", {"show user": "svc|None\n"}, "", WARNING, "enough to look"),
    ("rights", {"show user": ""}, "PrivateData = jobs,usage\n", CRITICAL, "PrivateData hides jobs"),
    ("kept", {}, "", OK, "job_comment"),
    ("kept", {}, "AccountingStoreFlags = (null)\n", WARNING, "job_comment"),
    ("kept", {}, "AccountingStorageTRES = cpu,mem\n", WARNING, "gres/gpu"),
    ("kept", {}, "JobAcctGatherType = jobacct_gather/none\n", WARNING, "JobAcctGatherType"),
    ("purge", {}, "", OK, "PurgeJobAfter=12 months*"),
    ("topology", {}, "", OK, "tree"),
    ("topology", {}, "TopologyPlugin = topology/block\n", WARNING, "avoid"),
    ("plugins", {}, "", OK, "optional"),
    ("clock", {"sdiag": "sdiag output at Sun (@0)\n"}, "", OK, "within"),
    ("clock", {"sdiag": "sdiag output at Sun (@30)\n"}, "", WARNING, "off"),
    ("clock", {"sdiag": "sdiag output at Sun (1000000000)\n"}, "", CRITICAL, "off"),
    ("clock", {"sdiag": "nothing\n"}, "", UNKNOWN, "doesn't tell"),
]


def one(name, fake):
    check = next(check for check in cli_doctor.CHECKS if check.name == name)
    return checks.run([replace(check, roles=(fake.role,))], fake)[0][1]


@pytest.mark.parametrize(("name", "said", "conf", "level", "words"), SLURM_CASES)
def test_checks_of_slurm(name, said, conf, level, words):
    answer = one(name, host(said, conf))
    assert (answer.level, words in answer.text) == (level, True), answer
    assert bool(answer.mend) == (level != OK), "what is wrong comes with its mend"


def test_dispatch_needs_an_operator():
    fake = host({"show user": "svc|None\n"}, settings={"steer.mode": "avoid"})
    answer = one("rights", fake)
    assert answer.level == CRITICAL and answer.mend == "sacctmgr -i modify user svc set adminlevel=Operator"
    answer = one("rights", host({"show user": ""}, settings={"steer.mode": "avoid"}))
    assert answer.level == CRITICAL and answer.mend == "sacctmgr -i add user svc account=root adminlevel=Operator"


@pytest.mark.parametrize(
    ("dbd", "level", "words"),
    [
        ("MaxQueryTimeRange = 0-12:00:00\n", CRITICAL, "refuses"),
        ("MaxQueryTimeRange = 7-00:00:00\n", OK, ""),
        ("PurgeEventAfter = 3 days\n", WARNING, "PurgeEventAfter=3 days"),
        ("PurgeJobAfter = 48 hours\n", WARNING, "within a week"),
    ],
)
def test_purge(dbd, level, words):
    answer = one("purge", host(dbd=dbd))
    assert answer.level == level and words in answer.text, answer
    assert "window_hours = 12" in answer.mend or level != CRITICAL


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("NONE", 0), ("UNLIMITED", 0), ("", 0), ("12 months*", 12 * 30 * 86400), ("30 days", 30 * 86400), ("1440 hours", 5184000),
     ("1-06:00:00", 108000), ("02:00:00", 7200)],
)  # fmt: skip
def test_durations(text, seconds):
    assert slurm_checks.duration(text) == seconds


@pytest.mark.parametrize(
    ("file", "mode", "level", "words"),
    [(None, 0, CRITICAL, "missing"), ("x = 1", 0o600, CRITICAL, "everybody"), ("x = 1", 0o644, OK, "without ours"),
     ("-- workhorse", 0o644, OK, "loads ours"),
     ('dofile("/nonexistent/workhorse_cli_filter.lua")', 0o644, WARNING, "pass without us"),
     ('-- dofile("/nonexistent/workhorse_cli_filter.lua")', 0o644, OK, "loads ours")],
)  # fmt: skip
def test_a_lua_file_that_is_missing_or_unreadable_is_critical(tmp_path, file, mode, level, words):
    if file is not None:
        (tmp_path / "cli_filter.lua").write_text(file)
        (tmp_path / "cli_filter.lua").chmod(mode)
    answer = one("plugins", host(conf=f"CliFilterPlugins = cli_filter/lua\nSLURM_CONF = {tmp_path}/slurm.conf\n"))
    assert answer.level == level and words in answer.text, answer


# --- what is ours


def published(folder, age=3600.0, live_age=30.0, **node):
    nodes = {"n1": NodeScore("n1", capability=node.pop("capability", 5.0), **node)}
    scores = Scores("id", "alpha", NOW - age, NOW - age, "attributed", Settings().hook_mapping(), nodes)
    write_json(str(folder), "scores.json", scores_to_json(scores))
    write_json(str(folder), "live.json", live_to_json(Live("alpha", NOW - live_age)))


@pytest.mark.parametrize(
    ("how", "level", "words"),
    [
        ({}, OK, "1 nodes"),
        ({"age": 40 * 3600}, WARNING, "missed"),
        ({"age": 80 * 3600}, CRITICAL, "max_age_hours"),
        ({"age": -900}, CRITICAL, "future"),
        ({"capability": None}, WARNING, "none has a capability"),
    ],
)
def test_scores(tmp_path, how, level, words):
    published(tmp_path, **how)
    answer = one("scores", host({"sinfo": "n1\nn2\n"}, settings={"publish.path": str(tmp_path)}))
    assert answer.level == level and words in answer.text, answer


def test_scores_of_nodes_that_are_gone_missing_scores_and_damaged_ones(tmp_path):
    settings = {"publish.path": str(tmp_path)}
    assert one("scores", host(settings=settings)).level == CRITICAL
    published(tmp_path)
    answer = one("scores", host({"sinfo": "n7\n"}, settings=settings))
    assert answer.level == WARNING and "n1" in answer.text
    (tmp_path / "scores.json").write_text("{")
    assert one("scores", host(settings=settings)).level == CRITICAL


@pytest.mark.parametrize(("mode", "level"), [("avoid", WARNING), ("steer", CRITICAL)])
def test_dispatcher_silent(tmp_path, mode, level):
    settings = {"publish.path": str(tmp_path), "steer.mode": mode}
    assert one("dispatcher", host(settings=settings)).level == level
    published(tmp_path, live_age=400)
    answer = one("dispatcher", host(settings=settings))
    assert answer.level == level and "7 min" in answer.text
    assert one("dispatcher", host(settings={**settings, "steer.mode": "observe"})).level == OK
    published(tmp_path, live_age=20)
    assert one("dispatcher", host(settings=settings)).level == OK


def test_writers(tmp_path):
    folder = tmp_path / "public"
    settings = {"publish.path": str(folder)}
    assert one("writers", host(settings=settings)).level == CRITICAL
    folder.mkdir(mode=0o755)
    published(folder)
    assert one("writers", host(settings=settings)).level == OK
    (folder / "scores.json").chmod(0o664)
    assert one("writers", host(settings=settings)).mend == f"chmod go-w {folder}/scores.json"
    (folder / "scores.json").chmod(0o644)
    folder.chmod(0o777)
    assert one("writers", host(settings=settings)).mend == f"chmod go-w {folder}"
    folder.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(folder / "live.json", 12345, -1)
        assert "uid 12345" in one("writers", host(settings=settings)).text


def test_history_and_collected(tmp_path):
    path = tmp_path / "history.db"
    fake = host(settings={"history.path": str(path)})
    assert one("history", fake).level == CRITICAL and one("collected", fake).level == CRITICAL
    store = Store(connect(str(path)), str(path), "alpha")
    assert one("history", fake).level == WARNING, "nothing collected yet"
    assert one("collected", fake).level == WARNING
    for age, level in ((600, OK), (7200, WARNING), (200_000, CRITICAL)):
        store.conn.execute("UPDATE clusters SET high_water = ?", (int(NOW - age),))
        assert one("collected", fake).level == level
    path.chmod(0o644)
    assert one("history", fake).mend == f"chmod 0600 {path}"
    path.chmod(0o600)
    store.conn.close()
    path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 4096)
    assert one("history", fake).level == CRITICAL


@pytest.mark.parametrize(
    ("ages", "level"),
    [
        ({"alpha": 600, "old": 30 * 86400}, OK),
        ({"alpha": 600, "beta": 2 * 86400}, CRITICAL),
        ({"alpha": 30 * 86400, "beta": 600}, CRITICAL),
        ({"old": 30 * 86400, "older": 90 * 86400}, CRITICAL),
    ],
)
def test_a_cluster_that_nobody_reads_any_more_is_no_fault(tmp_path, ages, level):
    """As after a change of ClusterName, or one `collect -M` of long ago."""
    path = str(tmp_path / "history.db")
    for name, age in ages.items():
        Store(connect(path), path, name).set_high_water(int(NOW - age))
    assert one("collected", host(settings={"history.path": path})).level == level


def test_settings_that_are_wrong_are_told_by_doctor_and_refused_elsewhere(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text("[steer]\nmode = 'on'\n")
    shown = CliRunner().invoke(workhorse, ["--config", str(path), "doctor", "--check", "settings", "--json"])
    data = json.loads(shown.output)
    assert shown.exit_code == CRITICAL and data["level"] == "critical" and "steer.mode" in data["checks"][0]["text"]
    path.write_text("[steer]\nmode = 'off'\n")
    path.chmod(0o666)
    shown = CliRunner().invoke(workhorse, ["--config", str(path), "doctor", "--check", "settings"])
    assert shown.exit_code == CRITICAL and "written by others" in shown.output
    path.chmod(0o644)
    shown = CliRunner().invoke(workhorse, ["--config", str(path), "doctor", "--check", "settings"])
    assert shown.exit_code == OK and shown.output.startswith("WORKHORSE OK: 1 of 1 checks fine\n") and "mode off" in shown.output


def script(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return str(folder)


def test_wrapper(tmp_path, monkeypatch):
    real = script(tmp_path / "real", "sbatch", "#!/bin/sh\necho slurm-wlm 22.05.8\n")
    ours = script(tmp_path / "ours", "sbatch", f"#!/bin/sh\n# sbatch of slurm-workhorse: x\nexec {real}/sbatch\n")
    broken = script(tmp_path / "broken", "sbatch", "#!/bin/sh\n# sbatch of slurm-workhorse: x\nexit 3\n")
    for path, role, level, words in [
        (f"{ours}:{real}:/bin", "login", OK, "before"),
        (f"{real}:{ours}:/bin", "login", WARNING, "comes before"),
        (f"{real}:/bin", "login", WARNING, "not in PATH"),
        (f"{real}:/bin", "controller", OK, "not in PATH"),
        (f"{ours}:/bin", "login", CRITICAL, "no sbatch"),
        (f"{broken}:{real}:/bin", "login", CRITICAL, "something else"),
    ]:
        monkeypatch.setenv("PATH", path.removesuffix(":/bin") if os.path.exists("/bin/sbatch") else path)
        answer = one("wrapper", host(role=role))
        assert answer.level == level and words in answer.text, (path, answer)


def test_switches(tmp_path, monkeypatch):
    fake = host(config_folder=str(tmp_path))
    assert one("switch", fake).level == OK
    monkeypatch.setenv("WORKHORSE_MODE", "off")
    assert one("switch", fake).level == WARNING
    (tmp_path / "disable").touch()
    assert "workhorse enable" in one("switch", fake).mend


def test_unknown_time_zone(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Atlantis")
    assert one("time-zone", host()).level == WARNING
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert one("time-zone", host()).level == OK


def test_verdict_is_nagios():
    for levels, wanted in [((), 0), ((OK,), 0), ((OK, UNKNOWN), 3), ((UNKNOWN, WARNING), 1), ((WARNING, CRITICAL, UNKNOWN), 2)]:
        assert checks.verdict([Answer(level, "") for level in levels]) == wanted


def test_unknown_checks_are_refused_with_the_list():
    shown = CliRunner().invoke(workhorse, ["doctor", "--check", "nonsense"], standalone_mode=False)
    assert "there are slurm, version" in str(shown.exception)


def test_every_check_is_listed_once_with_its_meaning():
    names = [check.name for check in cli_doctor.CHECKS]
    assert len(set(names)) == len(names)
    listed = CliRunner().invoke(workhorse, ["doctor", "--list"]).output
    assert all(check.name in listed and check.means in listed for check in cli_doctor.CHECKS)
    data = json.loads(CliRunner().invoke(workhorse, ["doctor", "--list", "--json"]).output)
    assert [(one["check"], one["means"]) for one in data] == [(check.name, check.means) for check in cli_doctor.CHECKS]


# --- decisions read back


LINE = '{"by":"wrapper","uid":1000,"action":"avoid","reason":"x"}'


@pytest.mark.parametrize(
    ("line", "when"),
    [
        (f"2027-01-15T08:00:00.123456+00:00 login1 workhorse[77]: {LINE}", 1_800_000_000.123456),
        (f"Jan 15 08:00:00 login1 workhorse[77]: {LINE}", 1_800_000_000.0),
        (f"Jan  5 08:00:00 login1 workhorse: {LINE}", 1_800_000_000.0 - 10 * 86400),
        (f"Dec 31 08:00:00 login1 workhorse: {LINE}", 1_800_000_000.0 - 15 * 86400),
    ],
)
def test_lines_of_syslog(line, when, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    found = log_reader.of_file(line, NOW + 60)
    assert found and found.time == pytest.approx(when) and found.fields["by"] == "wrapper"


HEAD = "Jan 15 08:00:00 h workhorse: "
WRONG = ["", "x", HEAD + "{", HEAD + "[]", HEAD.replace("Jan 15", "Feb 31") + LINE, HEAD.replace("workhorse", "other") + LINE,
         HEAD + "[" * 100000, HEAD + '{"a":' * 50000]  # fmt: skip


@pytest.mark.parametrize("line", WRONG, ids=range(len(WRONG)))
def test_lines_that_are_none(line):
    assert log_reader.of_file(line, NOW) is None


def test_routes(tmp_path, monkeypatch):
    log = tmp_path / "w.log"
    other = LINE.replace("wrapper", "job_submit")
    log.write_text("".join(f"2027-01-15T07:00:00+00:00 h workhorse: {text}\n" for text in (LINE, LINE, other)) + "noise\n")
    monkeypatch.setattr(decisions, "source", lambda: str(log))
    fake = host(settings={"history.path": str(tmp_path / "none.db")})
    answer = one("routes", fake)
    assert answer.level == OK and "2 by wrapper, 1 by job_submit" in answer.text
    monkeypatch.setattr(decisions, "source", lambda: None)
    assert one("routes", fake).level == UNKNOWN


def test_routes_are_those_of_seven_days_whatever_anyone_writes_to_syslog(tmp_path, monkeypatch):
    """logrotate begins a new file each night; what dispatch did to jobs is no way in."""
    log, made = tmp_path / "w.log", stores(tmp_path / "h.db")
    put(made, *[row(i, Submit=str(int(NOW) - 86400), Start=str(int(NOW) - 80000), AllocNodes="4") for i in range(1, 31)])
    lines = ['{"by":"wrapper","action":"avoid"}'] * 20 + [
        '{"by":["x"],"action":{}}',
        '{"by":{}}',
        '{"by":"mallory"}',
        '{"by":""}',
    ]
    write_log(tmp_path / "w.log.3.gz", NOW - 3 * 86400, lines)
    write_log(tmp_path / "w.log.9.gz", NOW - 9 * 86400, lines)
    write_log(log, NOW - 60, ['{"by":"dispatch","action":"avoid"}'] * 9)
    monkeypatch.setattr(decisions, "source", lambda: str(log))
    answer = one("routes", host(settings={"history.path": str(tmp_path / "h.db")}))
    assert answer.level == OK
    assert "30 jobs on at least" in answer.text and "20 by wrapper, 9 by dispatch, 2 by other (67%)" in answer.text


@pytest.mark.parametrize(
    ("drawn", "fallbacks", "mode", "level", "words"),
    [
        (30, {"waiting": 25, "nodes": 5}, "steer", OK, "30 pools drawn in 7 days, 30 decisions as in mode avoid: 25 a job"),
        (0, {"waiting": 3}, "steer", OK, "3 a job waited in the partition"),
        (1, {"waiting": 25, "<x>": 5}, "observe", WARNING, "25 a job waited in the partition, 5 other"),
        (0, {"dispatch": 25}, "steer", WARNING, "dispatch not heard of"),
        (0, {"dispatch": 25}, "avoid", OK, "no pools are drawn in mode avoid"), (0, {}, "steer", OK, "0 pools"),
    ],
)  # fmt: skip
def test_doctor_tells_why_mode_steer_acts_as_avoid(tmp_path, monkeypatch, drawn, fallbacks, mode, level, words):
    told = [{"by": "wrapper", "action": "avoid", "fallback": why} for why, times in fallbacks.items() for _ in range(times)]
    told += [{"by": "wrapper", "action": "steer"}] * drawn + [{"by": "dispatch", "action": "steer"}] * 9
    write_log(tmp_path / "w.log", NOW - 60, map(json.dumps, told))
    monkeypatch.setattr(decisions, "source", lambda: str(tmp_path / "w.log"))
    answer = one("steering", host(settings={"steer.mode": mode}))
    assert (answer.level, words in answer.text) == (level, True), answer


def write_log(path, when, lines):
    """A file of syslog, packed if so named, last written to at that moment."""
    stamp = datetime.fromtimestamp(when, timezone.utc).isoformat()
    text = "".join(f"{stamp} h workhorse: {line}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    os.utime(path, (when, when))


def test_stretches_of_time():
    assert [checks.ago(s) for s in (5, 600, 20000, 400000)] == ["5 s", "10 min", "5.6 h", "4.6 days"]
    assert site_checks.settings(host(settings_path="/nonexistent")).level == OK


@pytest.mark.parametrize(
    ("backend", "why", "level", "words"),
    [
        ("auto", None, OK, "fits Slurm 22.05"),
        ("auto", "this pyslurm can't tell requeued jobs", WARNING, "requeued jobs; sacct is used"),
        ("cli", "this pyslurm can't tell requeued jobs", OK, "as [slurm] backend says"),
        ("pyslurm", "made for another", CRITICAL, "made for another"),
    ],
)
def test_doctor_says_which_source_is_read(monkeypatch, backend, why, level, words):
    monkeypatch.setattr(slurm_checks.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(slurm_checks, "why_not_pyslurm", lambda: why)
    answer = one("pyslurm", host(settings={"slurm.backend": backend}))
    assert (answer.level, words in answer.text) == (level, True), answer


def test_doctor_survives_a_pyslurm_that_ends_its_process(tmp_path, monkeypatch):
    """As its import does where Slurm's configuration is missing."""
    (tmp_path / "pyslurm.py").write_text("import os\nos._exit(1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = one("pyslurm", host())
    assert (answer.level, answer.text) == (WARNING, "pyslurm can't be loaded; sacct is used, with the same records")
