"""How fast accounting is read, against slurm2sql on the same text in the same run; and in how little memory."""

import os
import sqlite3
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

from accounting import collect, convert, dump, store
from tests.bench import generate

pytestmark = pytest.mark.bench
ROOT = Path(__file__).resolve().parents[2]
JOBS = int(os.environ.get("BENCH_JOBS", "100000"))
DELIMITER = ";|;"  # the one that slurm2sql asks sacct for
TIMES_FASTER = 8
PARTS = 5
MEMORY_ROWS = int(os.environ.get("BENCH_ROWS", "2000000"))
MEMORY_MB = 200


def ours(path: Path, db: Path) -> collect.Counts:
    """Collect a dump."""
    stores = collect.Stores(store.connect(str(db)), str(db), "bench")
    with dump.open_dump(str(path)) as file:
        text = dump.Dump(file, DELIMITER)
        rejects: list = []
        counts = collect.store_rows(stores, text.header, text.rows(rejects.append), source="bench", times=convert.Times())
    stores.finish()
    assert not rejects
    return counts


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """The jobs in PARTS dumps: each is read by one and then by the other, so that a busy machine slows both."""
    folder = tmp_path_factory.mktemp("bench")
    rows, paths = generate.rows(JOBS), [folder / f"sacct{part}.psv" for part in range(PARTS)]
    for path in paths:
        with path.open("w") as file:
            file.write(DELIMITER.join(generate.COLUMNS) + "\n")
            file.writelines(DELIMITER.join(row) + "\n" for row in islice(rows, 4 * JOBS // PARTS))
    return paths


def cpu(function, *args):
    """Seconds of processor time, which other programs on the machine change less than the clock."""
    start = time.process_time()
    result = function(*args)
    return time.process_time() - start, result


def peer(path: Path, db: Path) -> None:
    """slurm2sql over the same text."""
    import slurm2sql

    conn = sqlite3.connect(db)
    with path.open() as file:
        assert slurm2sql.slurm2sql(conn, raw_sacct=file) == 0
    conn.close()


def peer_indices(db: Path) -> None:
    """The indices that slurm2sql makes in the end."""
    import slurm2sql

    conn = sqlite3.connect(db)
    slurm2sql.create_indexes(conn)
    assert conn.execute("SELECT count(*) FROM slurm").fetchone() == (4 * JOBS,)
    conn.close()


def test_against_slurm2sql(benchmark, sample, tmp_path):
    """At least 8 times its jobs per second, tasks stored too; unchanged dumps again cost no more than the first time."""
    theirs, first, again = 0.0, [], 0.0
    total = collect.Counts()
    for path in sample:
        theirs += cpu(peer, path, tmp_path / "peer.db")[0]
        seconds, counts = cpu(ours, path, tmp_path / "ours.db")
        first.append(seconds)
        total += counts
    theirs += cpu(peer_indices, tmp_path / "peer.db")[0]
    assert total.new == JOBS and total.tasks > 4 * JOBS
    for path in sample:
        seconds, counts = cpu(ours, path, tmp_path / "ours.db")
        again += seconds
        assert (counts.new, counts.changed) == (0, 0)
    benchmark.extra_info.update(theirs=JOBS / theirs, ours=JOBS / sum(first), again=JOBS / again)
    print(
        f"\njobs/s of processor time: slurm2sql {JOBS / theirs:.0f}, ours {JOBS / sum(first):.0f}"
        f" ({theirs / sum(first):.1f} times), unchanged again {JOBS / again:.0f}"
    )
    benchmark.pedantic(ours, args=(sample[0], tmp_path / "once.db"), rounds=1)
    assert again <= sum(first)
    assert theirs / sum(first) >= TIMES_FASTER


def test_memory_while_streaming(tmp_path):
    """A dump of two million rows is read in bounded memory."""
    path = tmp_path / "large.psv"
    with path.open("w") as file:
        generate.write(file, MEMORY_ROWS // 4, "|")
    code = (
        "import resource, sys; from slurm_hook.cli import workhorse\n"
        f"workhorse.main(['collect', '--db', {str(tmp_path / 'h.db')!r}, '--file', {str(path)!r}], standalone_mode=False)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=900)
    peak = int(done.stdout.split()[-1]) / 1024
    print(f"\n{MEMORY_ROWS} rows: peak {peak:.0f} MB; {done.stdout.splitlines()[0]}")
    assert peak < MEMORY_MB
