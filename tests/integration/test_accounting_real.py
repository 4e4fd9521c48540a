"""Collecting from a real Slurm: what happened stands in the history, whatever names jobs have and whatever breaks."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accounting.history import columns as c
from accounting.history import columns_reader, store
from slurm_hook.common.config import Settings

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
SECRET = "s3cr3t-t0k3n"
HOSTILE = "a|b\nc;--\t'$(x)<b>"  # without the double quote, which Slurm itself turns into a backquote


def workhorse(sandbox, *args, env=None, timeout=120):
    """Run the command in the sandbox's environment."""
    return subprocess.run(
        [sys.executable, "-m", "slurm_hook.cli", *map(str, args)],
        env={**sandbox.env, "PYTHONPATH": str(ROOT), **(env or {})},
        cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def happened(sandbox):
    """Jobs of all kinds, by what they are; each has ended."""
    small = ("--mem=50", "--time=10")
    jobs = {
        "good": sandbox.sbatch(*small, f"--comment={SECRET}", "--wrap", f": {SECRET}"),
        "exit": sandbox.sbatch(*small, "--wrap", "exit 3"),
        "signal": sandbox.sbatch(*small, "--wrap", "kill -9 $$"),
        "hostile": sandbox.sbatch(*small, f"--job-name={HOSTILE}", "--wrap", "true"),
        "array": sandbox.sbatch(*small, "--array=1-3", "--wrap", "exit $((SLURM_ARRAY_TASK_ID == 2))"),
        "het": sandbox.sbatch(*small, "--nodes=1", ":", "--mem=60", "--nodes=2", "--wrap", "true"),
        "steps": sandbox.sbatch(
            *small, f"--exclude={sandbox.nodes[4]}", "--nodes=2", "--gres=gpu:4", "--wrap", "srun sleep 1; srun false; true"
        ),
        "cancelled": sandbox.sbatch(*small, "--hold", "--wrap", "true"),
    }
    sandbox.run(["scancel", str(jobs["cancelled"])])
    requeued = sandbox.sbatch(*small, "--requeue", "--wrap", '[ -n "$SLURM_RESTART_COUNT" ] || sleep 60')
    sandbox.wait(requeued, states=["RUNNING"])
    sandbox.run(["scontrol", "requeue", str(requeued)])
    lost = sandbox.sbatch(*small, "--no-requeue", f"--nodelist={sandbox.nodes[4]}", "--wrap", "sleep 60")
    sandbox.wait(lost, states=["RUNNING"])
    sandbox.run(["scontrol", "update", f"NodeName={sandbox.nodes[4]}", "State=DOWN", "Reason=xid 79: off the bus"])
    sandbox.wait(lost, states=["NODE_FAIL"])
    sandbox.run(["scontrol", "update", f"NodeName={sandbox.nodes[4]}", "State=RESUME"])
    sandbox.run(["scontrol", "update", f"JobId={requeued}", "StartTime=now"], check=False)
    ids = [job for name, job in jobs.items() if name != "cancelled"] + [requeued]
    sandbox.poll(lambda: all(ended(sandbox, job) for job in ids), 240, "all jobs to end")
    return {**jobs, "requeued": requeued, "lost": lost}


@pytest.fixture(scope="module")
def collected(sandbox, happened, tmp_path_factory):
    """A history of it all, and its file."""
    db = tmp_path_factory.mktemp("acc") / "h.db"
    sandbox.await_windows(job for name, job in happened.items() if name not in ("array", "cancelled"))
    done = workhorse(sandbox, "collect", "-S", "now-1hour", "--db", db)
    assert done.returncode == 0, done.stdout + done.stderr
    return sqlite3.connect(db), db


def ended(sandbox, job):
    """Accounting shows all parts of a job ended (asked without names: one of them holds line breaks)."""
    done = sandbox.run(["sacct", "-a", "-X", "-n", "-P", "-j", str(job), "-o", "State"])
    return done.stdout.split() and not {"PENDING", "RUNNING", "REQUEUED", "COMPLETING"} & set(done.stdout.split())


def states(conn, job):
    sql = "SELECT state, exit_code, exit_signal FROM job_history WHERE job_id = ? ORDER BY submit_utc"
    return conn.execute(sql, (job,)).fetchall()


def test_what_happened_is_told(collected, happened, sandbox):
    conn, _ = collected
    assert states(conn, happened["good"]) == [("COMPLETED", 0, 0)]
    assert states(conn, happened["exit"]) == [("FAILED", 3, 0)]
    assert states(conn, happened["signal"]) == [("FAILED", 0, 9)]
    assert [s[0] for s in states(conn, happened["requeued"])] == ["REQUEUED", "COMPLETED"]
    assert [s[0] for s in states(conn, happened["lost"])] == ["NODE_FAIL"]
    name = conn.execute("SELECT job_name FROM job_history WHERE job_id = ?", (happened["hostile"],)).fetchone()
    assert name == (HOSTILE,)
    array = conn.execute("SELECT array_task, exit_code FROM attempts WHERE array_job = ? ORDER BY 1", (happened["array"],))
    assert array.fetchall() == [(1, 0), (2, 1), (3, 0)]
    het = conn.execute("SELECT het_offset, nnodes FROM attempts WHERE het_job = ? ORDER BY 1", (happened["het"],))
    assert het.fetchall() == [(0, 1), (1, 2)]
    tasks = conn.execute("SELECT gpus, exact FROM task_history WHERE job = ?", (str(happened["steps"]),)).fetchall()
    assert tasks == [(4, 1), (4, 1)]
    never = conn.execute("SELECT count(*) FROM task_history WHERE job = ?", (str(happened["cancelled"]),)).fetchone()
    assert never == (0,)
    assert {r[0] for r in conn.execute("SELECT name FROM nodes")} == set(sandbox.nodes)
    assert conn.execute("SELECT count(DISTINCT switch) FROM node_current").fetchone()[0] > 1


def test_again_changes_nothing(sandbox, collected):
    conn, db = collected
    before = conn.execute("SELECT * FROM attempts ORDER BY id").fetchall()
    done = workhorse(sandbox, "collect", "--db", db)
    assert done.returncode == 0 and "0 new, 0 changed, 0 tasks" in done.stdout, done.stdout
    assert conn.execute("SELECT * FROM attempts ORDER BY id").fetchall() == before


def test_scorer_reads_the_culprit(collected, happened, sandbox):
    _, db = collected
    found = columns_reader.load_history(store.connect(str(db)), sandbox.cluster, time.time(), 90, Settings())
    attempt = int((found.attempts.job == happened["lost"]).nonzero()[0][0])
    assert found.attempts.outcome[attempt] == c.WRONG
    culprits = [found.nodes.names[n] for n in found.tasks.node[found.tasks.culprit & (found.tasks.attempt == attempt)]]
    assert culprits == [sandbox.nodes[4]]


def test_private_data_stays_in_slurm(collected):
    conn, db = collected
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for file in db.parent.glob(db.name + "*"):
        assert SECRET.encode() not in file.read_bytes()


def test_running_job_settles(sandbox, tmp_path):
    db = tmp_path / "h.db"
    go = sandbox.outdir / "running-job-settles"
    job = sandbox.sbatch("--mem=50", "--wrap", f"until [ -e {go} ]; do sleep 0.2; done")
    sandbox.wait(job, states=["RUNNING"])
    assert workhorse(sandbox, "collect", "-S", "now-1hour", "--db", db).returncode == 0
    conn = sqlite3.connect(db)

    def shown():
        assert workhorse(sandbox, "collect", "--db", db).returncode == 0
        return [s[0] for s in states(conn, job)]

    sandbox.poll(lambda: shown() == ["RUNNING"], 60, "the running job in the history")
    go.touch()
    sandbox.poll(lambda: shown() == ["COMPLETED"], 60, "its end in the history")
    assert conn.execute("SELECT t.end FROM tasks t JOIN attempts a ON a.id = attempt_id WHERE a.job_id = ?", (job,)).fetchone()[0]


@pytest.fixture
def without_slurmdbd(sandbox, tmp_path):
    """A configuration whose slurmdbd doesn't answer: nothing listens on its port."""
    folder = tmp_path / "etc"
    shutil.copytree(sandbox.conf.parent, folder)
    for path in (folder / "slurm.conf", folder / "slurmdbd.conf"):
        text = path.read_text()
        port = next(
            line.partition("=")[2] for line in text.splitlines() if line.startswith(("AccountingStoragePort=", "DbdPort="))
        )
        path.write_text(text.replace(port, "9"))
    return {"SLURM_CONF": str(folder / "slurm.conf")}


def test_slurmdbd_down(sandbox, collected, without_slurmdbd):
    conn, db = collected
    before = conn.execute("SELECT high_water FROM clusters").fetchall()
    done = workhorse(sandbox, "collect", "--db", db, env=without_slurmdbd)
    assert done.returncode == 69, done.stdout + done.stderr
    assert "slurmdbd" in done.stderr and "Traceback" not in done.stderr
    assert conn.execute("SELECT high_water FROM clusters").fetchall() == before
    assert workhorse(sandbox, "collect", "--db", db).returncode == 0


def test_slurmdbd_hangs(sandbox, collected, tmp_path):
    """A stopped slurmdbd takes calls and answers none: the time limit ends the run, the next one goes on."""
    _, db = collected
    config = tmp_path / "w.toml"
    config.write_text("[slurm]\ntimeout = 2.0\n")
    pid = int((sandbox.root / "run" / "slurmdbd.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        done = workhorse(sandbox, "--config", config, "collect", "--db", db)
        assert time.monotonic() - began < 30
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 69 and " 2 s" in done.stderr, done.stderr
    assert workhorse(sandbox, "collect", "--db", db).returncode == 0


def test_killed_while_collecting(sandbox, happened, tmp_path):
    """kill -9 at some moments of a backfill: the file stays whole, and going on gives what one run gives."""
    db = tmp_path / "h.db"
    argv = [sys.executable, "-m", "slurm_hook.cli", "collect", "-S", "now-20days", "--db", str(db)]
    env = {**sandbox.env, "PYTHONPATH": str(ROOT)}
    for wait in (0.6, 0.9, 1.3, 1.8):
        child = subprocess.Popen(argv, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(wait)  # a moment of the run, any will do
        child.kill()
        child.wait()
        if db.exists():
            conn = sqlite3.connect(db)
            assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            conn.close()
    assert workhorse(sandbox, "collect", "-S", "now-20days", "--db", db).returncode == 0
    whole = tmp_path / "whole.db"
    assert workhorse(sandbox, "collect", "-S", "now-20days", "--db", whole).returncode == 0
    sql = "SELECT job_id, submit_utc, state, node_list FROM job_history WHERE state <> 'RUNNING' ORDER BY 1, 2"
    mended, once = (sqlite3.connect(path).execute(sql).fetchall() for path in (db, whole))
    assert set(mended) <= set(once) and len(mended) >= len(happened)
