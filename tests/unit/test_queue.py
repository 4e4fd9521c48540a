"""`workhorse queue`: order, whose jobs are shown, and hostile names on a terminal."""

import json

import pytest
from click.testing import CliRunner

from slurm_hook.cli import group
from slurm_hook.cli import queue as cli_queue
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SlurmError
from slurm_hook.dispatch.tracking import State
from slurm_hook.pipelines import queue_view
from slurm_hook.published import mark
from slurm_hook.published.mark import Mark
from slurm_hook.slurm import jobs
from slurm_hook.slurm.jobs import Details, PastJob
from tests.unit.jobs_made import NOW, job

NAMED = mark.text(Mark(mode="avoid", pipeline="llama", stage="train"))


def stages(found, **changes):
    return queue_view.waiting_stages(found, Settings(), NOW, **{"method": "attributed", **changes})


def test_order_and_numbers_follow_the_method():
    found = [
        job(1, state="COMPLETED", start=NOW - 7200, end=NOW - 3600, comment=NAMED, node_list="n[1-2]"),
        job(2, comment=NAMED, details=Details(NOW - 1800, 0, 2, 8, 1024.0, 16)),
        job(3, comment="", details=Details(NOW - 3600, 0, 2, 8, 1024.0, 16)),
        job(4, comment="", dependency="afterok:3(unfulfilled)", details=Details(0.0, 0, 2, 8, 1024.0, 0)),
        job(5, state="RUNNING"), job(6, priority=0),
    ]  # fmt: skip
    shown = stages(found).stages
    assert [s.job for s in shown] == ["2", "3", "4"]
    first, second, third = shown
    assert first.wait == pytest.approx(0.5) and first.invested == pytest.approx(1.0)
    assert first.completion == pytest.approx((3600 + 60) / (3600 + 3 * 60))
    assert first.urgency == pytest.approx(first.wait * first.completion)
    assert first.demand == 16 * 81920 and third.demand == 1024.0
    assert (first.name, first.pipeline, second.pipeline, third.pipeline) == ("train", "llama", "#3", "#3")
    assert third.priority == 0 and third.reason == "Resources"


def record(number, hours, comment="", **changes):
    plain = {"id": number, "state": "COMPLETED", "elapsed": hours * 3600.0, "node_list": "n1", "end": NOW - 4000, "name": "x"}
    return PastJob(**{**plain, "comment": comment, **changes})


def test_what_slurm_has_forgotten_counts_when_accounting_knows_it():
    found = [
        job(2, comment=NAMED),
        job(3, comment=""),
        job(9, comment="", dependency="afterok:8(unfulfilled)"),
        job(8, comment=""),
    ]
    assert [(s.job, s.pipeline) for s in stages(found).stages] == [("2", "llama"), ("3", "#3"), ("8", "#8"), ("9", "#8")]
    records = [
        record(1, 2.0, NAMED), record(3, 0.0, end=0.0, after=(4,)), record(4, 0.5, after=(5,)), record(5, 1.0), record(6, 7.0),
        record(8, 0.0, end=0.0, after=(7,)),
    ]  # fmt: skip
    past = queue_view.past_of_user(records, found, "alice")
    rows = {s.job: (s.pipeline, s.invested) for s in stages(found, past=past).stages}
    assert rows == {"2": ("llama", 2.0), "3": ("#3", 1.5), "8": ("#7", 0.0), "9": ("#7", 0.0)}


def test_a_chain_that_only_dispatch_has_seen():
    """A dependency inside a script isn't in accounting; numbers of others' jobs change nothing."""
    found = [job(9, comment=""), job(7, comment="", user="bob")]
    records = [record(4, 1.0), record(9, 0.0, end=0.0)]
    past = queue_view.past_of_user(records, found, "alice", {9: 4, 7: 4, 55: 50})
    rows = {s.job: (s.pipeline, s.invested) for s in stages(found, past=past).stages}
    assert rows == {"9": ("#4", 1.0), "7": ("#7", 0.0)}
    assert [p.job for p in queue_view.pipeline_parts("4", found, records, "alice", NOW, seen={9: 4})] == ["4", "9"]


def test_attempts_that_slurm_still_knows_count_once():
    ended = job(1, state="COMPLETED", start=NOW - 7200, end=NOW - 3600, comment=NAMED, node_list="n1")
    found = [ended, job(2, comment=NAMED)]
    attempts = [record(1, 0.5, NAMED, end=NOW - 8000), record(1, 1.0, NAMED, end=NOW - 3600)]
    past = queue_view.past_of_user(attempts, found, "alice")
    assert stages(found, past=past).stages[0].invested == pytest.approx(1.5)


def test_who_may_see_all_sees_what_dispatch_remembers():
    """A chain whose first stages slurmctld has forgotten, and an attempt that both know."""
    runs = job(5, state="RUNNING", start=NOW - 1800, comment="", node_list="n1")
    found = [runs, job(6, comment="", dependency="afterok:5(unfulfilled)"), job(7, comment="")]
    state = State(
        chains={5: "alice#2", 6: "alice#2"}, seen={"alice#2": NOW},
        invested={"alice#2": {"2@1": 7200.0, f"5@{NOW - 1800:.0f}": 600.0}},
    )  # fmt: skip
    rows = {s.job: (s.pipeline, s.invested) for s in stages(found, past=queue_view.past_of_state(state, found, NOW)).stages}
    assert rows == {"6": ("#2", 2.5), "7": ("#7", 0.0)}


def test_others_are_counts_only():
    found = [job(1), job(2, user="bob", name="secret"), job(3, user="carol")]
    shown = stages(found, user="alice")
    assert [s.job for s in shown.stages] == ["1"] and shown.others == 2


def test_a_pipeline_with_its_finished_stages():
    found = [
        job(12, comment=NAMED, state="RUNNING", start=NOW - 1800, node_list="n[1-2]"),
        job(13, comment="", name="eval", dependency="afterok:12(unfulfilled)"), job(20), job(21, user="bob", comment=NAMED),
    ]  # fmt: skip
    prepared = mark.text(Mark(mode="avoid", pipeline="llama", stage="prepare"))
    past = [
        PastJob(11, "NODE_FAIL", 3600.0, "n3", NOW - 9000, prepared, "p"),
        PastJob(11, "COMPLETED", 1800.0, "n4", NOW - 2000, prepared, "p"),
        PastJob(12, "RUNNING", 1800.0, "n[1-2]", 0.0, NAMED, "t"), PastJob(7, "COMPLETED", 5.0, "n1", NOW, "", "else"),
    ]  # fmt: skip
    first, second, third = queue_view.pipeline_parts("llama", found, past, "alice", NOW)
    assert (first.job, first.name, first.state, first.nodes) == ("11", "prepare", "COMPLETED", "n4")
    assert (first.hours, first.node_hours) == (pytest.approx(1.5), pytest.approx(1.5))
    assert (second.state, second.hours, second.node_hours) == ("RUNNING", pytest.approx(0.5), pytest.approx(1.0))
    assert (third.name, third.state, third.after, third.turn) == ("eval", "PENDING", "12", False)
    assert [p.job for p in queue_view.pipeline_parts("#13", found, [], "alice", NOW)] == ["12", "13"]
    chain = [record(30, 1.0), record(31, 1.0, after=(30,)), record(20, 0.0, end=0.0, after=(31,)), record(40, 1.0)]
    for asked in ("20", "#20", "31", "30"):
        parts = queue_view.pipeline_parts(asked, found, chain, "alice", NOW)
        assert [p.job for p in parts] == ["20", "30", "31"], asked
    assert queue_view.pipeline_parts("llama", found, [], "carol", NOW) == ()


@pytest.mark.parametrize(
    ("dependency", "after", "never"),
    [
        ("afterok:12(failed)", "12", "12"), ("afterok:12(unfulfilled),afterok:11(failed)", "12,11", "11"),
        ("afterany:12(unfulfilled)", "12", ""), ("singleton(unfulfilled)", "", ""), ("", "", ""),
    ],
)  # fmt: skip
def test_a_stage_that_can_never_start_says_so(dependency, after, never):
    stage = job(13, comment=NAMED, dependency=dependency)
    (part,) = queue_view.pipeline_parts("llama", [stage], [], "alice", NOW)
    assert (part.after, part.never, part.turn) == (after, never, not dependency)
    cell = cli_queue._part_cells(part)[-1]
    assert cell == (f"never: {never} ended otherwise" if never else f"after {after}" if after else "" if dependency else "next")


@pytest.fixture
def slurm(monkeypatch):
    found = [job(1, name="\x1b[2Jev|il\nname"), job(2, user="bob", name="bobs")]
    monkeypatch.setattr(jobs, "load", lambda: found)
    monkeypatch.setattr(jobs, "details", lambda ids: {i: found[0].details for i in ids})
    monkeypatch.setattr(jobs, "history", lambda *_: [])
    monkeypatch.setattr(cli_queue.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(cli_queue, "_myself", lambda: "alice")


def test_command_line(slurm):
    run = CliRunner().invoke
    done = run(group.workhorse, ["queue"])
    assert done.exit_code == 0 and "\x1b" not in done.output and "bobs" not in done.output and "and 1 of others" in done.output
    lines = run(group.workhorse, ["queue", "-P", "--noheader"]).output.splitlines()
    assert len(lines) == 1 and lines[0].startswith(r"1|alice|\x1b[2Jev\x7cil\x0aname|")
    assert json.loads(run(group.workhorse, ["queue", "--json"]).output)[0]["name"] == "\x1b[2Jev|il\nname"
    assert "only root" in str(run(group.workhorse, ["queue", "-u", "bob"]).exception)
    assert "no such pipeline" in str(run(group.workhorse, ["queue", "--pipeline", "zzz"]).exception)
    assert "next" in run(group.workhorse, ["queue", "--pipeline", "1"]).output


@pytest.mark.parametrize(
    ("euid", "words", "shown"),
    [
        (1000, [], "no stage is waiting\n"), (0, [], "no stage is waiting\n"), (0, ["-u", "bob"], "no stage of bob is waiting\n"),
        (0, ["-u", "\x1b[2Jbob"], "no stage of \\x1b[2Jbob is waiting\n"), (1000, ["--json"], "[]\n"),
        (1000, ["-P"], "|".join(cli_queue.STAGE_COLUMNS) + "\n"), (1000, ["-P", "--noheader"], ""),
    ],
)  # fmt: skip
def test_an_empty_queue(slurm, monkeypatch, euid, words, shown):
    monkeypatch.setattr(jobs, "load", lambda: [])
    monkeypatch.setattr(cli_queue.os, "geteuid", lambda: euid)
    done = CliRunner().invoke(group.workhorse, ["queue", *words])
    assert (done.exit_code, done.output) == (0, shown)


def test_only_others_wait(slurm, monkeypatch):
    monkeypatch.setattr(jobs, "load", lambda: [job(2, user="bob", name="bobs"), job(3, user="carol")])
    assert CliRunner().invoke(group.workhorse, ["queue"]).output == "no stage is waiting\nand 2 of others\n"


def test_a_slurm_that_does_not_answer(slurm, monkeypatch, capsys):
    def silent(*_):
        raise SlurmError("squeue is not in PATH")

    monkeypatch.setattr(jobs, "load", silent)
    with pytest.raises(SystemExit) as left:
        group.main(["queue"])
    assert left.value.code == 69 and capsys.readouterr().err == "workhorse: squeue is not in PATH\n"


def test_finished_stages_that_accounting_can_not_tell_are_missed_aloud(slurm, monkeypatch):
    def silent(*_):
        raise SlurmError("sacct is not in PATH")

    monkeypatch.setattr(jobs, "history", silent)
    done = CliRunner().invoke(group.workhorse, ["queue", "--pipeline", "1"])
    assert done.exit_code == 0 and "finished stages are missing: sacct is not in PATH" in done.output
