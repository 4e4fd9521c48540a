# ruff: noqa: E501
"""Whatever breaks on our side, the submission does what it would have done: on a real Slurm."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accounting.reports import metrics
from slurm_hook.common import hostlist
from slurm_hook.published import snapshot
from tests.process.test_shim import Shim
from tests.sandbox import Sandbox
from tests.wrapped import PYTHON, REAL, Wrapped, write_shim

pytestmark = pytest.mark.integration
SLACK = 4  # seconds that a busy machine may add to two


@pytest.fixture(scope="module")
def job(sandbox: Sandbox) -> Path:
    return sandbox.write_script("#!/bin/bash\n#SBATCH -N4 -t 5\ntrue\n")


@pytest.fixture
def wrapped(sandbox: Sandbox) -> Iterator[Wrapped]:
    made = Wrapped(sandbox, wait=1.6)
    made.publish("steer", bad=("gpu02",))
    yield made
    shutil.rmtree(made.root)


def excludes(sandbox: Sandbox, wrapped: Wrapped, job: Path, **more) -> str:
    started = time.monotonic()
    number = sandbox.sbatch("--hold", job, binary=wrapped.sbatch, **more)
    assert time.monotonic() - started < 2 + SLACK
    shown = sandbox.job(number)["ExcNodeList"]
    sandbox.run(["scancel", str(number)])
    return shown


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def big(path: Path) -> None:
    os.truncate(path, 1 << 30)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def hostile(path: Path) -> None:
    data = json.loads(path.read_text())
    data["id"] = "x\n+--wrap=id\nend\n"
    data["nodes"]["name"] = [f"{name}\n+--evil" for name in data["nodes"]["name"]]
    path.write_text(json.dumps(data))


FAULTS = {
    "missing": Path.unlink, "truncated": truncate, "1 GB": big, "fifo": fifo, "folder": folder, "not JSON": lambda p: p.write_text("{"),
    "deep": lambda p: p.write_text("[" * 100_000), "foreign": lambda p: shutil.chown(p, "alice"), "writable": lambda p: p.chmod(0o666),
    "writable folder": lambda p: p.parent.chmod(0o777), "format": lambda p: p.write_text('{"format": 99}'), "hostile": hostile,
    "no rights": lambda p: p.chmod(0), "settings": lambda p: p.write_text(p.read_text().replace('"steer"', '"bogus"')),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_published_files_that_are_broken_or_not_to_be_trusted(sandbox, wrapped, job, fault):
    FAULTS[fault](wrapped.public / snapshot.SCORES_NAME)
    assert excludes(sandbox, wrapped, job) == "(null)"


@pytest.fixture
def syslog() -> Iterator[Callable[[], dict]]:
    """What arrives at /dev/log, where nothing else listens there."""
    if Path("/dev/log").exists():
        pytest.skip("this machine has a syslog of its own")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("/dev/log")
        Path("/dev/log").chmod(0o666)
        heard.settimeout(10)
        try:
            texts = (heard.recv(65536).decode().partition(": ")[2].rstrip("\0") for _ in itertools.count())
            said = (json.loads(text) for text in texts if text.startswith("{"))  # others' programs talk there, too
            # whoever else submits on this machine through a wrapper of the tests is heard too: only what is waited for counts
            yield lambda reason: next(
                line for line in said if metrics.decision_key(line)[1] == "fail_open" and line["reason"] == reason
            )
        finally:
            Path("/dev/log").unlink()


@pytest.mark.parametrize(
    ("fault", "reason"), [("missing", "snapshot"), ("fifo", "snapshot"), ("hangs", "no answer"), ("dies", "no answer")]
)
def test_failures_of_ours_are_counted(sandbox, wrapped, job, syslog, fault, reason):
    """Each leaves a line in syslog, by its cause; `workhorse metrics` counts these."""
    settings = {"REAL": REAL, "PYTHON": PYTHON, "LIB": wrapped.lib, "PUBLISH": wrapped.public, "LOCAL": wrapped.local}
    if fault in FAULTS:
        FAULTS[fault](wrapped.public / snapshot.SCORES_NAME)
        write_shim(wrapped.sbatch, **settings, WAIT=15)  # a busy machine's slowness is another reason
    else:
        python = wrapped.root / "python"
        python.write_text("#!/bin/sh\nexec sleep 60\n" if fault == "hangs" else "#!/bin/sh\nexit 1\n")
        python.chmod(0o755)
        write_shim(wrapped.sbatch, **settings | {"PYTHON": python})
    number = sandbox.sbatch("--hold", job, binary=wrapped.sbatch)
    assert sandbox.job(number)["ExcNodeList"] == "(null)"
    sandbox.run(["scancel", str(number)])
    assert metrics.decision_key(syslog(reason)) == ("wrapper", "fail_open")


def test_a_broken_live_file_means_at_most_avoid(sandbox, wrapped, job):
    (wrapped.public / snapshot.LIVE_NAME).write_text("{")
    assert excludes(sandbox, wrapped, job) in ("gpu02", "(null)")


PYTHONS = {"hangs": "#!/bin/sh\nexec sleep 60\n", "python": "#!/nowhere/python\n", "killed": "#!/bin/sh\nkill -9 $$\n"}


@pytest.mark.parametrize("fault", ["library", "module", "venv", *PYTHONS])
def test_a_broken_installation(sandbox, wrapped, job, fault):
    if fault == "library":
        shutil.rmtree(wrapped.lib)
    elif fault == "module":
        (wrapped.lib / "slurm_hook" / "decision" / "decide.py").write_text("import no_such_module\n")
    else:
        python = wrapped.root / "venv" / "bin" / "python"
        if fault != "venv":  # that one is gone
            python.parent.mkdir(parents=True)
            python.write_text(PYTHONS[fault])
            python.chmod(0o755)
        write_shim(wrapped.sbatch, REAL=REAL, PYTHON=python, LIB=wrapped.lib, PUBLISH=wrapped.public, LOCAL=wrapped.local)
    assert excludes(sandbox, wrapped, job) == "(null)"


def test_pythons_variables_change_nothing(sandbox, wrapped, job):
    """A user's PYTHON* may name modules of the same names, or a Python that isn't there; none of them is ever run."""
    traps = wrapped.root / "traps"
    (traps / "slurm_hook").mkdir(parents=True)
    for name in ("slurm_hook/__init__", "sitecustomize", "usercustomize", "posix", "_ctypes", "syslog", "select", "startup"):
        (traps / f"{name}.py").write_text(f"open({str(wrapped.root / 'sprung')!r}, 'w')\nraise SystemExit(3)\n")
    env = {
        "PYTHONPATH": str(traps), "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": str(traps / "startup.py"), "PYTHONINSPECT": "1",
        "PYTHONUSERBASE": str(traps), "PYTHONWARNINGS": "error", "PYTHONMALLOC": "nonsense", "PYTHONHASHSEED": "nonsense",
    }  # fmt: skip
    made = hostlist.expand(excludes(sandbox, wrapped, job, env=env))
    assert len(made) >= 11 and not (wrapped.root / "sprung").exists()


# A file system that doesn't answer: its server has the connection and never reads from it. In a mount namespace of its own,
# so that nobody else's look at it hangs.
DEAF = """exec 9<>/dev/fuse || exit 77
mount -i -t fuse -o fd=9,rootmode=40000,user_id=0,group_id=0,allow_other deaf "$PUBLIC" || exit 77
"$@" 9<&-
"""
# Disks without room, wherever the shim could write: nothing fits, though files can be made.
FULL = """mkdir -p "$ROOT.kept" && mount --bind "$ROOT" "$ROOT.kept" && mount -t tmpfs -o size=16k full /dev/shm || exit 77
mount --move "$ROOT.kept" /mnt && mount -t tmpfs -o size=16k full /tmp && mkdir -p "$ROOT" && mount --move /mnt "$ROOT" || exit 77
for folder in /dev/shm /tmp; do cat /dev/zero >$folder/all 2>/dev/null; done
"$@"
"""


def apart(sandbox: Sandbox, script: str, *argv: str | Path, env: dict[str, str], **more) -> subprocess.CompletedProcess[str]:
    """A command in a mount namespace that the script has prepared."""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", *map(str, argv)], env={**sandbox.env, **env}, capture_output=True, text=True,
        timeout=120, check=False, cwd=sandbox.root, **more,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip(f"this machine allows no such mount: {done.stderr}")
    return done


@pytest.mark.parametrize("way", ["wrapper", "cli_filter"])
def test_a_file_system_that_does_not_answer(sandbox, wrapped, job, way):
    binary, env = (wrapped.sbatch, {}) if way == "wrapper" else (REAL, wrapped.cli_filter())
    started = time.monotonic()
    done = apart(sandbox, DEAF, binary, "--hold", job, env={**env, "PUBLIC": str(wrapped.public)})
    assert time.monotonic() - started < 2 + SLACK
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("Submitted batch job ")
    assert sandbox.job(int(done.stdout.split()[-1]))["ExcNodeList"] == "(null)"
    sandbox.run(["scancel", done.stdout.split()[-1]])


@pytest.mark.parametrize("stdin", [False, True])
def test_a_full_disk(sandbox, wrapped, job, stdin):
    """The job goes in (with our excludes or without), its script whole; what sbatch says of a mistake is not lost."""
    root = Path(sandbox.root)
    argv, how = ([], {"input": job.read_text() + "# é\n" * 3000}) if stdin else ([job], {})
    try:
        done = apart(sandbox, FULL, wrapped.sbatch, "--hold", *argv, env={"ROOT": str(root)}, **how)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("Submitted batch job ")
        number = done.stdout.split()[-1]
        kept = sandbox.run(["scontrol", "write", "batch_script", number, "-"]).stdout
        sandbox.run(["scancel", number])
        assert kept.rstrip("\n") == how.get("input", job.read_text()).rstrip("\n")
        plain = sandbox.run([REAL, "-p", "nowhere", job], check=False)
        mistaken = apart(sandbox, FULL, wrapped.sbatch, "-p", "nowhere", *argv, env={"ROOT": str(root)}, **how)
        assert (mistaken.returncode, mistaken.stdout, mistaken.stderr) == (plain.returncode, "", plain.stderr)
    finally:
        with contextlib.suppress(OSError):
            Path(f"{root}.kept").rmdir()


@pytest.mark.parametrize("library", ["", "/nowhere/libslurm.so", "/lib/x86_64-linux-gnu/libm.so.6"])
def test_without_slurms_library_scontrol_is_asked(sandbox, wrapped, job, library):
    module = wrapped.lib / "slurm_hook" / "slurm" / "node_rpc.py"
    module.write_text(module.read_text() + f"\n\ndef library_of(pid):\n    return {library!r}\n")
    assert len(hostlist.expand(excludes(sandbox, wrapped, job))) == 12


def test_neither_library_nor_scontrol(sandbox, wrapped, job):
    module = wrapped.lib / "slurm_hook" / "slurm" / "node_rpc.py"
    module.write_text(module.read_text() + "\n\ndef library_of(pid):\n    return ''\n")
    lone = wrapped.root / "sbatch.copy"
    shutil.copy(REAL, lone)
    write_shim(wrapped.sbatch, REAL=lone, PYTHON="/usr/bin/python3", LIB=wrapped.lib, PUBLISH=wrapped.public, LOCAL=wrapped.local)
    assert excludes(sandbox, wrapped, job) == "(null)"


def test_a_sites_own_wrapper_is_never_asked_with_test_only(sandbox, wrapped, job):
    calls = wrapped.root / "calls"
    calls.touch()
    calls.chmod(0o666)
    site = wrapped.root / "site-sbatch"
    site.write_text(f'#!/bin/sh\necho "$*" >>{calls}\nexec {REAL} "$@"\n')
    site.chmod(0o755)
    write_shim(wrapped.sbatch, REAL=site, PYTHON="/usr/bin/python3", LIB=wrapped.lib, PUBLISH=wrapped.public, LOCAL=wrapped.local)
    assert excludes(sandbox, wrapped, job) == "(null)"
    assert len(calls.read_text().splitlines()) == 1 and "test-only" not in calls.read_text()


@pytest.mark.parametrize("listens", [True, False], ids=["says nothing", "is dead"])
def test_a_controller_that(sandbox, wrapped, job, listens):
    """Our own question is given up in time; what sbatch itself does then is sbatch's."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        if listens:
            deaf.listen(50)
        lines = (f"SlurmctldPort={deaf.getsockname()[1]}", "MessageTimeout=5", "SlurmctldTimeout=5")
        env = {**sandbox.env, **sandbox.variant(*lines)}
        took, ends = {}, {}
        for name, binary in (("plain", REAL), ("wrapped", wrapped.sbatch)):
            started = time.monotonic()
            done = subprocess.run(
                [binary, "--hold", job], env=env, capture_output=True, text=True, timeout=120, check=False, cwd="/tmp"
            )
            took[name], ends[name] = time.monotonic() - started, (done.returncode, done.stdout, done.stderr)
    assert ends["plain"] == ends["wrapped"] and ends["plain"][0] != 0
    assert took["wrapped"] - took["plain"] < 2 + SLACK


def test_wait_gives_the_jobs_own_code_and_ends_with_a_signal(sandbox, wrapped):
    for code in (0, 3, 42):
        script = sandbox.write_script(f"#!/bin/bash\n#SBATCH -N2 -t 5 -o /dev/null\nexit {code}\n")
        done = sandbox.run([wrapped.sbatch, "--wait", script], user="alice", check=False, timeout=120)
        assert done.returncode == code
    script = sandbox.write_script("#!/bin/bash\n#SBATCH -N2 -t 5 -o /dev/null\nsleep 120\n")
    running = subprocess.Popen(
        [wrapped.sbatch, "--wait", "--parsable", script], env=sandbox.env, stdout=subprocess.PIPE, text=True, cwd="/tmp"
    )
    number = running.stdout.readline().strip()
    sandbox.poll(lambda: sandbox.job(int(number))["JobState"] == "RUNNING", 30, "the job to run")
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=10) == -signal.SIGTERM
    assert sandbox.job(int(number))["JobState"] == "RUNNING"  # as with sbatch alone
    sandbox.run(["scancel", number])


def test_a_caller_that_ignores_its_children_is_steered_too(sandbox, job):
    """Some services do, and what they start inherits it."""
    wrapped = Wrapped(sandbox)
    wrapped.publish("steer", bad=("gpu02",))
    start = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    number = sandbox.run([sys.executable, "-c", start, wrapped.sbatch, "--hold", "--parsable", job]).stdout.strip()
    assert len(hostlist.expand(sandbox.job(int(number))["ExcNodeList"])) >= 11
    sandbox.run(["scancel", number])


def test_a_submission_from_inside_a_job(sandbox, wrapped, job):
    inner = f"#!/bin/bash\n#SBATCH -N1 -t 5\n{wrapped.sbatch} --hold --parsable {job}\n"
    outer = sandbox.sbatch(script=inner)
    sandbox.wait(outer)
    number = (sandbox.outdir / f"{outer}.out").read_text().strip()
    assert number.isdigit() and len(hostlist.expand(sandbox.job(int(number))["ExcNodeList"])) >= 11
    sandbox.run(["scancel", number])


def test_fifty_at_once_spread(sandbox, job):
    wrapped = Wrapped(sandbox)
    wrapped.publish("steer")
    script = sandbox.write_script("#!/bin/bash\n#SBATCH -N2 -t 5\ntrue\n")
    numbers: list[int] = []
    log = sandbox.root / "log" / "slurmctld.log"
    before = log.read_text().count("Zero Bytes were transmitted")

    def submit() -> None:
        for _ in range(5):
            numbers.append(sandbox.sbatch("--hold", script, binary=wrapped.sbatch))

    threads = [threading.Thread(target=submit) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lists = [sandbox.job(number)["ExcNodeList"] for number in numbers]
    sandbox.run(["scancel", *map(str, numbers)])
    pools = [frozenset(sandbox.nodes) - frozenset(hostlist.expand(text)) for text in lists if text != "(null)"]
    assert len(pools) == 50 and len(set(pools)) > 12
    # sbatch, which was asked for its options, is ended before it gets to slurmctld
    assert log.read_text().count("Zero Bytes were transmitted") == before
    shares = {name: sum(name in pool for pool in pools) for name in sandbox.nodes}
    assert max(shares.values()) < 25 and sum(count > 0 for count in shares.values()) >= 14


def test_a_user_who_may_start_no_more_processes_submits_all_the_same():
    """Bash tries for a quarter of a minute, and then would end itself."""
    root = Path(tempfile.mkdtemp(prefix="wh-odd-"))
    try:
        made = Shim(root)
        made.says("--exclude=gpu02")
        root.chmod(0o755)
        made.real.write_text('#!/bin/sh\necho "job of $*"\n')
        limited = f"ulimit -u 1; cd /; exec {made.sbatch} -N4 {made.script} 'a b'"
        words = ["setpriv", "--reuid=64998", "--regid=64998", "--clear-groups", "bash", "-c", limited]
        done = subprocess.run(words, env=made.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stdout.decode()) == (0, f"job of -N4 {made.script} a b\n"), done.stderr
    finally:
        shutil.rmtree(root)
