# ruff: noqa: E501 - tables
"""The same decision inside Slurm: cli_filter/lua for sbatch, salloc and srun, job_submit/lua in slurmctld."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from slurm_hook.common import hostlist
from slurm_hook.common.config import Settings
from slurm_hook.published import decision_log, lua_table, mark, snapshot
from slurm_hook.submit import hints
from tests import lua
from tests.sandbox import Sandbox
from tests.wrapped import Wrapped, lua_text

pytestmark = pytest.mark.integration
SLACK = 4  # seconds that a busy machine may add to two
BAD = ("gpu02",)
SITE = """
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
    if options["job-name"] == "forbidden" then slurm.log_error("not here"); return slurm.ERROR end
    options["wckey"] = "site"
    return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job, step) return slurm.SUCCESS end
"""


def names(job: dict[str, str]) -> set[str]:
    return set() if job["ExcNodeList"] == "(null)" else set(hostlist.expand(job["ExcNodeList"]))


@pytest.fixture(scope="module")
def wrapped(sandbox: Sandbox) -> Wrapped:
    made = Wrapped(sandbox)
    made.publish("steer", bad=BAD)
    return made


@pytest.fixture
def submit(sandbox: Sandbox) -> Iterator:
    jobs: list[int] = []

    def run(env, *args: str, lines: str = "") -> dict[str, str]:
        jobs.append(sandbox.sbatch(*args, "--hold", script=f"#!/bin/bash\n{lines}\ntrue\n", env=env))
        return sandbox.job(jobs[-1])

    yield run
    for job in jobs:
        sandbox.run(["scancel", str(job)], check=False)


def test_sbatch_without_a_wrapper(sandbox, wrapped, submit):
    wrapped.publish("steer", bad=BAD)
    job = submit(wrapped.cli_filter(), "-N4", "-x", "gpu05")
    told = mark.parse(job["Comment"].strip())
    assert (told.mode, told.excludes) == ("steer", "gpu05")
    assert len(set(sandbox.nodes) - names(job)) == 4 and {"gpu02", "gpu05"} <= names(job)


@pytest.mark.parametrize(
    ("args", "lines"),
    [
        (("-N1",), ""), ((), ""), (("-N4", "-w", "gpu01"), ""), (("-N4",), "#WORKHORSE steer=off"),
        (("-N4", "--comment=wh=1;m=avoid"), ""), (("-N4", "-C", "nosuch|x&y"), None),
    ],
)  # fmt: skip
def test_what_is_not_ours(sandbox, wrapped, submit, args, lines):
    wrapped.publish("steer", bad=BAD)
    if lines is None:
        done = sandbox.run(["sbatch", *args, "--wrap=true"], user="alice", env=wrapped.cli_filter(), check=False)
        assert done.returncode == 1 and "feature" in done.stderr.lower()
        return
    assert not names(submit(wrapped.cli_filter(), *args, lines=lines))


def test_directives_of_the_script(sandbox, wrapped, submit):
    wrapped.publish("steer", bad=BAD, scoring__capacity_resource="mem")
    job = submit(wrapped.cli_filter(), lines="#WORKHORSE demand=800000M stage=a")
    left = set(sandbox.nodes) - names(job)
    assert job["NumNodes"].split("-")[0] == str(len(left)) and len(left) > 1 and mark.parse(job["Comment"].strip()).stage == "a"


def test_a_person_is_told_of_wrong_directives(sandbox, wrapped):
    wrapped.publish("steer", bad=BAD)
    path = sandbox.write_script("#!/bin/bash\n#WORKHORSE stge=\x1b[2Jx stage=a\ntrue\n")
    call = f"sbatch -N4 --hold {path}"
    done = sandbox.run(["script", "-qec", call, "/dev/null"], user="alice", env=wrapped.cli_filter())
    assert "workhorse: #WORKHORSE" in done.stdout and "is ignored" in done.stdout and "workhorse: chosen gpu" in done.stdout
    assert "\x1b" not in done.stdout
    plain = sandbox.run(["sbatch", "-N4", "--hold", path], user="alice", env=wrapped.cli_filter())
    assert plain.stderr == ""
    sandbox.run(["scancel", "-u", "alice"])


def test_srun_and_salloc_and_a_step_inside(sandbox, wrapped):
    wrapped.publish("steer", bad=BAD)
    env = wrapped.cli_filter()
    show = "scontrol -o show job $SLURM_JOB_ID"
    done = sandbox.run(["salloc", "-N2", "sh", "-c", f"{show}; srun -N2 true; echo step $?"], user="alice", env=env)
    assert "ExcNodeList=gpu" in done.stdout and "wh=1;m=steer" in done.stdout and "step 0" in done.stdout
    done = sandbox.run(["srun", "-N2", "sh", "-c", show], user="alice", env=env)
    assert "ExcNodeList=gpu" in done.stdout


def test_the_wrapper_and_the_filter_act_once(sandbox, wrapped):
    wrapped.publish("steer", bad=BAD)
    job = sandbox.job(sandbox.sbatch("-N4", "--hold", "--wrap=true", binary=wrapped.sbatch, env=wrapped.cli_filter()))
    assert len(set(sandbox.nodes) - names(job)) == 4
    sandbox.run(["scancel", job["JobId"]])


BROKEN = [None, "", "syntax error here", "error('at load')", "return {}", "return 5", "return { pre_submit = function() error('x') end }",
          "return { pre_submit = function(o) o.exclude = nil end }", "return { pre_submit = function() local x = nil; return x.y end }"]  # fmt: skip


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_or_missing_file_changes_nothing(sandbox, wrapped, submit, text):
    real = wrapped.root / f"broken-{BROKEN.index(text)}.lua"
    if text is not None:
        real.write_text(text)
    env = wrapped.cli_filter(lua_text("cli_filter.lua", REAL=real))
    job = submit(env, "-N4")
    assert not names(job) and "Comment" not in job


def test_an_unreadable_file_changes_nothing(wrapped, submit):
    real = wrapped.root / "unreadable.lua"
    real.write_text("return {}")
    real.chmod(0)
    assert not names(submit(wrapped.cli_filter(lua_text("cli_filter.lua", REAL=real)), "-N4"))


def test_a_sites_own_filter_comes_first(sandbox, wrapped, submit):
    wrapped.publish("steer", bad=BAD)
    wrapped.cli_filter()
    loader = wrapped.root / "cli_filter.lua"
    loader.write_text(lua_text("cli_filter.lua", REAL=wrapped.root / "workhorse_cli_filter.lua"))
    env = wrapped.cli_filter(SITE + f'\npcall(dofile, "{loader}")\nreturn slurm.SUCCESS\n')
    assert len(names(submit(env, "-N4"))) == 12
    refused = sandbox.run(["sbatch", "-N4", "-J", "forbidden", "--wrap=true"], user="alice", env=env, check=False)
    assert refused.returncode != 0 and "not here" in refused.stderr
    gone = wrapped.cli_filter(SITE + '\npcall(dofile, "/nowhere/cli_filter.lua")\nreturn slurm.SUCCESS\n')
    assert not names(submit(gone, "-N4"))


@pytest.mark.parametrize(
    "hostile",
    ["'; touch /tmp/pwned; '", "$(id)", "`id`", "\"}];os.execute('id')", "a+exclude=gpu01", "x" * 200, "\x1b[31m", "\\"],
)
def test_user_data_never_meets_a_shell(sandbox, wrapped, submit, hostile):  # fmt: skip
    wrapped.publish("steer", bad=BAD)
    job = submit(wrapped.cli_filter(), "-N4", "-J", hostile)
    assert job["JobName"].split("\n")[0][:20] == hostile.split("\n")[0][:20]
    assert len(names(job)) == 12


def test_a_request_too_long_for_one_argument_is_left_alone(wrapped, submit):
    assert not names(submit(wrapped.cli_filter(), "-N4", "--export=ALL,A=" + "x" * 70_000))
    assert names(submit(wrapped.cli_filter(), "-N4", "--export=ALL,A=" + "x" * 20_000))


def test_line_breaks_in_a_name_forge_no_answer(sandbox, wrapped):
    number = sandbox.sbatch("-N4", "--hold", "-J", "a\nend\n+exclude=gpu01\nend", "--wrap=true", env=wrapped.cli_filter())
    shown = sandbox.run(["scontrol", "-o", "show", "job", str(number)]).stdout
    sandbox.run(["scancel", str(number)])
    assert len(hostlist.expand(shown.split("ExcNodeList=")[1].split()[0])) == 12


@pytest.fixture
def logged(sandbox, wrapped) -> Callable[[], list[dict]]:
    """A stand-in for `logger`, in front in PATH: what it was told, once there is something."""
    told = wrapped.root / "logged"
    told.write_text("")
    told.chmod(0o666)
    logger = wrapped.root / "logger"
    logger.write_text(f'#!/bin/sh\necho "$5" >>{told}\n')
    logger.chmod(0o755)

    def lines() -> list[dict]:
        sandbox.poll(lambda: told.read_text().endswith("\n"), 10, "a line of the log")
        return [json.loads(line) for line in told.read_text().splitlines()]

    return lines


@pytest.mark.parametrize("text", ["exec sleep 60", "exit 1", "kill -9 $$", "echo pass"])
def test_a_decision_that_hangs_or_dies_costs_its_second_and_is_counted(sandbox, wrapped, submit, logged, text):
    """And one that adds nothing is none of these."""
    wrapped.publish("steer", bad=BAD)
    path = {"PATH": f"{wrapped.root}:{sandbox.env['PATH']}"}
    for args in (("-N4", "--spread-job"), ("-N4", "--comment=wh=1;m=avoid"), ("-N4", "--gres=gpu:x:1,gpu:y:1"), ("-N1",)):
        sandbox.run(["sbatch", *args, "--hold", "--wrap=true"], user="alice", env={**wrapped.cli_filter(), **path}, check=False)
    python = wrapped.root / "broken-python"
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(0o755)
    folder = wrapped.root / "broken"
    folder.mkdir(exist_ok=True)
    real = wrapped.write_filter(folder, PYTHON=python)
    env = wrapped.cli_filter(lua_text("cli_filter.lua", REAL=real))
    started = time.monotonic()
    assert not names(submit({**env, **path}, "-N4"))
    assert time.monotonic() - started < 2 + SLACK
    assert logged() == [{"by": "cli_filter", "action": "fail_open", "reason": decision_log.FAILURES[-1]}]
    sandbox.run(["scancel", "-u", "alice"])


HET = "#!/bin/bash\n#SBATCH -N2 -t 5\n#SBATCH hetjob\n#SBATCH -N15\ntrue\n"


@pytest.mark.parametrize(
    "how",
    ['sbatch -H "$SCRIPT"', 'sbatch -H <"$SCRIPT"', 'cat "$SCRIPT" | sbatch -H', "sbatch -H <<<\"$(cat $SCRIPT)\"",
     'sbatch -H <(cat "$SCRIPT")', 'sbatch -H /dev/stdin <"$SCRIPT"', 'sbatch -H -N2 : -N15 --wrap=true',
     'cd "$(dirname $SCRIPT)"; PATH=$PWD:$PATH sbatch -H "$(basename $SCRIPT)"'],
)  # fmt: skip
def test_components_that_the_filter_cannot_see_get_no_excludes_of_the_first(sandbox, wrapped, how):
    """What is excluded for the first component is carried to the next, which then could not run at all."""
    wrapped.publish("steer", bad=BAD)
    env = {**wrapped.cli_filter(), "SCRIPT": str(sandbox.write_script(HET))}
    done = sandbox.run(["bash", "-c", how], user="alice", env=env, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    number = done.stdout.split()[-1]
    shown = sandbox.run(["scontrol", "-o", "show", "job", number]).stdout
    sandbox.run(["scancel", number])
    assert shown.count("ExcNodeList=(null)") == 2 and "wh=1" not in shown


@pytest.mark.parametrize("how", ['sbatch -H -N4 <"$SCRIPT"', 'sbatch -H -N4 "$SCRIPT" a', "sbatch -H -N4 --wrap=true"])
def test_other_scripts_are_steered_by_excludes(sandbox, wrapped, how):
    """Whatever the form that the wrapper writes pools in."""
    wrapped.publish("steer", bad=BAD, steer__form="nodelist")
    env = {**wrapped.cli_filter(), "SCRIPT": str(sandbox.write_script("#!/bin/bash\n#SBATCH -t 5\ntrue\n"))}
    number = sandbox.run(["bash", "-c", how], user="alice", env=env).stdout.split()[-1]
    job = sandbox.job(int(number))
    sandbox.run(["scancel", number])
    assert len(names(job)) == 12 and job["ReqNodeList"] == "(null)" and mark.parse(job["Comment"].strip()).mode == "steer"


def test_a_site_to_which_one_node_is_enough(sandbox, wrapped, submit):
    """Then jobs that don't say how many are ours, too."""
    assert not names(submit(wrapped.cli_filter()))
    wrapped.publish("avoid", bad=BAD, match__min_nodes=1)
    assert names(submit(wrapped.cli_filter())) == set(BAD)


# --- job_submit -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> Iterator[tuple[Sandbox, object, object]]:
    """A sandbox whose slurmctld loads our job_submit; the real file and the table lie in a folder."""
    folder = tmp_path_factory.mktemp("job_submit")
    real, table = folder / "workhorse_job_submit.lua", folder / "avoid.lua"
    real.write_text(lua_text(real.name, TABLE=table, LOCAL=folder))
    site = 'function slurm_job_submit(job) if job.name == "forbidden" then return slurm.ERROR end; return slurm.SUCCESS end\n'
    loader = folder / "job_submit.lua"
    loader.write_text(lua_text("job_submit.lua", REAL=real))
    text = site + f'pcall(dofile, "{loader}")\nreturn slurm.SUCCESS\n'
    with Sandbox(nodes=8, extra_conf=["JobSubmitPlugins=lua"], files={"job_submit.lua": text}) as running:
        yield running, real, table


def table_text(sandbox: Sandbox, bad=(), *, age: float = 0, **settings) -> str:
    known = Settings().replace(**{"steer__mode": "avoid", **settings})
    now = time.time() - age
    nodes = {n: snapshot.NodeScore(n, lemon=n in bad, mem=1000, partitions=("llm",)) for n in sandbox.nodes}
    return lua_table.text(snapshot.Scores("s1", "sandbox", now, now, "published", known.hook_mapping(), nodes))


@pytest.fixture
def ask(controller) -> Iterator:
    sandbox, _, table = controller

    def run(*args: str, bad=("gpu03",), text: str | None = None, **more) -> dict[str, str]:
        table.write_text(table_text(sandbox, bad, **more) if text is None else text)
        job = sandbox.job(sandbox.sbatch("--hold", *args, "--wrap=true"))
        sandbox.run(["scancel", job["JobId"]])
        return job

    yield run


def test_job_submit_appends_to_the_excludes(ask):
    job = ask("-N4", "-x", "gpu[06-07]")
    assert names(job) == {"gpu03", "gpu06", "gpu07"}
    assert mark.parse(job["Comment"].strip()) == mark.Mark(mode="avoid", snapshot="s1", excludes="gpu[06-07]")


@pytest.mark.parametrize(
    ("args", "more"),
    [
        (("-N1",), {}), (("-N4", "-w", "gpu03"), {}), (("-N4", "--comment=wh=1;m=steer"), {}), (("-N4", "-p", "small"), {}),
        (("-N4",), {"age": 80 * 3600}), (("-N4",), {"steer__mode": "observe"}), (("-N4",), {"steer__mode": "off"}),
        (("-N4",), {"match__partitions": ["small"]}), (("-N8",), {}), (("-N4",), {"bad": ()}), (("-N4", "-p", "llm,small"), {}),
        (("-N4",), {"text": ""}), (("-N4",), {"text": "return {"}), (("-N4",), {"text": "while true do end"}),
        (("-N4",), {"text": "\0\xff" * 1000}), (("-N4",), {"bad": ("gone01",)}),
        (("-N5", "-x", "gpu[05-07]"), {}),
        (("-N4", "--contiguous"), {}), (("-N4", "--switches=1@10"), {}),
        (("-n64", "-J", "train"), {"match__name": "train"}), (("-G64", "-J", "train"), {"match__name": "train"}),
    ],
)  # fmt: skip
def test_job_submit_leaves_alone(ask, args, more):
    if args[:3] == ("-N4", "-p", "small"):
        args = ("-N2", "-p", "small")
    job = ask(*args, **more)
    assert not names(job) - {"gpu05", "gpu06", "gpu07"}
    assert "Comment" not in job or "m=steer" in job["Comment"]


def test_job_submit_leaves_components_alone(controller):
    """They see nothing of one another there, and may need all nodes together."""
    sandbox, _, table = controller
    table.write_text(table_text(sandbox, ("gpu03",)))
    first = sandbox.sbatch("--hold", "-N4", ":", "-N4", "--wrap=true")
    assert not names(sandbox.job(first)) and not names(sandbox.job(first + 1))
    sandbox.run(["scancel", str(first)])


@pytest.mark.parametrize(
    ("lines", "env", "left_alone"),
    [
        ("#WORKHORSE stage=a steer=off", {}, True), ("#SBATCH -J x\n\n# why\n#WORKHORSE\tsteer='off' # now", {}, True),
        ("", {"WORKHORSE_MODE": "off"}, True), ("#WORKHORSE steer=on", {"WORKHORSE_MODE": "off"}, True),
        ("#WORKHORSE steer=off steer=on", {}, False), ("#WORKHORSE steer=offer", {}, False),
        ("true\n#WORKHORSE steer=off", {}, False), (" #WORKHORSE steer=off", {}, False), ("#WORKHORSEsteer=off", {}, False),
        ("", {"WORKHORSE_MODE": "steer"}, False), ("", {"WORKHORSE_MODE": "Observe"}, True),
    ],
)  # fmt: skip
def test_job_submit_heeds_who_opts_out(controller, lines, env, left_alone):
    sandbox, _, table = controller
    table.write_text(table_text(sandbox, ("gpu03",)))
    job = sandbox.job(sandbox.sbatch("--hold", "-N4", script=f"#!/bin/bash\n{lines}\ntrue\n", env=env))
    sandbox.run(["scancel", job["JobId"]])
    assert names(job) == (set() if left_alone else {"gpu03"})


def test_job_submit_stops_where_workhorse_is_disabled(controller, ask):
    disable = controller[1].parent / "disable"
    disable.touch()
    try:
        assert not names(ask("-N4"))
    finally:
        disable.unlink()
    assert names(ask("-N4")) == {"gpu03"}


def load_again(sandbox: Sandbox, step: int) -> None:
    """slurmctld loads the file anew when its time stamp (whole seconds) differs."""
    path = sandbox.conf.parent / "job_submit.lua"
    os.utime(path, (time.time(), time.time() + 60 + step))


def test_job_submit_keeps_the_site_rules_and_survives_any_file(controller, ask):
    sandbox, real, _ = controller
    refused = sandbox.run(["sbatch", "-N4", "-J", "forbidden", "--wrap=true"], user="alice", check=False)
    assert refused.returncode == 1
    job = ask("-N4", "--comment=mine")
    assert names(job) == {"gpu03"} and job["Comment"].strip() == "mine"
    good = real.read_text()
    try:
        for step, text in enumerate(
            [t for t in BROKEN if t] + ["return { submit = function(j) j.exc_nodes = nil; error('x') end }"]
        ):
            real.write_text(text)
            load_again(sandbox, step)
            job = ask("-N4")
            assert not names(job), text
    finally:
        real.write_text(good)
        load_again(sandbox, 100)
    assert names(ask("-N4")) == {"gpu03"}


# what a user can write of a job, of n signs: jobs' fields, as Lua expressions
FIELDS = {
    "letters": "exc_nodes = ('x'):rep(n)", "brackets": "exc_nodes = ('['):rep(n)", "closed": "exc_nodes = (']'):rep(n)",
    "items": "exc_nodes = ('a[1],'):rep(n / 5)", "commas": "exc_nodes = (','):rep(n)", "unclosed": "exc_nodes = ('a[1'):rep(n / 3)",
    "digits": "exc_nodes = 'a[' .. ('1'):rep(n) .. ']'", "ranges": "exc_nodes = 'a[' .. ('1,'):rep(n / 2) .. '1]'",
    "many": "exc_nodes = ('a[1-65535],'):rep(n / 11)", "names": "name = ('a'):rep(n), exc_nodes = 'a'",
    "comment": "comment = 'wh=1;' .. ('m'):rep(n)", "mode": "script = '#!/bin/sh', environment = { WORKHORSE_MODE = ('O'):rep(n) }",
    "blanks": "script = '#!/bin/sh\\n#WORKHORSE' .. (' '):rep(n)", "lines": "script = '#!/bin/sh\\n#WORKHORSE' .. ('\\n'):rep(n)",
    "words": "script = '#!/bin/sh\\n#WORKHORSE ' .. ('steer='):rep(n / 6)", "quotes": "script = '#\\n#WORKHORSE steer=' .. ('\"'):rep(n)",
    "directives": "script = '#!/bin/sh' .. ('\\n#WORKHORSE steer=x'):rep(n / 19)", "features": "features = ('a&'):rep(n)",
    "partitions": "partition = ('llm,'):rep(n / 4)",
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_a_job_takes_job_submit_more_than_its_length(controller, field):
    """It runs under slurmctld's locks: everybody's calls wait. Twice eight times as long a text takes no sixty-four times."""
    sandbox, real, table = controller
    table.write_text(table_text(sandbox, ("gpu03",), match__name="*a*a*a*a*b", match__min_nodes=9))
    loaded = lua.run(f"""
        local M = dofile("{real}")
        local function job(n)
            local made = {{ min_nodes = 2, num_tasks = 1, partition = "llm", {FIELDS[field]} }}
            return made
        end
        local partitions = {{ llm = {{ nodes = "gpu[01-08]", flag_default = 1 }} }}
        local function took(n)
            local made, best = job(n), 1e9
            for _ = 1, 5 do
                local before = os.clock()
                M.submit(made, partitions)
                best = math.min(best, os.clock() - before)
            end
            return best
        end
        return took(4000) .. " " .. took(64000)
    """)
    short, long = map(float, loaded.split())
    assert long < 32 * max(short, 1e-4) and long < 0.05, loaded


@pytest.mark.parametrize(
    "numbers", ["9007199254740992", "9" * 16, "1" + "0" * 19, "9007199254740991-9007199254740993", "9" * 400]
)
def test_numbers_too_large_to_count_on_from_end_at_once(controller, numbers):
    """Lua's numbers are doubles: from 2^53 on, one more is the same, and a loop up to it never ends."""
    sandbox, real, table = controller
    table.write_text(table_text(sandbox, ("gpu03",)))
    got = lua.run(f"""
        local M = dofile("{real}")
        local job = {{ min_nodes = 2, partition = "llm", exc_nodes = "gpu[{numbers}]" }}
        debug.sethook(function() error("over a million steps") end, "", 1000000)
        M.submit(job, {{ llm = {{ nodes = "gpu[01-08]", flag_default = 1 }} }})
        return job.exc_nodes
    """)
    assert got == f"gpu[{numbers}]"  # not one that can be read: left alone


@pytest.mark.parametrize(("pattern", "text", "matches"), [
    ("train*", "train-7", True), ("train*", "train", True), ("train*", "strain", False), ("*", "", True), ("?", "", False),
    ("a?c", "abc", True), ("a?c", "ac", False), ("*-big", "llm-big", True), ("*-big", "llm-big2", False), ("a*b*c", "aXbYbc", True),
    ("a*b*c", "aXcYb", False), ("a.c", "abc", False), ("**", "x", True),
])  # fmt: skip
def test_patterns_of_names(controller, pattern, text, matches):
    sandbox, real, table = controller
    table.write_text(table_text(sandbox, ("gpu03",), match__name=pattern, match__min_nodes=9))
    got = lua.run(f"""
        local M = dofile("{real}")
        local job = {{ min_nodes = 2, partition = "llm", name = "{text}" }}
        M.submit(job, {{ llm = {{ nodes = "gpu[01-08]", flag_default = 1 }} }})
        return job.exc_nodes or ""
    """)
    assert (got == "gpu03") is matches


def test_nobody_waits_for_a_hostile_submission(controller):
    """A list of 20,000 letters held slurmctld for seconds."""
    sandbox, _, table = controller
    table.write_text(table_text(sandbox, ("gpu03",)))

    def hostile() -> None:
        words = ["sbatch", "-N2", "-H", "--exclude=" + "x" * 20_000, "--wrap=true"]
        sandbox.run(words, user="carol", check=False)

    hostile()  # alone first: as that user's home is made
    callers = [threading.Thread(target=hostile) for _ in range(4)]
    for caller in callers:
        caller.start()
    started = time.monotonic()
    number = sandbox.run(["sbatch", "--parsable", "-N2", "-H", "--wrap=true"], user="alice").stdout.strip()
    took = time.monotonic() - started
    for caller in callers:
        caller.join(60)
    sandbox.run(["scancel", number])
    assert took < SLACK, f"{took:.1f} s"


def test_the_table_is_data(controller):
    sandbox, _, _ = controller
    text = table_text(sandbox, ("gpu03", "gpu05"), match__name="llm-*")
    rows = [line for line in text.splitlines() if "node =" in line]
    assert [row.split('"')[1] for row in rows] == ["gpu03", "gpu05"]
    assert all("same = 8" in row for row in rows)
    assert text.startswith("return {\n")


def test_a_fifo_in_place_of_the_script_holds_nothing_up(sandbox, wrapped):
    """Slurm has read it to its end by then; nobody will ever write there again."""
    wrapped.publish("steer", bad=BAD, match__min_nodes=2)
    hints.write(str(wrapped.local), Settings())
    fifo = wrapped.root / "fifo"
    os.mkfifo(fifo)
    fifo.chmod(0o666)
    feeder = threading.Thread(target=lambda: fifo.write_text("#!/bin/bash\n#WORKHORSE stage=a\ntrue\n"))
    feeder.start()
    try:
        number = sandbox.sbatch("-N1", "--hold", str(fifo), env=wrapped.cli_filter())
        assert not names(sandbox.job(number))
        sandbox.run(["scancel", str(number)])
    finally:
        feeder.join(5)
        (wrapped.local / "hints").unlink()


def test_a_file_disable_that_users_can_not_read_switches_off_too(sandbox, wrapped):
    wrapped.publish("steer", bad=BAD)
    stop = wrapped.local / "disable"
    stop.touch(mode=0o600)
    try:
        words = ["sbatch", "--parsable", "--hold", "-N4", "--wrap=true"]
        number = int(sandbox.run(words, user="alice", env=wrapped.cli_filter()).stdout)
        assert not names(sandbox.job(number))
        sandbox.run(["scancel", str(number)])
    finally:
        stop.unlink()


def test_without_programs_in_path_nothing_is_said(sandbox, wrapped, submit):
    wrapped.publish("steer", bad=BAD)
    done = sandbox.run(
        ["/usr/bin/sbatch", "--parsable", "--hold", "-N4", "--wrap=true"], env={**wrapped.cli_filter(), "PATH": "/nowhere"}
    )
    assert done.stderr == ""
    sandbox.run(["scancel", done.stdout.strip()])


@pytest.mark.parametrize("settings", [{"match__min_gpus": 8}, {"match__name": "tr[ae]in*"}])
def test_rules_for_gpus_and_names(sandbox, wrapped, submit, settings):
    known = {"match__min_nodes": 9, **settings}
    wrapped.publish("avoid", bad=BAD, **known)
    hints.write(str(wrapped.local), Settings().replace(**known))
    try:
        assert names(submit(wrapped.cli_filter(), "-N1", "--gpus-per-node=8", "-J", "train7")) == set(BAD)
    finally:
        (wrapped.local / "hints").unlink()
