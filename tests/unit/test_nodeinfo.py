"""The child that asks slurmctld through Slurm's library: whatever becomes of it, its parent learns it and nothing is left."""

import os
import signal
import time
from pathlib import Path

import pytest

from slurm_hook.common.errors import SlurmError
from slurm_hook.slurm import node_rpc


@pytest.fixture
def helper(request):
    """A child that lives for so many seconds; at the end nothing of it is left."""
    made = node_rpc.Helper(getattr(request, "param", 10))
    pid = made.pid
    yield made
    made.end()
    made.end()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("library", ["/nowhere/libslurm.so", "/etc/passwd", "/lib/x86_64-linux-gnu/libm.so.6", ""])
def test_a_library_that_is_none_gives_nothing(helper, library):
    helper.load(library)
    helper.ask()
    assert helper.output(10) == ""


def test_a_child_that_is_killed_gives_nothing(helper):
    os.kill(helper.pid, signal.SIGKILL)
    helper.load("/x")
    helper.ask()
    assert helper.output(10) == ""


def test_an_answer_that_does_not_come_is_given_up(helper):
    started = time.monotonic()
    with pytest.raises(SlurmError, match="in time"):
        helper.output(0.05)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("helper", [0.05], indirect=True)
def test_it_ends_by_itself(helper):
    """Its parent may be killed, or be too busy to care."""
    assert helper.output(10) == ""


@pytest.mark.parametrize("pid", [os.getpid(), 0, 1 << 30], ids=["ours", "zero", "no such"])
def test_programs_without_slurms_library(pid):
    assert node_rpc.library_of(pid) == ""


def test_the_library_of_a_program(monkeypatch, tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "55d0-55d1 r--p 00000000 08:01 1   /usr/bin/sbatch\n"
        "7f00-7f01 r--p 00000000 08:01 2    /opt/a b/lib/slurm/libslurmfull.so\n"
        "7f02-7f03 r--p 00000000 08:01 2    /opt/a b/lib/slurm/auth_munge.so\n"
    )
    real = open
    monkeypatch.setattr("builtins.open", lambda path, **how: real(maps if str(path).endswith("/7/maps") else path, **how))
    assert Path(node_rpc.library_of(7)) == Path("/opt/a b/lib/slurm/libslurmfull.so")
