"""The shim becomes sbatch: its output, its order, its end, signals and descriptors are sbatch's own, at every moment."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.process.test_shim import OURS, SCRIPT, Shim, nothing_ignored

REFUSAL = "sbatch: error: Batch job submission failed: Requested node configuration is not available"


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    made = Shim(tmp_path)
    made.says(*OURS)
    return made


@pytest.fixture(params=["ours", "not ours"])
def both(request: pytest.FixtureRequest, shim: Shim) -> Shim:
    """A shim that adds options, and one that doesn't."""
    if request.param == "not ours":
        (shim.root / "answer").write_text("pass\nend\n")
    return shim


@pytest.mark.parametrize(
    ("act", "code", "stdout", "stderr"),
    [
        (f"echo '{REFUSAL}' >&2; exit 1", 1, b"", REFUSAL.encode() + b"\n"),  # no second try: a job may be there
        ("printf 'no line break' >&2; exit 7", 7, b"", b"no line break"),
        ("printf 'a\\n\\0b\\377\\n' >&2; printf '\\n\\0\\351'; exit 255", 255, b"\n\0\xe9", b"a\n\0b\xff\n"),
        ("exit 130", 130, b"", b""),  # as SLURM_EXIT_ERROR has it: no signal
        ("kill -s QUIT $$", -signal.SIGQUIT, b"", b""),
        ("echo Welcome; echo 12;x", 0, b"Welcome\n12\nSubmitted batch job 0\n", None),
    ],
)
def test_what_it_says_and_how_it_ends(both, act, code, stdout, stderr):
    both.act(act)
    done = both.run("-N4", "job.sh")
    assert (done.returncode, done.stdout) == (code, stdout) and len(both.calls()) == 1
    assert stderr is None or done.stderr == stderr


def test_its_words_come_in_its_order(both):
    both.act("echo one >&2; echo two; echo three >&2")
    done = subprocess.run(
        [both.sbatch, "-N4", "job.sh"], env=both.env, cwd=both.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=True,
    )  # fmt: skip
    assert done.stdout == b"one\ntwo\nthree\nSubmitted batch job 0\n"


def test_it_is_the_callers_own_child_with_the_callers_own_descriptors(both):
    both.act('echo $$ >"$OUT/pid"; cd /proc/$$/fd; for n in *; do readlink $n; done >"$OUT/fds"')
    opened = " ".join(f"{number}>{both.root}/f{number}" for number in (3, 4, 5, 6, 7, 8, 9, 10, 11, 20))
    made = []
    for program in (both.real, both.sbatch):
        words = ["bash", "-c", f"exec {opened}; exec {program} -N4 job.sh"]
        running = subprocess.Popen(words, env=both.env, cwd=both.root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        assert running.wait(timeout=20) == 0 and (both.out / "pid").read_text() == f"{running.pid}\n"
        made.append([line for line in (both.out / "fds").read_text().split() if "/f" in line])
        (both.out / "argv0").unlink()
    assert made[0] == made[1] and len(made[0]) >= 10


DEADLY = [
    getattr(signal, f"SIG{name}") for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "PIPE", "XCPU", "TERM", "KILL")
]


@pytest.mark.parametrize("number", DEADLY, ids=lambda number: number.name)
@pytest.mark.parametrize("asking", [True, False])
def test_a_signal_ends_it_as_it_ends_sbatch(shim, number, asking):
    """Before the decision is there, and after: dead by that signal at once, and nothing is submitted later."""
    if asking:
        shim.program("python", f"#!/bin/sh\ntouch '{shim.out}/ready'\nsleep 1\ncat '{shim.root}/answer'\n")
    else:
        shim.act('touch "$OUT/ready"; exec sleep 20')
    running = subprocess.Popen(
        [shim.sbatch, "-N4", "job.sh"], env=shim.env, cwd=shim.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, preexec_fn=nothing_ignored,  # noqa: PLW1509 - single-threaded here
    )  # fmt: skip
    deadline = time.monotonic() + 10
    while not (shim.out / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(number)
    said, _ = running.communicate(timeout=5)  # its pipe is nobody else's
    assert (running.returncode, said) == (-number, b"")
    if asking:
        time.sleep(1.2)  # until the child's answer is out
        assert shim.calls() == []


WRITES = """#!/usr/bin/python3
import os
for number, text in ((1, b"job\\n"), (2, b"said\\n")):
    try:
        os.write(number, text)
    except OSError:
        pass
os._exit(5)
"""
POOR = (
    "<&-", ">&-", "2>&-", "<&- >&- 2>&-", "ulimit -n 8", "ulimit -n 12", "ulimit -n 64", "ulimit -f 0", "export FUNCNEST=1",
    "export LC_ALL=zz LANG=zz", "export LC_ALL=zz_ZZ.UTF-8", "export POSIXLY_CORRECT=1", "export BASH_COMPAT=3.1",
    "export TMOUT=1", "export TMPDIR=/nowhere", "export EXECIGNORE='*'", "export BASH_ENV=/nowhere",
)  # fmt: skip


@pytest.mark.parametrize("surroundings", POOR)
def test_poor_surroundings_cost_neither_the_job_nor_a_word(both, surroundings):
    """Compared with the stand-in sbatch alone: what it says and how it ends; and no file is left behind."""
    both.real.write_text(WRITES)
    (both.root / "tmp").mkdir()
    made = []
    for sbatch in (both.real, both.sbatch):
        before, after = ("", surroundings) if "&-" in surroundings else (f"{surroundings};", "")
        words = ["bash", "-c", f"{before} exec {sbatch} -N4 job.sh {after}"]
        env = {**both.env, "TMPDIR": str(both.root / "tmp")}
        done = subprocess.run(
            words, env=env, cwd=both.root, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
        )
        made.append((done.returncode, done.stdout, done.stderr))
    assert made[0] == made[1]
    assert not os.listdir(both.root / "tmp") and not list(Path("/dev/shm").glob("*workhorse*"))


def test_a_script_on_a_pipe_is_never_taken_out_of_it(both):
    done = both.run("-N4", input=SCRIPT.encode() * 2000, env={"READ_STDIN": "1"})
    assert done.returncode == 0 and (both.out / "stdin0").read_bytes() == SCRIPT.encode() * 2000


def test_a_script_that_says_test_only_is_not_asked_about(shim):
    shim.script.write_text("#!/bin/sh\n#SBATCH --test-only\ntrue\n")
    shim.run("-N4", "job.sh")
    assert shim.calls() == [["-N4", "job.sh"]]
