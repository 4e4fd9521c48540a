"""The shim after sbatch has answered: refusals of our options, its output to the byte, signals, --wait.

Each test runs under `bash -p`, as installed, and under dash where that is there.
"""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.process.test_shim import OURS, SCRIPT, SHELLS, Shim


@pytest.fixture(params=SHELLS, ids=lambda shell: shell.split(maxsplit=1)[0])
def shim(request: pytest.FixtureRequest, tmp_path: Path) -> Shim:
    made = Shim(tmp_path, request.param)
    made.says(*OURS)
    return made


REFUSALS = [
    "sbatch: error: Batch job submission failed: Invalid node name specified",
    "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    "sbatch: error: Batch job submission failed: Node count specification invalid",
    # newer words for nodes that are too few, or too far apart
    "sbatch: error: Batch job submission failed: Requested topology configuration is not available",
    "sbatch: error: Batch job submission failed: Required nodes do not fit topology",
    "sbatch: error: Batch job submission failed: Requested partition configuration not available now",
    "sbatch: error: Batch job submission failed: Requested nodes not in this partition",
]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_refused_options_are_taken_back_once(shim, refusal):
    shim.act(f"echo '{refusal}' >&2; exit 1", call=0)
    done = shim.run("-N4", "job.sh")
    assert shim.calls() == [[*OURS, "-N4", "job.sh"], ["-N4", "job.sh"]]
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Submitted batch job 1\n", b"")


def test_the_users_own_refusal_is_the_users(shim):
    for call in (0, 1):
        shim.act(f"echo '{REFUSALS[0]}' >&2; exit 1", call)
    done = shim.run("-N4", "job.sh")
    assert len(shim.calls()) == 2
    assert (done.returncode, done.stdout, done.stderr.decode()) == (1, b"", REFUSALS[0] + "\n")


@pytest.mark.parametrize("content", [SCRIPT.encode(), b"#!/bin/sh\n#SBATCH -N4\n\0\xfe"])
@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_a_script_on_stdin_is_there_again_after_a_refusal(shim, content, kind):
    shim.act(f"echo '{REFUSALS[0]}' >&2; exit 1", call=0)
    shim.script.write_bytes(content)
    env = {"READ_STDIN": "1"}
    if kind == "pipe":
        shim.run(input=content, env=env)
    else:
        with open(shim.script, "rb") as file:
            shim.run(stdin=file, env=env)
    assert [(shim.out / f"stdin{i}").read_bytes() for i in (0, 1)] == [content, content]


@pytest.mark.parametrize(
    ("act", "code", "stderr"),
    [
        ("echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1", 1, None),
        ("echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1", 1, None),
        ("echo 'sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying' >&2", 0, None),
        ("printf 'no line break' >&2; exit 7", 7, b"no line break"),
        ("printf 'a\\n\\n\\0b\\377\\n' >&2; exit 0", 0, b"a\n\n\0b\xff\n"),
        ("exit 42", 42, b""),
        ("echo 'sbatch: error: a mistake' >&2; exit 255", 255, None),
        (f"echo '{REFUSALS[0]}' >&2", 0, None),
    ],
)
def test_anything_else_is_said_once_and_not_tried_again(shim, act, code, stderr):
    shim.act(act)
    done = shim.run("-N4", "job.sh")
    assert len(shim.calls()) == 1 and done.returncode == code
    assert (
        done.stderr == stderr
        if stderr is not None
        else done.stderr.startswith(b"sbatch: error: ") and done.stderr.count(b"\n") == 1
    )


@pytest.mark.parametrize("again", [0, 1])
@pytest.mark.parametrize(
    "said", [b"Welcome to login 7\n9\n", b"12;x\n", b"Submitted batch job 5 on cluster x\n",
             b"sbatch: error: Invalid node name specified\n", b"\n\0\xe9"]
)  # fmt: skip
def test_stdout_is_sbatchs_own_to_the_byte(shim, said, again):
    """Of a site's banner, a SPANK plugin or another form of the answer nothing is read, and nothing is added."""
    shim.says(*OURS, again=again)
    (shim.out / "said").write_bytes(said)
    shim.act('cat "$OUT/said"; exit 1')
    done = shim.run("-N4", "job.sh")
    assert (done.returncode, done.stdout, done.stderr) == (1, said, b"") and len(shim.calls()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("again", [0, 1])
def test_signals_reach_sbatch_and_end_as_it_ends(shim, number, again):
    shim.says(*OURS, again=again)
    shim.act('touch "$OUT/ready"; exec sleep 20')
    running = subprocess.Popen(
        [shim.sbatch, "-N4", "job.sh"], env=shim.env, cwd=shim.root, stdin=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # noqa: PLW1509 - in the background it is ignored
    )  # fmt: skip
    deadline = time.monotonic() + 10
    while not (shim.out / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(number)
    code = running.wait(timeout=5)
    # dash can't undo that a shell ignores SIGINT for what it runs in the background, so there it is handed on as SIGTERM
    assert -code in (number, signal.SIGTERM) if number == signal.SIGINT else -code == number


def test_wait_is_not_held_back(shim):
    """With --wait the answer forbids a second try, and the shim becomes sbatch: the code is the job's."""
    shim.says(*OURS, again=0)
    shim.act(f"echo '{REFUSALS[0]}' >&2; exit 1")
    done = shim.run("-N4", "--wait", "job.sh")
    assert len(shim.calls()) == 1 and done.returncode == 1 and REFUSALS[0].encode() in done.stderr
