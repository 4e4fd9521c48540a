"""From a dump to the published scores and the node table, through the commands as people call them."""

import json
import os

import pytest
from click.testing import CliRunner

from accounting.publishing import publish
from accounting.scoring.score import NodeRow, ScoreTable
from accounting.sources.node_inventory import NodeSpec
from slurm_hook.cli import workhorse
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SnapshotError, UsageError
from slurm_hook.published import node_table
from slurm_hook.published.snapshot import NodeScore, Scores, read_scores

HEADER = "JobIDRaw|JobID|Submit|Start|End|State|ExitCode|NodeList|NNodes|ReqMem|AllocTRES|User|Partition|JobName"
HOUR = 3600
BASE = 1_790_000_000


def _row(number, node, state, hours=2):
    start = BASE + number * HOUR
    tres = "cpu=8,mem=60000M,node=1,gres/gpu=8"
    code = "0:0" if state == "COMPLETED" else "1:0"
    return f"{number}|{number}|{start}|{start}|{start + hours * HOUR}|{state}|{code}|{node}|1|60000M|{tres}|alice|llm|train"


@pytest.fixture
def site(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "pub").mkdir()
    rows = [_row(i, f"gpu{i % 3 + 1}", "FAILED" if i % 3 == 2 else "COMPLETED") for i in range(1, 31)]
    (tmp_path / "dump.psv").write_text("\n".join([HEADER, *rows]) + "\n")
    (tmp_path / "w.toml").write_text(
        f"[history]\npath='{tmp_path}/h.db'\n[publish]\npath='{tmp_path}/pub'\n[scoring]\nwindow_days=4000.0\n"
    )
    return tmp_path


def run(site, *args, code=0):
    result = CliRunner().invoke(workhorse, ["--config", str(site / "w.toml"), *args], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_dump_to_table(site):
    run(site, "collect", "--file", str(site / "dump.psv"))
    line = run(site, "score", "--method", "published")
    assert "3 of 3 nodes scored (published)" in line
    rows = json.loads(run(site, "nodes", "--json"))
    assert [r["name"] for r in rows][-1] == "gpu3" and rows[-1]["capability"] < 0 < rows[0]["capability"]
    assert {r["tasks"] for r in rows} == {10}
    table = run(site, "nodes", "-P", "-o", "node,tasks", "-w", "gpu1\ngpu2\n")
    assert sorted(table.splitlines()) == ["NODE|TASKS", "gpu1|10", "gpu2|10"]
    assert len(run(site, "nodes", "--noheader").splitlines()) == 3
    scores = read_scores(str(site / "pub"), trusted_uids=[os.getuid()])
    assert os.path.exists(site / "pub" / "snapshots" / f"{scores.id}.json")


def test_dry_run_publishes_nothing(site):
    run(site, "collect", "--file", str(site / "dump.psv"))
    assert "gpu3" in run(site, "score", "--dry-run")
    assert not list((site / "pub").iterdir())


def test_a_mistyped_folder_is_told_and_not_made(site):
    (site / "pub").rmdir()
    run(site, "collect", "--file", str(site / "dump.psv"))
    with pytest.raises(SnapshotError, match=rf"{site}/pub: there is no such folder; .*`mkdir {site}/pub`"):
        run(site, "score")
    assert not (site / "pub").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-w", "gpu[1-9]"], "not in the published scores: gpu[4-9]"),
        (["-w", "gpu[1-"], "bracket"),
        (["-p", "none"], "no node of the published scores"),
        (["-o", "node,tate"], "no such column"),
    ],
)
def test_nodes_names_what_is_wrong(site, args, words):
    run(site, "collect", "--file", str(site / "dump.psv"))
    run(site, "score")
    with pytest.raises(Exception, match=words.replace("[", r"\[")) as caught:
        run(site, "nodes", *args)
    assert isinstance(caught.value, UsageError) or caught.value.exit_code == 1


SPEC = NodeSpec(
    "gpu1", memory_mib=64000, cpus=16, gpus=8, gpu_type="a100", features="a,b", partitions="llm,small", switch="leaf1"
)


@pytest.mark.parametrize(
    ("resource", "spec", "capacity"),
    [
        ("mem", SPEC, 64000),
        ("gpu_mem", SPEC, 8 * 81920),
        ("auto", SPEC, 8 * 81920),
        ("auto", SPEC._replace(gpus=0), 64000),
        ("auto", SPEC._replace(gpu_type="unheard_of"), 8 * 81920),
        ("auto", SPEC._replace(gpus=None, memory_mib=None), 0),
    ],
)
def test_capacity(resource, spec, capacity):
    assert publish.capacity_of(spec, Settings({"scoring.capacity_resource": resource})) == capacity


def test_snapshot_has_the_nodes_of_now_only():
    table = ScoreTable("published", 5.0, (NodeRow("gpu1", capability=2.0), NodeRow("gone", capability=1.0)), 0.5)
    scores = publish.build(table, [SPEC, NodeSpec("new")], Settings(), cluster="c", created=86400.0)
    assert sorted(scores.nodes) == ["gpu1", "new"]
    assert scores.nodes["new"].capability is None and scores.nodes["gpu1"].features == ("a", "b")
    assert scores.id.startswith("19700102T000000Z-")
    other = publish.build(table, [SPEC], Settings(), cluster="c", created=86400.0)
    assert other.id != scores.id


def test_archive_keeps_its_days(tmp_path):
    table = ScoreTable("published", 5.0, (), 0.5)
    settings = Settings({"publish.path": str(tmp_path / "pub"), "publish.keep_days": 1})
    (tmp_path / "pub").mkdir()
    for moment, left in ((0.0, 1), (86400.0, 2), (86400.0 * 2.5, 1)):
        scores = publish.build(table, [], settings, cluster="c", created=moment)
        publish.publish(scores, settings)
        path = tmp_path / "pub" / "snapshots" / f"{scores.id}.json"
        os.utime(path, (moment, moment))
        assert len(list((tmp_path / "pub" / "snapshots").iterdir())) == left


def test_old_snapshots_that_another_run_removes_meanwhile_are_no_error(tmp_path, monkeypatch):
    """collect publishes suspects while the nightly run publishes scores."""
    for number in range(3):
        (tmp_path / f"{number}.json").write_text("{}")
        os.utime(tmp_path / f"{number}.json", (0, 0))
    listed = list(os.scandir(tmp_path))
    (tmp_path / listed[0].name).unlink()
    with monkeypatch.context() as meanwhile:  # pathlib scans folders, too
        meanwhile.setattr(publish.os, "scandir", lambda folder: listed)
        publish._drop_old(str(tmp_path), 1e9)
    assert list(tmp_path.iterdir()) == []


TITLES = [name for name, _ in node_table.COLUMNS]


@pytest.mark.parametrize(("role", "own"), [("controller", True), ("login", False), (None, False)])
def test_a_controller_has_the_table_of_job_submit_on_its_own_disk(tmp_path, monkeypatch, role, own):
    (tmp_path / "shared").mkdir()
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(publish.installed, "note", lambda: {"role": role} if role else {})
    monkeypatch.setattr(publish, "STATE", str(tmp_path / "state"))
    settings = Settings({"publish.path": str(tmp_path / "shared")})
    publish.publish(publish.identified(Scores("", "a", 1e9, 1e9, "published", settings.hook_mapping(), {})), settings)
    assert (tmp_path / "state/avoid.lua").exists() is own
    if own:
        assert (tmp_path / "state/avoid.lua").read_text() == (tmp_path / "shared/avoid.lua").read_text()


@pytest.mark.parametrize("width", [200, 132, 100, 80, 60, 40])
def test_narrow_terminals_lose_columns_never_digits(width):
    nodes = [
        NodeScore(f"gpu{i:04d}", 4.56e-7 / (i + 1), 1.23, 0.4, 3.1, 1e-7, 0.0123, 1e-4, 12345, mem=768000, switch="leaf1")
        for i in range(3)
    ]
    cells = [[text(n) for _, text in node_table.COLUMNS] for n in nodes]
    titles, lines = node_table.fitting(TITLES, cells, width)
    assert {"NODE", "RELATIVE", "STATE"} <= set(titles)
    for row, full in zip(lines, cells):
        assert row == [full[TITLES.index(title)] for title in titles]
    widest = max(sum(map(len, row)) for row in [titles, *lines])
    assert widest <= max(width, 40)
    assert (titles == TITLES) == (width >= 132)


def test_names_in_published_files_reach_no_terminal_as_they_are(capsys):
    node_table.print_nodes([NodeScore("\x1b[31mn", switch="\x1b[2J", gpu_type="a\nb", gpus=1)])
    node_table.print_nodes([NodeScore("\x1b[31mn", switch="\x1b[2J", gpu_type="a\nb", gpus=1)], parsable=True)
    out = capsys.readouterr().out
    assert "\x1b" not in out and len(out.splitlines()) == 4 and "\\x1b[31mn" in out
