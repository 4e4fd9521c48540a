"""The sandbox itself: what it promises to the other tests, and that nothing of it stays behind."""

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox import Sandbox, SandboxError, claims, cluster, conf, keeper, packages, procs, users

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[2]


def processes(root: Path) -> list[str]:
    """Processes that have anything to do with the directory: by mark, command line or current folder."""
    found = []
    for pid in set(procs.pids()) - procs.ancestors(os.getpid()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            words += os.fsencode(os.readlink(f"/proc/{pid}/cwd"))
        except OSError:
            continue
        if str(root).encode() in words:
            found.append(f"{pid} {words[:80]!r}")
    return found


def leftovers(root: Path) -> list[str]:
    """All that a sandbox in this directory may have forgotten."""
    held = [name for name in claims.held() if str(root) in name]
    return [*processes(root), *held, *([str(root)] if root.exists() else [])]


def gone(root: Path, timeout: float = 20) -> None:
    """Poll until nothing is left of the sandbox."""
    try:
        procs.poll(lambda: not leftovers(root), timeout, "nothing to be left")
    except SandboxError:
        pytest.fail(f"left behind: {leftovers(root)}")


def command(*args: str, code: int = 0, module: str = "tests.sandbox") -> str:
    """Run `python -m tests.sandbox`, or another; its output (both streams)."""
    done = subprocess.run(
        [sys.executable, "-m", module, *args],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # a pipe that the keeper inherited would keep this call waiting
        text=True,
        timeout=60,
        check=False,
        umask=0o077,  # root's habit at many sites
    )
    assert done.returncode == code, done.stdout
    return done.stdout


# --- what it looks like ------------------------------------------------------------------------------------------


def test_nodes_and_partitions(sandbox: Sandbox) -> None:
    assert sandbox.nodes == [f"gpu{number:02}" for number in range(1, 17)]
    done = sandbox.run(["sinfo", "-h", "-N", "-o", "%N|%P|%G|%m"])
    rows = [line.split("|") for line in done.stdout.split()]
    assert {row[2] for row in rows} == {"gpu:8"}
    assert {int(row[3]) for row in rows} == set(conf.MEMORY_SIZES)
    assert sorted(row[0] for row in rows if row[1] == "llm*") == sandbox.nodes
    assert [row[0] for row in rows if row[1] == "small"] == ["gpu13", "gpu14", "gpu15", "gpu16"]


def test_topology(sandbox: Sandbox) -> None:
    text = sandbox.run(["scontrol", "show", "topology"]).stdout
    assert re.findall(r"SwitchName=(\w+) Level=0", text) == ["leaf1", "leaf2", "leaf3", "leaf4"]
    assert re.search(r"SwitchName=spine Level=1 .*Nodes=gpu\[01-16\]", text)


def test_version_and_settings(sandbox: Sandbox) -> None:
    done = sandbox.run(["sinfo", "-V"])
    assert done.stdout.startswith(f"slurm-wlm {sandbox.version[0]}.{sandbox.version[1]:02}") or "slurm " in done.stdout
    settings = sandbox.run(["scontrol", "show", "config"]).stdout
    for name, value in (("AccountingStorageTRES", "gres/gpu"), ("AccountingStoreFlags", "job_comment"),
                        ("PriorityType", "priority/multifactor")):  # fmt: skip
        assert re.search(rf"^{name}\s*= .*{value}", settings, re.M), name


def test_ordinary_users_submit(sandbox: Sandbox) -> None:
    script = "#!/bin/sh\nid -un; pwd; echo $HOME\n"
    jobs = {sandbox.sbatch(script=script, user=user): user for user in users.ORDINARY}
    assert set(sandbox.wait(jobs).values()) == {"COMPLETED"}
    for job, user in jobs.items():
        who, where, home = (sandbox.outdir / f"{job}.out").read_text().split()
        assert (who, where) == (user, str(sandbox.outdir))
        assert Path(home).stat().st_uid == pwd.getpwnam(user).pw_uid
        done = sandbox.run(["sacct", "-X", "-n", "-P", "-j", str(job), "-o", "User,Account"])
        assert done.stdout.strip() == f"{user}|ml"


def test_operator_may_update_others_jobs(sandbox: Sandbox) -> None:
    job = sandbox.sbatch("--hold", script=sandbox.payload(0), user="alice")
    update = ["scontrol", "update", f"JobId={job}", "ExcNodeList=gpu01"]
    assert sandbox.run(update, user="bob", check=False).returncode != 0
    sandbox.run(update, user=users.SERVICE)
    assert sandbox.job(job)["ExcNodeList"] == "gpu01"
    sandbox.run(["scancel", str(job)])
    assert sandbox.wait(job) == {job: "CANCELLED"}


def test_arrays_count_as_one(sandbox: Sandbox) -> None:
    good = sandbox.sbatch("--array=1-3", script=sandbox.payload(0))
    bad = sandbox.sbatch("--array=1-3", script="#!/bin/sh\nexit $((SLURM_ARRAY_TASK_ID == 2))\n")
    assert sandbox.wait([good, bad]) == {good: "COMPLETED", bad: "FAILED"}


def test_gpus_are_given_out(sandbox: Sandbox) -> None:
    job = sandbox.sbatch("--gres=gpu:3", "--comment=wh=x", script="#!/bin/sh\necho $CUDA_VISIBLE_DEVICES\n")
    sandbox.wait(job)
    assert (sandbox.outdir / f"{job}.out").read_text().strip() == "0,1,2"
    done = sandbox.run(["sacct", "-X", "-n", "-P", "-j", str(job), "-o", "AllocTRES,Comment"])
    assert "gres/gpu=3" in done.stdout
    assert "wh=x" in done.stdout


# --- planted nodes -----------------------------------------------------------------------------------------------


def test_planted_nodes_kill(sandbox: Sandbox) -> None:
    """One node or many, by exit code or signal: accounting shows the same."""
    expected = {"gpu03": "1:0", "gpu[01-04]": "1:0", "gpu07": "0:9", "gpu[05-08]": "0:9", "gpu[09-12]": "0:0"}
    sandbox.plant("gpu03", 1, "exit")
    sandbox.plant("gpu07", 1, "signal")
    jobs = {sandbox.sbatch(f"-w{nodes}", script=sandbox.payload(0.2)): nodes for nodes in expected}
    states = sandbox.wait(jobs)
    sandbox.unplant("gpu03")
    sandbox.unplant("gpu07")
    assert {nodes: sandbox.job(job)["ExitCode"] for job, nodes in jobs.items()} == expected
    assert list(states.values()).count("FAILED") == 4


def test_probability_and_good_nodes(sandbox: Sandbox) -> None:
    sandbox.plant("gpu02", 0.5)
    mixed = [sandbox.sbatch("-wgpu02", "-N1", script=sandbox.payload(0)) for _ in range(20)]
    good = sandbox.sbatch("-xgpu02", "-N4", script=sandbox.payload(0))
    states = list(sandbox.wait(mixed).values())
    sandbox.unplant("gpu02")
    assert 1 <= states.count("FAILED") <= 19  # 1 in 500,000 to be wrong
    again = sandbox.sbatch("-wgpu02", script=sandbox.payload(0))
    assert set(sandbox.wait([good, again]).values()) == {"COMPLETED"}


def test_nodes_go_down_and_come_back(sandbox: Sandbox) -> None:
    bad = ["gpu05", "gpu07"]
    for node in bad:
        sandbox.plant(node, 1, "down")
    jobs = [sandbox.sbatch("--no-requeue", f"-w{nodes}", script=sandbox.payload(0.2)) for nodes in ("gpu05", "gpu[06-07]")]
    requeued = sandbox.sbatch("-wgpu07", script=sandbox.payload(0.2))
    assert set(sandbox.wait(jobs).values()) == {"NODE_FAIL"}
    sandbox.wait(requeued, states=["PENDING"])
    for node in bad:
        assert sandbox.nodestate(node).startswith("DOWN")
        assert sandbox.node(node)["Reason"].startswith("sandbox: planted")
        sandbox.unplant(node)
        sandbox.resume(node)
    sandbox.run(["scancel", str(requeued)])
    again = [sandbox.sbatch(f"-w{nodes}", script=sandbox.payload(0)) for nodes in ("gpu05", "gpu[06-07]")]
    assert set(sandbox.wait(again).values()) == {"COMPLETED"}


def test_request_for_an_unplanted_node_is_ignored(sandbox: Sandbox) -> None:
    request = sandbox.root / "requests" / "gpu06"
    sandbox.run(["touch", request], user="alice")
    sandbox.poll(lambda: not request.exists(), 5, "the request to be taken")
    assert sandbox.nodestate("gpu06") == "IDLE"


@pytest.mark.parametrize(
    ("node", "probability", "how", "word"),
    [("gpu99", 1, "exit", "gpu99"), ("gpu01", 2, "exit", "between 0 and 1"), ("gpu01", 1, "fire", "'fire'")],
)
def test_wrong_plants_are_refused(sandbox: Sandbox, node: str, probability: float, how: str, word: str) -> None:
    with pytest.raises(SandboxError, match=word):
        sandbox.plant(node, probability, how)


# --- settings of clients alone


def test_variant_for_clients(sandbox: Sandbox) -> None:
    lua = """
    function slurm_cli_setup_defaults(options, early) return 0 end
    function slurm_cli_pre_submit(options, offset) options["comment"] = "filtered" return 0 end
    function slurm_cli_post_submit(offset, job, step) return 0 end
    """
    env = sandbox.variant("CliFilterPlugins=cli_filter/lua", files={"cli_filter.lua": lua})
    jobs = [sandbox.sbatch("--hold", script=sandbox.payload(0), env=extra) for extra in (env, None)]
    assert [sandbox.job(job).get("Comment") for job in jobs] == ["filtered", None]
    sandbox.run(["scancel", *map(str, jobs)])


# --- failures are told -------------------------------------------------------------------------------------------


def test_wait_tells_the_logs(sandbox: Sandbox) -> None:
    job = sandbox.sbatch("--hold", script=sandbox.payload(0))
    with pytest.raises(SandboxError, match=r"(?s)vain for jobs.*PENDING.*slurmctld\.log"):
        sandbox.wait(job, timeout=0.3)
    assert sandbox.wait(job, states=["PENDING"]) == {job: "PENDING"}
    sandbox.run(["scancel", str(job)])
    with pytest.raises(SandboxError, match="CANCELLED"):
        sandbox.wait(job, states=["RUNNING"])


def test_run_tells_what_failed(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match=r"scontrol show node gpu99 \(as bob\) failed \(1\).*not found"):
        sandbox.run(["scontrol", "show", "node", "gpu99"], user="bob")
    with pytest.raises(SandboxError, match="partition"):
        sandbox.sbatch("-pnone", script=sandbox.payload(0))


def test_broken_configuration_is_told_and_leaves_nothing() -> None:
    root = Path(f"/tmp/sb-broken-{os.getpid()}")
    with pytest.raises(SandboxError, match=r"(?s)didn't come up: .*NoSuchKey"):
        Sandbox(nodes=1, dir=root, extra_conf="NoSuchKey=1").up()
    gone(root, 0)


def test_daemon_that_dies_is_told() -> None:
    root = Path(f"/tmp/sb-dies-{os.getpid()}")
    with pytest.raises(SandboxError, match=r"(?s)didn't come up: slurmctld ended with code 1 .*none_such"):
        Sandbox(nodes=1, dir=root, extra_conf="JobSubmitPlugins=none_such").up()
    gone(root, 0)


def test_unreachable_directory_is_refused(tmp_path: Path) -> None:
    closed = Path(f"/tmp/sb-closed-{os.getpid()}")
    closed.mkdir(mode=0o700)
    try:
        with pytest.raises(SandboxError, match=f"chmod o.x {closed}"):
            Sandbox(nodes=1, dir=closed / "in").up()
        assert not (closed / "in").exists()
    finally:
        closed.rmdir()


@pytest.mark.parametrize(("name", "word"), [("/tmp", "isn't empty"), (f"/tmp/{'x' * 80}", "at most"), ("/tmp/a b", "blanks")])
def test_bad_directories_are_refused(name: str, word: str) -> None:
    with pytest.raises(SandboxError, match=word):
        Sandbox(nodes=1, dir=name).up()
    assert name == "/tmp" or not Path(name).exists()


NOEXEC = """\
mount -t tmpfs -o noexec tmpfs "$1"
exec "$2" -c 'import sys; from pathlib import Path; from tests.sandbox import keeper; print(keeper.unfit(Path(sys.argv[1])))' "$1"
"""


def test_a_folder_mounted_noexec_will_not_do(tmp_path: Path) -> None:
    """There the demo's first call of the wrapper would fail, a minute later."""
    argv = ["unshare", "--mount", "sh", "-c", NOEXEC, "sh", tmp_path, sys.executable]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "it is mounted noexec\n", done.stderr


def test_folders_that_will_not_do_are_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full, none = Path("/proc"), tmp_path / "none"  # /proc has no room at all
    monkeypatch.setattr(keeper, "TEMP_FOLDERS", (full, none, tmp_path))
    assert keeper.temp_folder() == tmp_path
    monkeypatch.setattr(keeper, "TEMP_FOLDERS", (full, none))
    with pytest.raises(SandboxError, match=r"/proc: it .*none: No such file or directory.*--dir"):
        keeper.temp_folder()
    with pytest.raises(SandboxError, match="/proc/none won't do: it "):
        Sandbox(nodes=1, dir="/proc/none").up()


def test_no_apt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "SEARCH_PATH", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match=r"^Slurm cannot be installed here: there is no apt-get"):
        packages.ensure()


def test_up_twice_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="up already"):
        Sandbox.up(sandbox)


def test_no_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "missing_packages", lambda: ["slurmctld"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SandboxError, match=r"^Slurm cannot be installed here: not root"):
        packages.ensure()


# --- beginning and end -------------------------------------------------------------------------------------------


def test_second_sandbox_with_own_settings(sandbox: Sandbox) -> None:
    with Sandbox(nodes=3, cluster="other", extra_conf="JobSubmitPlugins=lua", files={"job_submit.lua": LUA}) as other:
        job = other.sbatch("-N3", script=other.payload(0.1))
        assert other.wait(job) == {job: "COMPLETED"}
        assert other.job(job)["AdminComment"] == "seen"
        assert other.run(["sacctmgr", "-n", "-P", "list", "cluster", "format=cluster"]).stdout.split() == ["other"]
        job = other.sbatch("-N3", script="#!/bin/sh\nsetsid sleep 600 & env -i sleep 600 & trap '' TERM; wait\n")
        other.wait(job, states=["RUNNING"])
    gone(other.root, 0)
    assert sandbox.nodestate("gpu01") == "IDLE"
    assert pwd.getpwnam("alice")
    other.down()  # harmless


LUA = """\
function slurm_job_submit(job, partitions, user) job.admin_comment = "seen" return 0 end
function slurm_job_modify() return 0 end
return 0
"""
OWNER = """\
import signal, sys
from tests.sandbox import Sandbox
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests themselves run in the background
with Sandbox(nodes=2, dir=sys.argv[1]) as sb:
    sb.sbatch("-N2", script="#!/bin/sh\\nsrun -N2 -n2 sleep 600\\n")
    print("up", flush=True)
    sb.run(["sleep", "600"], timeout=600)
"""


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("early", signal.SIGTERM),
        ("early", signal.SIGINT),
        ("early", signal.SIGKILL),
        ("half", signal.SIGTERM),
        ("up", signal.SIGTERM),
        ("up", signal.SIGINT),
        ("up", signal.SIGKILL),
    ],
)
def test_killed_owner_leaves_nothing(when: str, number: signal.Signals) -> None:
    root = Path(f"/tmp/sb-{when}-{number}-{os.getpid()}")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, root], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with owner:
        assert owner.stdout is not None
        if when == "early":
            procs.poll(root.exists, 20, "the directory")
        elif when == "half":
            procs.poll((root / "db" / "socket").exists, 20, "MariaDB")
        else:
            assert owner.stdout.readline() == b"up\n"
        owner.send_signal(number)
        try:
            owner.wait(timeout=30)
        finally:
            owner.kill()
    gone(root, 20 if number == signal.SIGKILL else 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_impatient_owner_ends_after_the_sandbox(number: signal.Signals) -> None:
    root = Path(f"/tmp/sb-down-{number}-{os.getpid()}")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, root], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    sent = 0

    def again() -> bool:
        nonlocal sent
        if owner.poll() is None:
            owner.send_signal(number)
            sent += 1
        return owner.returncode is not None

    with owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"up\n"
        try:
            procs.poll(again, 30, "the owner's end", pause=0.02)
        finally:
            owner.kill()
    assert sent > 1
    gone(root, 0)


def with_checkout(root: Path, checkout: str) -> str:
    """Have the sandbox's state tell another checkout; what it told before."""
    known = json.loads((root / "sandbox.json").read_text())
    (root / "sandbox.json").write_text(json.dumps({**known, "checkout": checkout}))
    return str(known["checkout"])


def test_command_line() -> None:
    root = Path(f"/tmp/sb-command-{os.getpid()}")
    assert str(root) in command("up", "--nodes=2", "--dir", str(root), "--conf-line=MaxJobCount=77")
    try:
        assert f"{root} nodes=2" in command("list")
        assert "isn't empty" in command("up", "--dir", str(root), code=1)
        other = with_checkout(root, "/somewhere/else")
        for words in (("down",), ("env",)):  # ends and enters only what this checkout started
            assert f"name it with --dir: {root}" in command(*words, code=1)
        with_checkout(root, other)
        lines = command("env", "--dir", str(root))
        shell = f"{lines}\nscontrol show config | grep MaxJobCount; sbatch -o /dev/null --wrap 'sleep 600'"
        done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=30, check=False)
        assert "= 77" in done.stdout, done.stderr
        # the product on it, for a shell of anybody's
        shell = command("--dir", str(root), "--mode=avoid", module="tests.site")
        shell += "\ncommand -v sbatch; runuser -u alice -- sbatch -o /dev/null -N2 --wrap true; grep mode $WORKHORSE_CONFIG"
        done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=30, check=False)
        said = done.stdout.splitlines()
        assert said[0] == f"{root}/site/bin/sbatch" and said[1].startswith("Submitted batch job"), (said, done.stderr)
        assert 'mode = "avoid"' in said
    finally:
        command("down", "--dir", str(root))
    gone(root, 0)
    assert "is no sandbox" in command("down", "--dir", str(root), code=1)
    assert "site: " in command("--dir", str(root), code=1, module="tests.site")


STATE = {
    "pid": 0,
    "started": 0,
    "detached": True,
    "checkout": "/",
    "cluster": "c",
    "nodes": [],
    "version": [22, 5],
}


@pytest.mark.parametrize(
    ("owner", "mode", "text"),
    [("nobody", 0o755, None), ("root", 0o777, None), ("root", 0o755, "{}"), ("root", 0o755, "x"), ("root", 0o755, "[]")],
)
def test_state_that_anyone_may_have_written_ends_nothing(owner: str, mode: int, text: str | None) -> None:
    root = Path(f"/tmp/slurm-sandbox-planted-{os.getpid()}")
    root.mkdir()
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            found = {**STATE, "pid": other.pid, "started": procs.start_time(other.pid)}
            (root / "sandbox.json").write_text(json.dumps(found) if text is None else text)
            root.chmod(mode)
            for path in (root, root / "sandbox.json"):
                shutil.chown(path, owner)
            for words in (("down", "--dir", str(root)), ("env", "--dir", str(root))):
                assert f"{root} is no sandbox" in command(*words, code=1)
            assert "passed over" in command("list")
            assert other.poll() is None and root.exists()
        finally:
            other.kill()
            shutil.rmtree(root)


@pytest.mark.parametrize("count", ["0", "-3", "9999"])
def test_impossible_sizes_are_refused_at_once(count: str) -> None:
    assert f"--nodes {count}: from 1 to" in command("up", f"--nodes={count}", code=1)


def test_down_without_its_keeper() -> None:
    root = Path(f"/tmp/slurm-sandbox-orphan-{os.getpid()}")
    command("up", "--nodes=2", "--dir", str(root))
    known = json.loads((root / "sandbox.json").read_text())
    cluster.attach(root).sbatch(script="#!/bin/sh\nsleep 600\n")
    os.kill(known["pid"], signal.SIGKILL)
    procs.poll(lambda: not procs.alive(known["pid"], known["started"]), 5, "the keeper to die")
    assert "keeper died" in command("list")
    command("down", "--dir", str(root))
    gone(root, 0)


def test_recorded_pid_of_another_process_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        started = procs.start_time(other.pid)
        assert started is not None
        assert procs.end(other.pid, started + 1, 5)
        assert other.poll() is None
        assert procs.end(other.pid, started, 5)
