"""Any sbatch call gives the same job, output and exit code through the wrapper as without it."""

import re
from collections.abc import Iterator

import pytest

from slurm_hook.common import hostlist
from slurm_hook.published import mark
from tests import transparency
from tests.sandbox import Sandbox
from tests.transparency import OURS, Case, Outcome, Runner
from tests.wrapped import REAL, Wrapped

pytestmark = pytest.mark.integration
CASES = [*transparency.recorded(), *transparency.more(), *transparency.once()]
# must be ours where one node is enough, or comparing them would prove little
REALLY_OURS = {
    "hash-inside-word", "hash-quoted", "quote-mid", "backslash-quote", "double-hash", "after-blank-lines", "after-command",
    "in-heredoc", "repeat-in-script", "cli-over-script", "cli-twice", "cli-empty", "env-no-exclude", "nested-job-env",
    "mem-GB", "exclusive-eq", "opts-after-script", "dashdash-cli", "hetjob-script", "hetjob-cli-over-script", "wrap",
    "wrap-hash", "stdin", "pbs-and-sbatch", "export-commas", "slurm-word", "utf8-comment", "name-hostile",
    "comment-own-hostile", "script-newline-argument", "constraint-or", "constraint-and-in-script", "repeated-everything",
    "exclude-of-two-lines", "exclude-file", "exclude-blanks", "exclude-blanks-in-script",
    "stdin-heredoc", "stdin-cat", "stdin-file", "memory-per-gpu", "exclusive-user",
}  # fmt: skip
SHOWS_OPTIONS = ("verbose",)
BAD = ("gpu04", "gpu09")


@pytest.fixture(scope="module")
def runner(sandbox: Sandbox) -> Iterator[Runner]:
    # no job starts, so that what is compared doesn't depend on the moment
    for name in ("llm", "small"):
        sandbox.run(["scontrol", "update", f"PartitionName={name}", "State=DOWN"])
    features(sandbox, "fast,slow")
    waiting = [sandbox.sbatch("--hold", "--wrap", "true", user="bob") for _ in range(3)]
    yield Runner(sandbox, sandbox.root / "transparency", waiting)
    sandbox.run(["scancel", *map(str, waiting)], check=False)
    sandbox.run(["scancel", "-u", "alice"], check=False)
    for name in ("llm", "small"):
        sandbox.run(["scontrol", "update", f"PartitionName={name}", "State=UP"])
    features(sandbox, "")


def features(sandbox: Sandbox, names: str) -> None:
    sandbox.run(
        ["scontrol", "update", f"NodeName={','.join(sandbox.nodes)}", f"AvailableFeatures={names}", f"ActiveFeatures={names}"]
    )


@pytest.fixture(scope="module")
def plain(runner: Runner) -> dict[str, Outcome]:
    return {case.name: runner.run(case, REAL) for case in CASES}


@pytest.fixture(scope="module", params=["pass-through", "observe", "avoid", "steer", "nodelist"])
def way(request: pytest.FixtureRequest, sandbox: Sandbox) -> tuple[str, Wrapped]:
    way = request.param
    wrapped = Wrapped(sandbox, with_hints=way in ("observe", "steer"))
    mode = {"pass-through": "off", "nodelist": "steer"}.get(way, way)
    # in two of the ways calls without a node count are ours, too
    least = 1 if way in ("avoid", "nodelist") else 2
    wrapped.publish(
        mode, bad=BAD, match__min_nodes=least, steer__max_excluded=0.2, steer__form="nodelist" if way == "nodelist" else "exclude"
    )
    return way, wrapped


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_job_output_and_code(case: Case, way: tuple[str, Wrapped], runner: Runner, plain: dict[str, Outcome]):
    name, wrapped = way
    before, after = plain[case.name], runner.run(case, str(wrapped.sbatch))
    assert (after.code, after.stdout) == (before.code, before.stdout)
    stderr = after.stderr.replace(str(wrapped.sbatch), REAL)
    if case.name in SHOWS_OPTIONS:  # sbatch prints the options that it was given, ours too
        stderr = re.sub(r"sbatch: (exclude|nodelist|comment) +: .*\n", "", stderr)
    assert stderr == before.stderr
    assert after.batch == before.batch
    assert len(after.jobs) == len(before.jobs)
    may_change = OURS if name in ("avoid", "steer", "nodelist") else set()
    if case.name == "directive-demand":  # the one case in which the node count is ours, and what follows from it
        may_change = may_change | {"NumNodes", "NumCPUs", "NumTasks", "TRES", "ReqTRES", "AllocTRES"}
    for ours, theirs in zip(after.jobs, before.jobs, strict=True):
        changed = {key: (theirs.get(key), ours.get(key)) for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
        assert not {key: pair for key, pair in changed.items() if key not in may_change}
        check_changes(ours, theirs, name)
    if name == "avoid" and case.name in REALLY_OURS:
        assert all(set(BAD) <= names(job["ExcNodeList"]) for job in after.jobs) and after.jobs


def check_changes(ours, theirs, way: str) -> None:
    """What is ours is only what it may be: more excludes, a mark in an empty comment, nodes where none were named."""
    assert names(theirs.get("ExcNodeList", "(null)")) <= names(ours.get("ExcNodeList", "(null)"))
    if ours.get("Comment") != theirs.get("Comment"):
        told = mark.parse(ours["Comment"])
        assert told is not None and told.decided
        assert set(hostlist.expand(told.excludes)) == names(theirs.get("ExcNodeList", "(null)"))
        assert not theirs.get("Comment") or not mark.parse(theirs["Comment"]).decided
    if ours.get("ReqNodeList") != theirs.get("ReqNodeList"):
        assert way == "nodelist" and theirs["ReqNodeList"] == "(null)"


def names(text: str) -> set[str]:
    return set() if text == "(null)" else set(hostlist.expand(text))


def test_the_cases_do_what_their_names_say(plain: dict[str, Outcome]):
    """Most cases must really submit, or comparing them proves little."""
    wrong = [
        (case.name, plain[case.name].stderr)
        for case in (*transparency.more(), *transparency.once())
        if not case.name.startswith("test-only") and bool(plain[case.name].jobs) is case.quits
    ]
    assert not wrong
    assert sum(bool(outcome.jobs) for outcome in plain.values()) > 150
    for case in transparency.once():
        if "script" not in case.name and "environment" not in case.name:
            job = plain[case.name].jobs[-1]
            assert {"gpu03", "gpu05"} in (names(job["ReqNodeList"]), names(job["ExcNodeList"])), case.name
