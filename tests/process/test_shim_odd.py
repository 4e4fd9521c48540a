"""The shim where the caller's surroundings are odd: no program in PATH, thousands of arguments, others' files in the way."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.process.test_shim import OURS, SCRIPT, SLACK, Shim
from tests.wrapped import write_shim

HINTS = "mode steer\nmin_nodes 2\nmin_gpus 0\ndirectives 1\nend\n"


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    made = Shim(tmp_path)
    made.says(*OURS)
    return made


def called(shim: Shim, *args: str, env: dict[str, str], path: Path | None = None) -> subprocess.CompletedProcess:
    how = {"env": env, "cwd": shim.root, "stdin": subprocess.DEVNULL, "capture_output": True, "timeout": 60}
    return subprocess.run([path or shim.sbatch, *args], check=False, **how)


@pytest.mark.parametrize(("bare", "ours"), [(True, False), (False, True), (True, True)])
def test_thousands_of_arguments_cost_no_time(shim, bare, ours):
    """As of `sbatch job.sh data/*`; bare: as cron calls it."""
    if not ours:
        (shim.root / "answer").write_text("")
    words = ["-N4", "job.sh", *map(str, range(4000))]
    started = time.monotonic()
    called(shim, *words, env={k: v for k, v in shim.env.items() if not bare or k != "SHLVL"})
    assert time.monotonic() - started < 2 + SLACK
    assert shim.calls() == [[*(OURS if ours else ()), *words]]


def test_an_answer_that_names_a_place_behind_the_last_argument_adds_nothing(shim):
    shim.says(*OURS, at=3)
    shim.run("-N4", "job.sh")
    assert shim.calls() == [["-N4", "job.sh"]]


@pytest.mark.parametrize("asked", [False, True])
def test_a_path_that_holds_nothing_but_slurm(shim, asked):
    """What the shim itself needs is found all the same, or done without."""
    real = shim.root / "real"
    real.write_text("#!/bin/sh\necho job; echo trouble >&2; exit 3\n")
    real.chmod(0o755)
    program = write_shim(
        shim.root / "bin" / "bare", REAL=real, PYTHON=shim.python, LIB=shim.root / "lib", LOCAL=shim.root / "local", WAIT=5
    )
    (shim.root / "python").write_text(f"#!/bin/sh\nexec /bin/cat '{shim.root}/answer'\n")
    done = called(shim, "-N4" if asked else "-N1", "job.sh", env={"PATH": "/nowhere"}, path=program)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"job\n", b"trouble\n")


@pytest.mark.parametrize("text", [HINTS.replace("\n", "\r\n"), HINTS.replace("2", "x"), HINTS.replace("2", "9" * 30), "\0\0", ""])
def test_damaged_hints_are_none(shim, text):
    (shim.root / "local" / "hints").write_text(text)
    done = shim.run("-N4", "job.sh")
    assert (done.returncode, done.stderr) == (0, b"") and shim.calls() == [[*OURS, "-N4", "job.sh"]]


def test_a_fifo_in_place_of_the_hints_holds_nothing_up(shim):
    os.mkfifo(shim.root / "local" / "hints")
    shim.run("-N4", "job.sh")
    assert shim.calls() == [[*OURS, "-N4", "job.sh"]]


def test_where_no_argument_fits_any_more_the_users_own_go_in_alone(shim):
    """Ours can be what makes the call longer than the system takes."""
    shim.script.write_text(SCRIPT)
    most = os.sysconf("SC_ARG_MAX")
    size = sum(len(k) + len(v) + 10 for k, v in shim.env.items())
    words = ["x" * 1000] * ((most - size - 9000) // 1009)
    shim.says("--exclude=" + "n" * 60_000)
    shim.act("exit 0")
    done = shim.run("-N4", "job.sh", *words)
    assert shim.calls() == [["-N4", "job.sh", *words]] and (done.returncode, done.stderr) == (0, b"")
