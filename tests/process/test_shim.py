# ruff: noqa: E501, PLW1510 - tables of long command lines
"""The shim alone, with stand-ins for sbatch and for the child that decides: nothing is lost, nothing runs twice, no fault stops it."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from slurm_hook.published import decision_log
from tests.wrapped import ROOT, write_shim

REAL = """#!/bin/sh
n=$(ls "$OUT" | grep -c argv)
printf '%s\\0' "$@" >"$OUT/argv$n"
cat /proc/$$/environ >"$OUT/env$n"
if [ "${READ_STDIN:-}" ]; then cat >"$OUT/stdin$n"; fi
if [ -e "$OUT/act$n" ]; then . "$OUT/act$n"; fi
echo "Submitted batch job $n"
"""
ANSWER = "workhorse 1 {at} {count}\n{lines}#a note\nend\n"
SCRIPT = "#!/bin/sh\n#SBATCH -N4\ntrue\n"


class Shim:
    """A shim in a folder with a stand-in sbatch; `answer` is what the child says."""

    def __init__(self, root: Path) -> None:
        self.root, self.out = root, root / "out"
        for folder in (self.out, root / "lib" / "slurm_hook" / "submit", root / "local", root / "bin"):
            folder.mkdir(parents=True)
        (root / "lib" / "slurm_hook" / "submit" / "wrapper.py").touch()
        self.real = self.program("sbatch.real", REAL)
        self.python = self.program("python", f"#!/bin/sh\ncat '{root}/answer'\n")
        self.sbatch = write_shim(
            root / "bin" / "sbatch",
            REAL=self.real,
            PYTHON=self.python,
            LIB=root / "lib",
            PUBLISH=root,
            LOCAL=root / "local",
            WAIT=15,
        )
        self.script = root / "job.sh"
        self.script.write_text(SCRIPT)
        self.env = {"PATH": os.environ["PATH"], "OUT": str(self.out), "SHLVL": "1"}

    def program(self, name: str, text: str) -> Path:
        path = self.root / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def says(self, *lines: str, at: int = 0) -> None:
        text = "".join(f"+{line}\n" for line in lines)
        (self.root / "answer").write_text(ANSWER.format(at=at, count=len(lines), lines=text))

    def act(self, text: str, call: int = 0) -> None:
        """What the stand-in sbatch does in that call, after it has taken down its arguments."""
        (self.out / f"act{call}").write_text(text)

    def run(self, *args: str, stdin=subprocess.DEVNULL, input=None, env=None, **more) -> subprocess.CompletedProcess:
        how = {"input": input} if input is not None else {"stdin": stdin}
        return subprocess.run(
            [self.sbatch, *args], env={**self.env, **(env or {})}, cwd=self.root, capture_output=True, timeout=20, **how, **more
        )

    def calls(self) -> list[list[str]]:
        return [self._words(path) for path in sorted(self.out.glob("argv*"))]

    def _words(self, path: Path) -> list[str]:
        data = path.read_bytes().decode()
        return data.split("\0")[:-1] if data != "\0" else []


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    made = Shim(tmp_path)
    made.says("--exclude=gpu[01-03]", "--comment=wh=1;m=avoid")
    return made


SLACK = 3  # seconds that a busy machine may need to start processes at all
OURS = ["--exclude=gpu[01-03]", "--comment=wh=1;m=avoid"]


def test_ours_go_in_front(shim):
    done = shim.run("-N4", "job.sh", "a b", "", "*")
    assert shim.calls() == [[*OURS, "-N4", "job.sh", "a b", "", "*"]]
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Submitted batch job 0\n", b"")


@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_ours_go_where_the_answer_says(shim, at):
    shim.says(*OURS, at=at)
    argv = ["-N4", "-x", "gpu09", "job.sh"]
    shim.run(*argv)
    assert shim.calls() == [[*argv[:at], *OURS, *argv[at:]]]


def test_no_arguments_at_all(shim):
    shim.run(input=SCRIPT.encode(), env={"READ_STDIN": "1"})
    assert shim.calls() == [OURS] and (shim.out / "stdin0").read_bytes() == SCRIPT.encode()


@pytest.mark.parametrize(
    "answer",
    ["", "end\n", "garbage\n", "workhorse 1 0 2\n+--exclude=x\nend\n", "workhorse 1 0 1\n+--exclude=x\n", "workhorse 1 0 1\n+x\nend\n",
     "workhorse 1 0 1\n+--exclude=x\nend", "workhorse 1 0 0\nend\n", "workhorse 1  1\n+--exclude=x\nend\n", "\0\0end\n", "workhorse 1 9 1\n+--a=x\nend\n"],
)  # fmt: skip
def test_an_answer_that_is_not_whole_changes_nothing(shim, answer):
    (shim.root / "answer").write_text(answer)
    done = shim.run("-N4", "job.sh")
    whole = answer.endswith("1 0 1\n+--exclude=x\nend")  # the shell drops the last line break anyway
    assert shim.calls() == [["--exclude=x", "-N4", "job.sh"] if whole else ["-N4", "job.sh"]]
    assert (done.returncode, done.stdout) == (0, b"Submitted batch job 0\n")


@pytest.mark.parametrize(
    "child",
    ["exit 3", "kill -9 $$", "echo 'workhorse 1 0 1'; kill -9 $$", "echo +--exclude=x >&2; exit 1", "exec sleep 30",
     "echo 'workhorse 1 0 1'; echo +--exclude=x; exec sleep 30", "setsid sleep 5 & exec sleep 30", "trap '' TERM HUP; while :; do sleep 1; done"],
)  # fmt: skip
def test_a_child_that_dies_or_hangs_costs_two_seconds_at_most(shim, child):
    shim.sbatch.write_text(shim.sbatch.read_text().replace("_wh_WAIT='15'", "_wh_WAIT=1.6"))
    shim.program("python", f"#!/bin/sh\n{child}\n")
    started = time.monotonic()
    done = shim.run("-N4", "job.sh")
    assert time.monotonic() - started < 2 + SLACK
    assert shim.calls() == [["-N4", "job.sh"]] and (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("answer", "told"),
    [("pass\nend\n", 0), ("workhorse 1 0 0\nend\n", 0), ("", 1), ("workhorse 1 0 1\n+--exclude=x\n", 1), ("Traceback\n", 1)],
)
def test_a_failure_of_ours_is_told_to_syslog(shim, answer, told):
    """Nothing to add is no failure."""
    (shim.root / "answer").write_text(answer)
    logger = shim.root / "bin" / "logger"
    logger.write_text('#!/bin/sh\necho "$5" >>"$OUT/logged"\n')
    logger.chmod(0o755)
    shim.run("-N4", "job.sh", env={"PATH": f"{shim.root / 'bin'}:{shim.env['PATH']}"})
    logged = shim.out / "logged"
    deadline = time.monotonic() + 5 * told
    while time.monotonic() < deadline and not (logged.exists() and logged.read_text().endswith("\n")):
        time.sleep(0.01)
    lines = logged.read_text().splitlines() if logged.exists() else []
    assert [json.loads(line) for line in lines] == [
        {"by": "wrapper", "action": "fail_open", "reason": decision_log.FAILURES[-1]}
    ] * told


@pytest.mark.parametrize("fault", ["python", "lib", "off", "disable", "mode"])
def test_switched_off_or_missing(shim, fault):
    env = {}
    if fault == "python":
        shim.python.unlink()
    elif fault == "lib":
        shutil.rmtree(shim.root / "lib")
    elif fault == "off":
        env["WORKHORSE_MODE"] = "off"
    elif fault == "disable":
        (shim.root / "local" / "disable").touch()
    else:
        (shim.root / "local" / "hints").write_text("mode off\nend\n")
    shim.run("-N4", "job.sh", env=env)
    assert shim.calls() == [["-N4", "job.sh"]]


@pytest.mark.parametrize(
    "args",
    [("--test-only", "job.sh"), ("--test", "job.sh"), ("--export-file=7", "-N4", "job.sh"), ("-N4", "--export-file", "7", "job.sh"), ("-h",), ("--help",), ("--usage",), ("-V",), ("--version",), ("-M", "x", "job.sh"),
     ("-Mx", "job.sh"), ("--clusters=x", "job.sh"), ("--clus", "x", "job.sh"), ("/dev/stdin",), ("/dev/fd/0",), ("nowhere/job.sh",), ("fifo",), (".",)],
)  # fmt: skip
def test_calls_that_are_never_looked_at(shim, args):
    os.mkfifo(shim.root / "fifo")
    shim.run(*args)
    assert shim.calls() == [list(args)]


@pytest.mark.parametrize("variable", ["SBATCH_CLUSTERS", "SLURM_CLUSTERS", "SLURM_HOSTFILE"])
def test_variables_that_name_a_cluster_or_hosts(shim, variable):
    shim.run("-N4", "job.sh", env={variable: "x"})
    assert shim.calls() == [["-N4", "job.sh"]]


HINTS = "mode steer\nmin_nodes 2\nmin_gpus 0\ndirectives 1\nend\n"


@pytest.mark.parametrize(
    ("args", "script", "more", "looked_at"),
    [
        (["job.sh"], "#!/bin/sh\ntrue\n", "", False),
        (["-N1", "job.sh"], "#!/bin/sh\ntrue\n", "", False),
        (["-N", "1", "job.sh"], "#!/bin/sh\ntrue\n", "", False),
        (["-N2", "job.sh"], "#!/bin/sh\ntrue\n", "", True),
        (["-N", "2", "job.sh"], "#!/bin/sh\ntrue\n", "", True),
        (["-HN", "2", "job.sh"], "#!/bin/sh\ntrue\n", "", True),
        (["--nodes=2-4", "job.sh"], "#!/bin/sh\ntrue\n", "", True),
        (["--nodes", "4", "job.sh"], "#!/bin/sh\ntrue\n", "", True),
        (["job.sh", "-N4"], "#!/bin/sh\ntrue\n", "", False),
        (["-n8", "job.sh"], "#!/bin/sh\ntrue\n", "", True),
        (["-n1", "job.sh"], "#!/bin/sh\ntrue\n", "", False),
        (["--gpus=16", "job.sh"], "#!/bin/sh\ntrue\n", "", True),
        (["--gres=gpu:8", "job.sh"], "#!/bin/sh\ntrue\n", "", False),
        (["--gres=gpu:8", "job.sh"], "#!/bin/sh\ntrue\n", "min_gpus 8\n", True),
        (["-N1", ":", "-N1", "job.sh"], "#!/bin/sh\ntrue\n", "", True),
        (["job.sh"], "#!/bin/sh\n#SBATCH -N4\ntrue\n", "", True),
        (["job.sh"], "#!/bin/sh\n#SBATCH --nodes 4\ntrue\n", "", True),
        (["job.sh"], "#!/bin/sh\n#SBATCH--nodes=4\ntrue\n", "", True),
        (["job.sh"], "#!/bin/sh\n\n  # x\n#SBATCH '--nodes=4'\ntrue\n", "", True),
        (["job.sh"], "#!/bin/sh\ntrue\n#SBATCH -N4\n", "", False),
        (["job.sh"], "#!/bin/sh\n##SBATCH -N4\n# SBATCH -N4\n", "", False),
        (["job.sh"], "#!/bin/sh\n#SBATCH -J a # -N4\n", "", False),
        (["job.sh"], "#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N1\n", "", True),
        (["job.sh"], "#!/bin/sh\n#WORKHORSE stage=x\n", "", True),
        (["job.sh"], "#!/bin/sh\n#WORKHORSE stage=x\n", "directives 0\n", False),
        (["job.sh"], "#!/bin/sh\n#PBS -l nodes=4\n", "", True),
        (["-J", "llm-1", "job.sh"], "#!/bin/sh\n", "name llm-*\n", True),
        (["job.sh"], "#!/bin/sh\n#SBATCH --job-name=llm-1\n", "name llm-*\n", True),
        (["job.sh"], "#!/bin/sh\n", "name job*\n", True),
        (["job.sh"], "#!/bin/sh\n", "name llm-*\n", False),
        (["--comment=train x", "job.sh"], "#!/bin/sh\n", "comment_prefix train\n", True),
        (["--comment=wh=1;p=a", "job.sh"], "#!/bin/sh\n", "", True),
        (["--comment", "x", "job.sh"], "#!/bin/sh\n", "", False),
        (["job.sh"], "#!/bin/sh\ntrue\n", "min_nodes 1\n", True),
        (["--wrap=true"], "", "min_nodes 1\n", True),
        (["-M", "x", "job.sh"], "#!/bin/sh\ntrue\n", "min_nodes 1\n", False),
        (["--test-only", "job.sh"], "#!/bin/sh\n#SBATCH -N4\n", "", False),
        (["job.sh"], "#!/bin/sh\n#SBATCH -N4\n#SBATCH --clusters=x\n", "", False),
        (["job.sh"], "#!/bin/sh", "", False),
        (["job.sh"], "#SBATCH -N4\n", "", False),
        (["job.sh"], "", "", False),
        (["--wrap=true"], "", "", False),
        (["--wrap", "-N4"], "", "", False),
        (["-o", "-N4", "job.sh"], "#!/bin/sh\n", "", False),
    ],
)
def test_hints_spare_other_calls_the_closer_look(shim, args, script, more, looked_at):
    shim.script.write_text(script)
    (shim.root / "local" / "hints").write_text(more.join(HINTS.rsplit("end", 1)[:1]) + more + "end\n")
    shim.run(*args)
    assert shim.calls() == [[*OURS, *args] if looked_at else args]


# both looks, side by side and in one shell: for each call (its arguments and its script in files) what they make of it
LOOKS = """set -f
. "$1/looks"
_wh_LOCAL=$1/local
cd "$1/calls" || exit
set +f
for call in *.args; do
    set -f
    mapfile -d '' -t words <"$call"
    cp "${call%.args}.script" job.sh
    quick=close _wh_hinted=
    if _wh_quick "${words[@]}"; then quick=pass; fi
    _wh_look "${words[@]}"
    echo "${call%.args} $quick $_wh_verdict"
done
"""
WORDS = (
    "-N1", "-N2", "-N", "4", "-n1", "-n", "-J", "-Jx", "x", "--time=5", "--ti=5", "--gpus=8", "-G2", "-c4", "-HN2", "--hold", "-o",
    "-N4", "--nodes=1", "--nodes", "--nodes=2", "--ntasks=1", "--ntasks=8", "--job-name=a", "--comment=wh=1", ":", "job.sh", "'-N4'",
    "-C", "-W", "-Q", "-QN3", "--exclusive", "--wait", "--constraint=x", "--cpus-per-task=4", "--wrap=x", "-M", "--test-only", "hetjob",
    "#", "#-N4", "--", "-", "--qos=x", "--mem=0", "-q", "--gres=gpu:1",
)  # fmt: skip


def looks() -> str:
    """The functions of both looks, without what acts on them."""
    text = (ROOT / "etc" / "sbatch").read_text()
    both = text[text.index("# --- quick look") : text.index("# --- becoming the real sbatch")]
    begin = next(line for line in text.splitlines() if line.startswith("_wh_nl="))
    return f"{begin}\n" + "".join(f"{line}\n" for line in both.splitlines() if not line.startswith("if _wh_quick"))


def test_what_the_quick_look_lets_pass_the_close_look_lets_pass(tmp_path):
    """The quick one knows little, but never takes a call for plain that might be ours."""
    for name in ("calls", "local"):
        (tmp_path / name).mkdir()
    (tmp_path / "local" / "hints").write_text(HINTS)
    (tmp_path / "looks").write_text(looks())
    source = random.Random(5)
    for number in range(600):
        some = [source.choice(WORDS) for _ in range(source.randrange(4))]
        lines = [" ".join(source.choice(WORDS) for _ in range(source.randrange(1, 4))) for _ in range(source.randrange(3))]
        heads = [
            f"{source.choice(('#SBATCH ', '#SBATCH ', '#SBATCH', ' #SBATCH ', '#WORKHORSE ', '#', ''))}{line}" for line in lines
        ]
        script = "\n".join([source.choice(("#!/bin/sh", "#!/bin/sh", "#!/bin/sh\n\n# x", "x")), *heads, "true", "#SBATCH -N4"])
        (tmp_path / "calls" / f"{number}.args").write_text("".join(f"{word}\0" for word in [*some, "job.sh"]))
        (tmp_path / "calls" / f"{number}.script").write_text(script)
    done = subprocess.run(["bash", "-pc", LOOKS, "sh", str(tmp_path)], capture_output=True, text=True, check=True, timeout=60)
    found = [tuple(line.split()[1:]) for line in done.stdout.splitlines()]
    assert len(found) == 600 and found.count(("pass", "pass")) > 50 and found.count(("close", "ask")) > 100
    assert {close for quick, close in found if quick == "pass"} == {"pass"}, done.stdout


def test_a_call_is_judged_by_one_reading_of_the_hints(tmp_path):
    """They may be replaced between the two looks, and reading them twice costs a call that is looked at closely."""
    (tmp_path / "looks").write_text(looks())
    (tmp_path / "hints").write_text(HINTS)
    code = """. "$1/looks"
    _wh_LOCAL=$1
    if _wh_quick -N4 --wrap=true; then echo plain; fi
    printf 'mode off\nend\n' >"$1/hints"
    _wh_look -N4 --wrap=true
    echo "$_wh_verdict"
    """
    done = subprocess.run(["bash", "-c", code, "sh", str(tmp_path)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "ask\n"


def test_hints_that_are_cut_short_spare_nothing(shim):
    shim.script.write_text("#!/bin/sh\ntrue\n")
    (shim.root / "local" / "hints").write_text("mode steer\nmin_nodes 2\n")
    shim.run("job.sh")
    assert shim.calls() == [[*OURS, "job.sh"]]


CONTENTS = [
    SCRIPT.encode(),
    SCRIPT.encode()[:-1],
    SCRIPT.encode() + b"\0\xff\n\n\n",
    b"#!/bin/sh\n" + b"x" * 300_000,
    b"",
    b"\n",
    b"\0" * 10,
]


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
@pytest.mark.parametrize("full", [False, True], ids=["", "nothing-can-be-written"])
def test_stdin_arrives_byte_for_byte(shim, content, full):
    env = {"READ_STDIN": "1", "TMPDIR": str(shim.root)}
    argv = [str(shim.sbatch), "-N4"]
    if full:  # no new file anywhere: what a full disk does; the stand-in sbatch must not be limited as well
        argv = ["bash", "-c", 'ulimit -S -f 0; exec "$@"', "bash", *argv]
        shim.act("")
        shim.real.write_text(REAL.replace("#!/bin/sh\n", "#!/bin/sh\nulimit -f unlimited\n"))
    done = subprocess.run(argv, input=content, env={**shim.env, **env}, cwd=shim.root, capture_output=True, timeout=20)
    assert (shim.out / "stdin0").read_bytes() == content
    assert done.returncode == 0 and len(shim.calls()) == 1
    assert not list(shim.root.glob(".workhorse*")) and not list(Path("/dev/shm").glob(f".workhorse*{os.getpid()}"))


def test_a_file_on_stdin_is_read_from_the_callers_own_descriptor(shim):
    """Afterwards the caller's descriptor stands where sbatch left it."""
    with open(shim.script, "rb") as file:
        shim.run("-N4", stdin=file, env={"READ_STDIN": "1"})
        assert file.read() == b"" and (shim.out / "stdin0").read_bytes() == SCRIPT.encode()
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == len(SCRIPT)
    assert shim.calls() == [[*OURS, "-N4"]]


def test_stdin_that_is_no_script_is_not_touched(shim):
    with open(shim.script, "rb") as file:
        shim.run("-N4", "job.sh", stdin=file)
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0
        shim.run("-N4", "--wrap=true", stdin=file)
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0


@pytest.mark.parametrize("length", [4000, *range(4040, 4080, 3), 60000])
def test_answers_of_any_length_arrive_whole(shim, length):
    option = "--exclude=" + ("n1," * length)[: length - 10]
    shim.says(option)
    shim.run("-N4", "job.sh")
    assert shim.calls() == [[option, "-N4", "job.sh"]]


def nothing_ignored():
    """For a child: what this test run was told to ignore (by nohup, or in the background) is not the shim's doing."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("umask", ["0022", "0077", "0000", "0027"])
def test_umask_and_ignored_signals_of_the_caller_reach_sbatch(shim, umask):
    argv = ["bash", "-c", f'umask {umask}; trap "" USR1; exec "$@"', "bash"]
    saw = []
    for program in (shim.real, shim.sbatch):
        shim.act(f"{{ umask; grep SigIgn /proc/self/status; }} >$OUT/{program.name}")
        words = [*argv, str(program), "-N4", "job.sh"]
        subprocess.run(
            words, env=shim.env, cwd=shim.root, check=True, timeout=20, capture_output=True, preexec_fn=nothing_ignored
        )
        found, _, ignored = (shim.out / program.name).read_text().split()
        saw.append((found, int(ignored, 16)))
        (shim.out / "argv0").unlink()
    assert saw[0] == saw[1] == (umask, 1 << signal.SIGUSR1 - 1)


# variables that bash makes something of when it starts, or hands on with another value
BASHS_OWN = (
    "PS1", "PS2", "PS4", "IFS", "OPTIND", "OPTERR", "PPID", "UID", "EUID", "SHELLOPTS", "BASHOPTS", "BASH", "BASHPID",
    "BASH_ARGV0", "BASH_COMMAND", "BASH_SUBSHELL", "BASH_VERSION", "BASH_VERSINFO", "RANDOM", "SRANDOM", "SECONDS",
    "LINENO", "EPOCHREALTIME", "EPOCHSECONDS", "HISTCMD", "COMP_WORDBREAKS", "GROUPS", "DIRSTACK", "FUNCNAME", "COLUMNS",
    "LINES", "POSIXLY_CORRECT", "GLOBIGNORE", "FUNCNEST", "BASH_COMPAT", "EXECIGNORE", "TMOUT", "BASH_XTRACEFD", "LC_ALL", "LC_CTYPE", "LANG", "MAPFILE", "REPLY", "OLDPWD", "SHLVL", "_wh_seen",
)  # fmt: skip


def entries(path: Path) -> list[bytes]:
    return sorted(path.read_bytes().split(b"\0"))


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(
    "env",
    [
        {
            "SHLVL": "3",
            "PWD": "",
            "A": "x\ny",
            "EMPTY": "",
            "IFS": "a",
            "_wh_REAL": "x",
            "OLDPWD": "/nowhere",
            "OPTIND": "7",
            "PS1": "$(id)",
            "WORKHORSE_MODE": "",
        },
        {"SHLVL": "1", "BASH_FUNC_module%%": "() {  eval `/bin/false`\n}", "A.B": "1", "a-b": "2", "BASH_ENV": "/x", "ENV": "/x"},
        {"BASH_FUNC_exec%%": "() { echo caught; }", "BASH_FUNC_[%%": "() { echo caught; }", "BASH_FUNC_read%%": "() { :; }"},
        {"SHLVL": "05", "OLDPWD": ""},
        {"LC_ALL": "C"},
        {"LC_ALL": "C.UTF-8", "LANG": "C"},
        {"LC_ALL": "zz_ZZ.UTF-8"},
        {"LC_ALL": "", "PS4": "x"},
        {"PS4": "x"},
        {"LC_ALL": "C", "IFS": "x"},
        {"LC_ALL": "zz_ZZ", "FUNCNEST": "1", "POSIXLY_CORRECT": "", "EXECIGNORE": "*", "TMOUT": "1"},
        {"SHLVL": "999", "INIT_PWD": "/tmp", "OLDPWD": "/tmp"},
        *({name: value} for name in BASHS_OWN for value in ("7", "")[: 1 + (name != "OPTIND")]),
    ],
)
def test_the_environment_is_the_callers(shim, ours, env):
    """The reason why the shim runs under bash: dash drops or changes some entries."""
    if not ours:
        (shim.root / "answer").write_text("")
    env = {**env, "PWD": str(shim.root)}
    direct = {k: v for k, v in {**shim.env, **env}.items() if k in env or k != "SHLVL"}
    subprocess.run(
        [shim.sbatch, "-N4", "job.sh"], env=direct, cwd=shim.root, stdin=subprocess.DEVNULL, check=True, capture_output=True
    )
    subprocess.run(
        [shim.real, "-N4", "job.sh"], env=direct, cwd=shim.root, stdin=subprocess.DEVNULL, check=True, capture_output=True
    )
    assert entries(shim.out / "env0") == entries(shim.out / "env1")


def test_a_bare_environment_stays_bare(shim):
    """As cron and services call it; bash would leave SHLVL and PWD there (dash does leave PWD)."""
    env = {"PATH": shim.env["PATH"], "OUT": shim.env["OUT"]}
    subprocess.run(
        [shim.sbatch, "-N1", "job.sh"], env=env, cwd=shim.root, stdin=subprocess.DEVNULL, check=True, capture_output=True
    )
    names = {entry.split(b"=")[0] for entry in (shim.out / "env0").read_bytes().split(b"\0") if entry}
    assert names == {b"PATH", b"OUT"}


def test_the_next_sbatch_in_path_that_is_not_ourselves(shim):
    """Neither the same file, nor a link to it, nor a copy: an endless chain of us would never submit."""
    folders = [shim.root / name for name in ("one", "two", "three", "four")]
    for folder in folders:
        folder.mkdir()
    write_shim(
        folders[0] / "sbatch", REAL="/nowhere/sbatch", PYTHON=shim.python, LIB=shim.root / "lib", LOCAL=shim.root / "local"
    )
    (folders[1] / "sbatch").symlink_to(folders[0] / "sbatch")
    shutil.copy(ROOT / "etc" / "sbatch", folders[2] / "sbatch")
    shutil.copy(shim.real, folders[3] / "sbatch")
    path = ":".join(map(str, folders)) + ":" + shim.env["PATH"]
    done = subprocess.run(
        ["sbatch", "-N1", "job.sh"], env={**shim.env, "PATH": path}, cwd=shim.root, capture_output=True, timeout=20
    )
    assert done.stdout == b"Submitted batch job 0\n" and len(shim.calls()) == 1
    path = ":".join(map(str, folders[:3]))
    broken = subprocess.run(
        [folders[0] / "sbatch", "x"], env={**shim.env, "PATH": path}, cwd=shim.root, capture_output=True, timeout=20
    )
    assert broken.returncode == 127 and b"no other sbatch" in broken.stderr


def test_notes_are_told_on_a_terminal_only(shim):
    leader, follower = os.openpty()
    subprocess.run(
        [shim.sbatch, "-N4", "job.sh"], env=shim.env, cwd=shim.root, stdin=subprocess.DEVNULL, stderr=follower, check=True
    )
    os.close(follower)
    assert os.read(leader, 1000) == b"workhorse: a note\r\n"
    os.close(leader)


def test_a_data_file_is_not_read_far(shim):
    """A file without line breaks in place of the script costs no more than its first bytes."""
    big = shim.root / "big"
    with open(big, "wb") as file:
        file.write(b"#!")
        file.truncate(2_000_000_000)
    (shim.root / "local" / "hints").write_text(HINTS)
    started = time.monotonic()
    shim.run("big")
    assert time.monotonic() - started < 1 + SLACK and shim.calls() == [["big"]]
