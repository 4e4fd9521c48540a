"""The guard of a dispatcher: it acts when the dispatcher just dies, and only then."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_hook.common import config
from slurm_hook.common.errors import SlurmError
from slurm_hook.dispatch import daemon, guard, passes
from slurm_hook.slurm import commands

ROOT = Path(__file__).resolve().parents[2]
# a dispatcher that takes the lock, says so, and ends as it is told to; its guard writes down each look
DISPATCHER = """
import fcntl, os, sys, time
sys.path.insert(0, sys.argv[1])
from slurm_hook.dispatch import guard
from slurm_hook.common.errors import BusyError, SlurmError
folder, how = sys.argv[2], sys.argv[3]
guard.ROUNDS, guard.ANSWER, guard.PAUSE = (0.0, 0.05, 0.05), 0.3, 0.1
if "no pidfd" in how and hasattr(os, "pidfd_open"):
    del os.pidfd_open
fails = [1] if how == "slurm away" else []
def note(name):
    with open(folder + "/" + name, "a") as file:
        file.write("x")
def relieve():
    if fails and fails.pop():
        raise SlurmError("no answer")
    note("looks")
def without_files():
    if not os.path.exists(folder + "/by_marks"):
        note("by_marks")
        raise SlurmError("no answer")
    note("by_marks")
duty = guard.Duty(
    folder + "/state.lock", 0.3, None if "once" in how else relieve, lambda: open(folder + "/state").close(), without_files
)
with guard.posted(duty, 1.2 if how in ("slow", "beating") else 0.4) as pulse:
    lock = os.open(folder + "/state.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("ready", flush=True)
    if how == "busy":
        raise BusyError("another")
    if how == "bug":
        raise ZeroDivisionError
    end = time.monotonic() + (1e9 if how == "beating" else 2.0 if how == "slow" else 0.0)
    while time.monotonic() < end and not os.path.exists(folder + "/go"):
        pulse.beat()
        time.sleep(0.02)
    if how not in ("orderly", "slow", "beating"):
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


@pytest.mark.parametrize("how", ["stopped", "stopped, no pidfd", "stuck"])
def test_it_ends_a_dispatcher_that_hangs_and_takes_everything_off(tmp_path, how):
    process = dispatcher(tmp_path, how)
    if how != "stuck":  # in its long sleep
        process.send_signal(signal.SIGSTOP)
    assert process.wait(timeout=20) == -signal.SIGKILL
    assert poll(lambda: looks(tmp_path) == "xxx"), looks(tmp_path)
    assert not (tmp_path / "by_marks").exists(), "the files answer"


def test_a_single_pass_that_hangs_is_ended_and_the_next_one_does_the_rest(tmp_path):
    process = dispatcher(tmp_path, "once")
    assert process.wait(timeout=20) == -signal.SIGKILL
    assert poll(lambda: gone(process.pid)) and looks(tmp_path) == ""
    assert not guard.taken(str(tmp_path / "state.lock"))


def test_where_files_do_not_answer_confined_jobs_are_widened_without_them(tmp_path):
    """A FIFO that nobody writes to is such a file. The rest follows when it answers."""
    os.mkfifo(tmp_path / "state")
    process = dispatcher(tmp_path, "stuck")
    assert process.wait(timeout=20) == -signal.SIGKILL
    assert (tmp_path / "by_marks").exists(), "before the end: who ends the service ends the guard"
    assert poll(lambda: len((tmp_path / "by_marks").read_text()) > 1), "and again: Slurm didn't take it"
    assert looks(tmp_path) == ""
    os.close(os.open(tmp_path / "state", os.O_RDWR | os.O_NONBLOCK))
    (tmp_path / "state").unlink()
    assert poll(lambda: looks(tmp_path) == "xxx"), looks(tmp_path)


def test_one_that_is_slow_but_gets_on_is_left_alone(tmp_path):
    process = dispatcher(tmp_path, "slow")
    assert process.wait(timeout=20) == 0
    assert poll(lambda: gone(process.pid)) and looks(tmp_path) == ""


def test_what_stops_the_guard_too_is_no_silence(tmp_path):
    """The machine was suspended, or all of it stopped in a terminal."""
    process = dispatcher(tmp_path, "beating")
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(1.6)  # more than it would bear
    os.killpg(process.pid, signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    (tmp_path / "go").touch()
    assert process.wait(timeout=20) == 0 and looks(tmp_path) == ""


def test_only_the_dispatcher_itself_is_ended_whoever_has_its_number_now():
    one, other = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    known = guard._Dispatcher()
    try:
        known.forget()
        known.descriptor = os.pidfd_open(one.pid)
        one.kill()
        one.wait()
        known.pid = other.pid
        known.kill()
        known.forget()
        known.descriptor = -1  # an old kernel: it isn't our parent
        known.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=0.1)
    finally:
        other.kill()
        other.wait()


def test_signs_of_life_are_few_and_never_wait(tmp_path):
    reader, writer = os.pipe()
    pulse = guard.Pulse(writer, 60.0)
    for _ in range(1000):
        pulse.beat()
    assert os.read(reader, 4096) == guard.ALIVE
    for _ in range(100_000):
        pulse.due = 0.0
        pulse.beat()  # the pipe is full in the end
    os.close(reader)
    pulse.due = 0.0
    pulse.beat()  # and then its guard is dead
    os.close(writer)


def test_each_command_that_ends_is_a_sign_of_life():
    heard = []
    with commands.heard(lambda: heard.append(1)):
        commands.attempt(["true"])
        commands.attempt(["false"])
        with pytest.raises(SlurmError):
            commands.attempt(["/nonexistent"])
    commands.attempt(["true"])
    assert len(heard) == 3


# the watch of a long period, with short patience
WATCH = """
import sys
sys.path.insert(0, sys.argv[1])
from slurm_hook.common import config
from slurm_hook.dispatch import daemon as watching
watching.SILENCE = 1.0
watching._watched_pass = lambda *_: print("pass", flush=True)
watching._end = lambda _: print("end")
watching.watch(config.Settings({"dispatch.state": sys.argv[2], "dispatch.period": 3600.0}))
"""


def test_a_watch_that_waits_for_its_next_pass_is_heard_all_the_while(tmp_path):
    """However long the period is."""
    argv = [sys.executable, "-B", "-c", WATCH, str(ROOT), str(tmp_path / "state")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "pass\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1.5)
        process.terminate()
        assert process.communicate(timeout=20)[0] == "end\n" and process.returncode == 0


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
    now = daemon.reread(first)
    assert (now["dispatch.period"], now["dispatch.requeue"]) == (5.0, True)
    assert (now["dispatch.state"], now["publish.path"]) == ("/a", "/p"), "where its lock and its guard are"
    path.write_text("[dispatch]\nperiod = 'soon'\n")
    assert daemon.reread(now) is now and "going on with the settings of before" in capsys.readouterr().err
    path.unlink()
    assert daemon.reread(now) is now
    assert daemon.reread(config.Settings())["dispatch.period"] == 60.0


def test_who_changes_jobs_for_long_ends_no_watch(tmp_path, monkeypatch, capsys):
    """The next pass tries again; at the end it is no successor, so that the guard goes on trying."""
    for module in (passes, daemon):
        monkeypatch.setattr(module, "LOCK_WAIT", 0.1)
    made = config.Settings({"dispatch.state": str(tmp_path / "state"), "publish.path": str(tmp_path)})
    with passes.lock(made["dispatch.state"], ".pass.lock"):
        daemon._watched_pass(made, None)
        assert ".pass.lock" in capsys.readouterr().err
        with pytest.raises(SlurmError, match="another dispatcher holds"):
            daemon._end(made)
