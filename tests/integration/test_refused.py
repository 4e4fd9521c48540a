"""Slurm refuses our options: the user's own go in once and alone, and nothing of it is seen. Nothing else is tried again.

The answers are made up here (those of the real decision aren't refused); sbatch and slurmctld are real.
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import Sandbox
from tests.wrapped import REAL, Wrapped, write_shim

pytestmark = pytest.mark.integration
SCRIPT = "#!/bin/bash\n#SBATCH -N4 -t 5 -o /dev/null\nexit 3\n"


class Refused:
    """A shim whose child gives the answer told to it; each call of sbatch is taken down."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.wrapped = sandbox, Wrapped(sandbox)
        root = self.wrapped.root
        self.calls, self.answer = root / "calls", root / "answer"
        self.calls.touch()
        self.calls.chmod(0o666)
        real, python = root / "real", root / "python"
        real.write_text(f'#!/bin/sh\necho "$*" >>{self.calls}\nexec {REAL} "$@"\n')
        python.write_text(f"#!/bin/sh\nexec cat {self.answer}\n")
        for program in (real, python):
            program.chmod(0o755)
        places = {"LIB": self.wrapped.lib, "PUBLISH": self.wrapped.public, "LOCAL": self.wrapped.local}
        self.shim = write_shim(root / "bin" / "sbatch", REAL=real, PYTHON=python, WAIT=15, **places)

    def submit(self, ours: list[str], *argv: str | Path, again: int = 1, **more) -> subprocess.CompletedProcess[str]:
        lines = [f"workhorse 1 0 {len(ours)} {again}", *(f"+{word}" for word in ours), "end", ""]
        self.answer.write_text("\n".join(lines))
        self.calls.write_text("")
        env = {**self.sandbox.env, **more.pop("env", {})}
        return subprocess.run(
            [self.shim, *argv], env=env, capture_output=True, text=True, timeout=120, check=False, cwd="/tmp", **more
        )

    def made(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """One that refuses more than others at once."""
    with Sandbox(nodes=16, extra_conf=["EnforcePartLimits=ALL"]) as running:
        running.run(["scontrol", "update", "PartitionName=small", "MaxNodes=4"])
        yield running


@pytest.fixture(scope="module")
def refused(sandbox: Sandbox) -> Refused:
    return Refused(sandbox)


# Slurm's words, the option that provokes them, the user's own node count
REFUSALS = (
    ("Invalid node name specified", "--exclude=gone[001-003]", "-N4"),
    ("Requested node configuration is not available", "--exclude=gpu[01-13]", "-N4"),
    ("Node count specification invalid", "--nodes=5", "-n8"),
    ("invalid number of nodes", "--nodelist=gpu[03-06]", "-N2"),
)


@pytest.mark.parametrize(("words", "ours", "count"), REFUSALS, ids=[words for words, _, _ in REFUSALS])
@pytest.mark.parametrize("where", ["file", "stdin"])
def test_the_users_own_go_in_alone(sandbox, refused, words, ours, count, where):
    small = ["-p", "small"] if ours.startswith("--nodes=") else []
    alone = sandbox.run([REAL, ours, count, *small, "--wrap=true"], check=False)
    if alone.returncode == 0:
        pytest.skip("this version of Slurm takes that")  # a list longer than the count: from 23.02 on
    assert words in alone.stderr
    script = sandbox.write_script(SCRIPT.replace("-N4", count))
    argv = [*small, *([script] if where == "file" else [])]
    done = refused.submit([ours], *argv, **({"input": script.read_text()} if where == "stdin" else {}))
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("Submitted batch job ")
    assert refused.made() == [" ".join(map(str, words)) for words in ([ours, *argv], argv)]
    job = sandbox.job(int(done.stdout.split()[-1]))
    sandbox.run(["scancel", job["JobId"]])
    assert (job["ExcNodeList"], job["ReqNodeList"]) == ("(null)", "(null)") and "Comment" not in job


@pytest.mark.parametrize("argv", [("--nosuch",), ("-N3-2",), ("--mem=x",), ("-p", "nowhere")])
def test_what_is_the_users_mistake_is_told_as_sbatch_tells_it(sandbox, refused, argv):
    script = sandbox.write_script(SCRIPT)
    plain = sandbox.run([REAL, *argv, script], check=False)
    done = refused.submit(["--exclude=gpu02"], *argv, script)
    said = done.stderr.replace(str(refused.wrapped.root / "real"), REAL)
    assert plain.returncode != 0 and (done.returncode, done.stdout, said) == (plain.returncode, plain.stdout, plain.stderr)
    assert len(refused.made()) == 1


def test_a_refusal_of_both_is_told_once(sandbox, refused):
    script = sandbox.write_script(SCRIPT)
    plain = sandbox.run([REAL, "-x", "gone2", script], check=False)
    done = refused.submit(["--comment=x"], "-x", "gone2", script)
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, "", plain.stderr) and len(refused.made()) == 2


def test_wait_gives_the_jobs_code_and_is_no_refusal(sandbox, refused):
    script = sandbox.write_script(SCRIPT.replace("-N4", "-N1"))
    done = refused.submit(["--comment=wh=1;m=avoid"], "--wait", script, again=0)
    assert done.returncode == 3 and len(refused.made()) == 1


def test_a_lost_connection_is_never_tried_again(sandbox, refused):
    """The job may exist: slurmctld has taken the call and said nothing."""
    script = sandbox.write_script(SCRIPT)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(50)
        lines = (f"SlurmctldPort={deaf.getsockname()[1]}", "MessageTimeout=5", "SlurmctldTimeout=5")
        done = refused.submit(["--exclude=gpu02"], script, env=sandbox.variant(*lines))
    assert done.returncode != 0 and done.stdout == "" and done.stderr and len(refused.made()) == 1


def test_a_closed_port_is_sbatchs_to_tell(sandbox, refused):
    script = sandbox.write_script(SCRIPT)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        env = sandbox.variant(f"SlurmctldPort={taken.getsockname()[1]}", "MessageTimeout=5")
        started = time.monotonic()
        plain = sandbox.run([REAL, script], env=env, check=False, timeout=120)
        took = time.monotonic() - started
        started = time.monotonic()
        done = refused.submit(["--exclude=gpu02"], script, env=env)
        assert time.monotonic() - started < took + 6
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr) and len(
        refused.made()
    ) == 1
