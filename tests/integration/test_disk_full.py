"""A history on a small file system that fills up: a clear error, the database as before, and the next run goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

from accounting.sources import records
from tests.accounting_rows import row

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
JOBS, EARLIER = 30_000, 100

# DIR PYTHON: all in a mount namespace of its own, gone with it
_SMALL = """set -u
dir=$1 python=$2
mount --make-rprivate / && mount -t tmpfs -o size=3m tmpfs "$dir/small" || exit 90
collect() { "$python" -m slurm_hook.cli collect --db "$dir/small/h.db" --file "$dir/$1"; echo "exit $?"; }
state() {
    "$python" - "$dir/small/h.db" <<'END'
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1])
print(*conn.execute("PRAGMA integrity_check").fetchone(), *conn.execute("SELECT count(*) FROM attempts").fetchone(),
      *conn.execute("SELECT count(*) FROM tasks").fetchone(), len(conn.execute("PRAGMA foreign_key_check").fetchall()))
END
}
collect few; state
collect many; state
collect many; state

mount -o remount,size=64m "$dir/small" || exit 91
collect many; state
"""


def test_a_disk_that_fills_up(tmp_path):
    (tmp_path / "small").mkdir()
    for name, numbers in (("few", range(1, EARLIER + 1)), ("many", range(EARLIER + 1, JOBS + 1))):
        lines = ["|".join(row(n, JobName=f"j{n % 50}", NodeList=f"n[{n % 90}-{n % 90 + 2}]", AllocNodes="3")) for n in numbers]
        (tmp_path / name).write_text("\n".join(["|".join(records.FIELD_NAMES), *lines]) + "\n")
    argv = ["unshare", "--mount", "sh", "-c", _SMALL, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    codes = [line for line in lines if line.startswith("exit ")]
    states = [line.split() for line in lines if line.startswith("ok ")]
    assert len(states) == 4, done.stdout + done.stderr
    assert codes[0] == codes[3] == "exit 0" and codes[1] == codes[2] != "exit 0"
    assert done.stderr.count("make room and run again") == 2 and "Traceback" not in done.stderr, done.stderr
    few, full, again, whole = [(int(attempts), int(tasks)) for _, attempts, tasks, _ in states]
    assert few == (EARLIER, 3 * EARLIER)
    assert EARLIER <= full[0] < JOBS and full[1] == 3 * full[0], "whole chunks only"
    assert full[0] <= again[0] < JOBS and again[1] == 3 * again[0]
    assert whole == (JOBS, 3 * JOBS)
    assert all(state[3] == "0" for state in states)
