"""A job whose mark is gone: what of its excludes is ours, by the words of its submission."""

import pytest

from slurm_hook.common.errors import SlurmError
from slurm_hook.dispatch import lost_marks, passes, updates
from slurm_hook.dispatch.tracking import State, Tracked
from tests.unit.jobs_made import NOW, job, world

SUBMIT = NOW - 600
BEFORE = "/usr/bin/sbatch --exclude=n[3,7] --comment=wh=1;m=avoid;s=s1;r=7 --parsable -N2 job.sh"
OWN = "sbatch -N2 -x n3 --exclude=n[3,7] --nodes=2 --comment=wh=1;m=steer;s=s1;r=7;x=n3 job.sh"
NONE = Tracked(submit=SUBMIT, user="n[3,7]")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (BEFORE, Tracked(submit=SUBMIT, ours="n[3,7]", before="n[3,7]")),
        (OWN, Tracked(submit=SUBMIT, user="n3", ours="n7", before="n7", confined=SUBMIT)),
        (f"sbatch --wrap=a\nb {BEFORE[15:]}", Tracked(submit=SUBMIT, ours="n[3,7]", before="n[3,7]")),
        # the excludes were changed as well, nobody of us was there, or what stands there is damaged
        (BEFORE.replace("n[3,7]", "n3"), NONE), ("sbatch -x n[3,7] -N2 job.sh", NONE), ("", NONE),
        ("sbatch --exclude=n[3,7] -N2 job.sh", NONE), (BEFORE.replace("m=avoid", "m=evil"), NONE),
        (BEFORE.replace("m=avoid;", "p=x;"), NONE), (BEFORE.replace("n[3,7]", "n[3,"), NONE),
    ],
)  # fmt: skip
def test_whose_excludes_are_whose(line, wanted):
    assert lost_marks.tracked_of(job(comment="mine", excludes="n[3,7]", submit=SUBMIT), line) == wanted


def test_only_jobs_that_nothing_else_explains_are_asked_for():
    found = [
        job(1, comment="mine", excludes="n3"), job(2, comment="", excludes="n3"), job(3, excludes="n3"),
        job(4, comment="mine"), job(5, comment="mine", excludes="n3"), job(6, comment="mine", excludes="n3", state="RUNNING"),
    ]  # fmt: skip
    assert [one.id for one in lost_marks.candidates(found, {5: Tracked()})] == [1, 2]


def answers(monkeypatch, *rows):
    """sacct answers with these rows; gives the calls."""
    calls = []

    def run(argv, **_):
        calls.append(argv)
        separator = argv[-1].partition("=")[2]
        return "".join(separator.join(row) + "\n" for row in rows)

    monkeypatch.setattr(lost_marks.commands, "run", run)
    return calls


def test_the_row_must_be_of_this_job_this_user_and_this_submission(monkeypatch):
    jobs = [job(number, comment="mine", excludes="n[3,7]", submit=SUBMIT) for number in (1, 2, 3, 4, 5)]
    when = f"{SUBMIT:.0f}"
    answers(
        monkeypatch, ("1", "alice", when, BEFORE), ("2", "bob", when, BEFORE), ("3", "alice", "17", BEFORE),
        ("4", "alice", when, f"sbatch --wrap=x\n5\nalice {BEFORE[15:]}"), ("9", "alice", when, BEFORE),
    )  # fmt: skip
    assert {number: told.ours for number, told in lost_marks.search(jobs).items()} == {1: "n[3,7]", 4: "n[3,7]"}


def test_what_is_found_is_widened_or_taken_off():
    steered, avoided = (job(n, comment="mine", excludes="n[3,7]", submit=SUBMIT) for n in (1, 2))
    known = {1: lost_marks.tracked_of(steered, OWN), 2: lost_marks.tracked_of(avoided, BEFORE)}
    assert [(u.job.id, u.excludes) for u in updates.plan(world([steered, avoided]), known).updates] == [(1, "n3")]
    assert [(u.job.id, u.excludes) for u in updates.releases([steered, avoided], known)] == [(1, "n3"), (2, "")]


def test_many_are_asked_for_in_parts_and_none_not_at_all(monkeypatch):
    calls = answers(monkeypatch)
    assert lost_marks.search([]) == {} and not calls
    assert lost_marks.search([job(n, comment="", excludes="n3") for n in range(1, 1000)]) == {}
    assert len(calls) == 1 and calls[0][6].count(",") == lost_marks.MOST - 1


def test_accounting_that_does_not_answer_is_not_asked_each_time(monkeypatch):
    asked = []

    def fails(wanted):
        asked.append(wanted)
        raise SlurmError("slurmdbd is down")

    monkeypatch.setattr(lost_marks, "search", fails)
    found, state = [job(1, comment="mine", excludes="n3")], State()
    for now in (NOW, NOW + 60, NOW + passes.FACTS_AGE + 1):
        state = passes._found_again(state, found, now)
    assert len(asked) == 2 and state.tracked == {}
