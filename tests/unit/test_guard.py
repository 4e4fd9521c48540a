"""The guard of a dispatcher: it acts when the dispatcher just dies, and only then."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_hook import config, passes, watching

ROOT = Path(__file__).resolve().parents[2]
# a dispatcher that takes the lock, says so, and ends as it is told to; its guard writes down each look
DISPATCHER = """
import fcntl, os, sys, time
sys.path.insert(0, sys.argv[1])
from slurm_hook import guard
from slurm_hook.errors import BusyError, SlurmError
folder, how = sys.argv[2], sys.argv[3]
guard.ROUNDS = (0.0, 0.05, 0.05)
fails = [1] if how == "slurm away" else []
def relieve():
    if fails and fails.pop():
        raise SlurmError("no answer")
    with open(folder + "/looks", "a") as file:
        file.write("x")
with guard.posted(folder + "/state.lock", 0.3, relieve):
    lock = os.open(folder + "/state.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("ready", flush=True)
    if how == "busy":
        raise BusyError("another")
    if how == "bug":
        raise ZeroDivisionError
    if how != "orderly":
        time.sleep(60)
"""


def looks(folder):
    return (folder / "looks").read_text() if (folder / "looks").exists() else ""


def poll(reached, timeout=15.0):
    deadline = time.monotonic() + timeout
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.02)
    return reached()


def dispatcher(folder, how):
    argv = [sys.executable, "-B", "-c", DISPATCHER, str(ROOT), str(folder), how]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("how", ["killed", "slurm away", "bug"])
def test_it_takes_everything_off_when_the_dispatcher_dies(tmp_path, how):
    process = dispatcher(tmp_path, how)
    if how != "bug":
        process.kill()
    process.communicate(timeout=20)  # the guard keeps none of its streams open
    assert poll(lambda: looks(tmp_path) == "xxx"), looks(tmp_path)


def gone(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("how", ["orderly", "busy"])
def test_an_end_in_order_dismisses_it(tmp_path, how):
    process = dispatcher(tmp_path, how)
    process.communicate(timeout=20)
    assert poll(lambda: gone(process.pid)) and looks(tmp_path) == ""


def test_signals_to_the_whole_group_end_the_dispatcher_but_not_its_guard(tmp_path):
    """As Ctrl-C in a terminal, or systemd, sends them."""
    process = dispatcher(tmp_path, "killed")
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=20)
    assert poll(lambda: looks(tmp_path) == "xxx")


def test_a_successor_in_time_leaves_it_nothing_to_do(tmp_path):
    process = dispatcher(tmp_path, "killed")
    process.kill()
    process.wait(timeout=20)
    with passes.lock(str(tmp_path / "state"), wait=5.0):
        assert poll(lambda: gone(process.pid))
    assert looks(tmp_path) == ""


def test_a_watch_goes_by_the_settings_as_they_are_now(tmp_path, capsys):
    path = tmp_path / "workhorse.toml"
    path.write_text("[dispatch]\nperiod = 60.0\nstate = '/a'\n[publish]\npath = '/p'\n")
    first = config.load(str(path))
    path.write_text("[dispatch]\nperiod = 5.0\nrequeue = true\nstate = '/b'\n[publish]\npath = '/q'\n")
    now = watching.reread(first)
    assert (now["dispatch.period"], now["dispatch.requeue"]) == (5.0, True)
    assert (now["dispatch.state"], now["publish.path"]) == ("/a", "/p"), "where its lock and its guard are"
    path.write_text("[dispatch]\nperiod = 'soon'\n")
    assert watching.reread(now) is now and "going on with the settings of before" in capsys.readouterr().err
    path.unlink()
    assert watching.reread(now) is now
    assert watching.reread(config.Settings())["dispatch.period"] == 60.0
