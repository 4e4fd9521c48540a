"""The sacct call and the windows around it, against stand-ins for sacct that answer, fail, hang and lie."""

import io
import os
import stat
import time

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from accounting.history import collect, node_rows, source
from accounting.sources import converters, node_inventory, records, sacct, times
from slurm_hook.cli import workhorse
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SlurmError, UsageError
from tests.accounting_rows import put, row, stores

# Plays sacct: --helpformat names its fields; a call appends its arguments and environment to log and prints the rows of
# the file whose name its delimiter and fields are written into
FAKE = """#!/bin/sh
here=$(dirname "$0")
[ "$1" = --helpformat ] && { cat "$here/fields"; exit 0; }
{ echo "$@"; env | grep -E '^(SLURM|SACCT|LC_ALL)' | sort; echo --; } >> "$here/log"
. "$here/answer"
"""


PRIVATE = ("SubmitLine", "WorkDir", "Comment", "AdminComment", "SystemComment", "StdOut", "Extra", "Container", "TRESUsageInTot")


class Slurm:
    """A folder in PATH with stand-ins for Slurm's commands."""

    def __init__(self, folder):
        self.folder = folder
        self.say("fields", " ".join(records.FIELD_NAMES))
        self.command("sacct", FAKE)
        self.command(
            "scontrol", '#!/bin/sh\ncase "$*" in *config*) echo "ClusterName = c";; *"show node"*) echo "NodeName=n1";; esac\n'
        )
        self.command("sacctmgr", "#!/bin/sh\n")
        self.answer()

    def say(self, name, text):
        (self.folder / name).write_text(text)

    def command(self, name, text):
        self.say(name, text)
        os.chmod(self.folder / name, 0o755)

    def answer(self, *rows, script=""):
        """Rows that each call gives; `script` runs after them."""
        body = "".join("@".join([*r, "\n"]) for r in rows)
        self.say("rows", body)
        self.say(
            "answer",
            'for a in "$@"; do case "$a" in --delimiter=*) d=${a#--delimiter=};; esac; done\n'
            f'sed "s/@/$d/g" "$here/rows"\n{script}\n',
        )

    def calls(self):
        """Argument lists of the calls so far."""
        path = self.folder / "log"
        return [part.strip().split("\n") for part in path.read_text().split("--\n") if part.strip()] if path.exists() else []


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Slurm(folder)


def query(timeout=20.0):
    return sacct.Query(1000, 2000, timeout=timeout, fields=sacct.known_fields(timeout))


def test_call_is_under_control(slurm, monkeypatch):
    for name in ("SLURM_TIME_FORMAT", "SACCT_FORMAT", "SLURM_CLUSTERS", "SACCT_FEDERATION"):
        monkeypatch.setenv(name, "spoiled")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("SLURM_CONF", "/etc/here.conf")
    assert list(query().rows()) == []
    ((arguments, *environment),) = slurm.calls()
    for part in ("--allusers", "--duplicates", "--parsable", "--noheader", "--starttime=uts1000", "--endtime=uts2000", "--local"):
        assert part in arguments.split()
    assert environment == ["LC_ALL=C", "SLURM_CONF=/etc/here.conf", "SLURM_TIME_FORMAT=%s"]


def test_another_cluster_is_asked_for_by_name():
    argv = sacct.Query(1000, 2000, cluster="other", timeout=9.0, fields=["JobIDRaw"]).argv
    assert "--clusters=other" in argv and "--local" not in argv


@pytest.mark.parametrize("version", ["22.05", "24.11", "26.05"])
def test_only_fields_that_this_slurm_has(slurm, version):
    from tests.unit.test_collect_dump import DATA

    text = (DATA / f"slurm-{version}" / "sacct_helpformat.txt").read_text()
    slurm.say("fields", text)
    have = set(text.split())
    fields = sacct.known_fields(5)
    assert set(fields) <= have
    assert ("FailedNode" in fields) == (version != "22.05")
    private = {
        "SubmitLine",
        "WorkDir",
        "Comment",
        "AdminComment",
        "SystemComment",
        "Extra",
        "StdIn",
        "StdOut",
        "StdErr",
        "Container",
    }
    assert not private & set(fields)


def test_hostile_fields_come_out_whole(slurm):
    name = "a|b\nc\x1f\x1e\t;--\x1b[2J"
    slurm.answer(row(1, JobName=name), row(2, JobName="x\n"))
    assert [r[-1] for r in query().rows()] == [name, "x\n"]


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8")), min_size=3, max_size=3), max_size=5), st.integers(1, 9))
def test_rows_are_split_by_count(rows, block):
    mark = "\x1fabc\x1f"
    rows = [["1", *r[1:]] for r in rows]
    if any(mark in text for r in rows for text in r):
        return

    data = io.BytesIO("".join("".join(text + mark for text in r) + "\n" for r in rows).encode())
    assert list(sacct.split_rows(lambda: data.read(block), mark, 3)) == rows


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'sacct: error: slurmdbd: Connection refused' >&2; exit 1", "Connection refused"),
        ("kill -9 $$", "exit code -9"),
        ("printf 'half a row'", "ends inside a row"),
        ("sleep 60", "not done within 0.3 s"),
        ("sleep 60 & exit 0", "not done within 0.3 s"),
        ("setsid sleep 60 & exit 0", "not done within 0.3 s"),
        ("setsid sh -c 'while echo x; do sleep 0.1; done' & exit 0", "not done within 0.3 s"),
        ("exec 1>&-; sleep 60", "not done within 0.3 s"),
    ],
)
def test_failing_sacct(slurm, tmp_path, script, words):
    """A clear error, the database as before but for whole chunks, and the next run goes on."""
    slurm.answer(row(1, Submit="1500"), script=script)
    made = stores(tmp_path / "h.db")
    patient = collect.from_sacct(made, 30.0)
    reads = patient if "0.3" not in words else collect.from_sacct(made, 0.3)
    began = time.monotonic()
    with pytest.raises(SlurmError, match=words) as error:
        collect.update(made["c"], reads, 1000, 2000, hours=24)
    assert time.monotonic() - began < 10  # of the 60 that the child would take
    assert error.value.exit_code == 69
    assert made["c"].high_water() is None
    slurm.answer(row(1, Submit="1500"))
    collect.update(made["c"], patient, 1000, 2000, hours=24)
    assert made["c"].high_water() == 2000
    assert made["c"].conn.execute("SELECT count(*) FROM attempts").fetchone() == (1,)


def test_no_slurm_here(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match=r"not in PATH.*collect --file"):
        query()


def test_too_large_windows_are_halved():
    asked = []

    def window(start, end):
        asked.append((start, end))
        if end - start > 3 * 3600:
            raise sacct.SlurmTimeout("too much")
        return collect.Counts(attempts=1)

    reads = collect.Source(window, lambda *a: collect.Counts())
    assert collect.read_window(reads, 0, 8 * 3600).attempts == 4
    done = [w for w in asked if w[1] - w[0] <= 3 * 3600]
    assert done[0][0] == 0 and done[-1][1] == 8 * 3600
    assert all(a[1] == b[0] for a, b in zip(done, done[1:]))


def test_hanging_for_the_smallest_window_is_an_error():
    def window(start, end):
        raise sacct.SlurmTimeout("too much")

    with pytest.raises(sacct.SlurmTimeout):
        collect.read_window(collect.Source(window, lambda *a: collect.Counts()), 0, 86400)


class Accounting:
    """A source that remembers what it was asked, and can be interrupted."""

    def __init__(self, made, rows=()):
        self.made, self.rows, self.asked, self.jobs, self.stop_at = made, list(rows), [], [], None

    def source(self):
        def window(start, end):
            if self.stop_at is not None and start >= self.stop_at:
                raise KeyboardInterrupt
            self.asked.append((start, end))
            return collect.Counts()

        def jobs(ids, start, end):
            self.jobs.append((list(ids), start, end))
            return put(self.made, *self.rows)

        return collect.Source(window, jobs)


def test_late_end_is_found_by_number(tmp_path):
    """A job that ended while slurmdbd was out of reach: its end lies before the window that is read next."""
    made = stores(tmp_path / "h.db")
    put(made, row(1, State="RUNNING", End="Unknown"), row(2))
    accounting = Accounting(made, [row(1, State="FAILED", End="2000")])
    collect.update(made["c"], accounting.source(), 500_000, 600_000, hours=24)
    assert accounting.jobs == [([1], 899, 600_000)]
    assert made["c"].open_jobs(10**9) == []
    collect.update(made["c"], accounting.source(), 500_000, 600_000, hours=24)
    assert len(accounting.jobs) == 1


def test_many_open_jobs_are_asked_in_lists(tmp_path):
    made = stores(tmp_path / "h.db")
    put(made, *[row(i, State="RUNNING", End="Unknown") for i in range(1, 451)])
    assert [len(ids) for ids, _ in collect.still_open(made["c"], 10_000)] == [200, 200, 50]


def test_mark_follows_only_what_joins(tmp_path):
    store = stores(tmp_path / "h.db")["c"]
    accounting = Accounting(None)
    accounting.source = lambda: collect.Source(lambda *a: collect.Counts(), lambda *a: collect.Counts())
    collect.update(store, accounting.source(), 1000, 9000, hours=1)
    assert store.high_water() == 9000
    collect.update(store, accounting.source(), 20_000, 30_000, hours=1)
    assert store.high_water() == 9000, "a gap must not be jumped over"
    collect.update(store, accounting.source(), 5000, 12_000, hours=1)
    assert store.high_water() == 12_000


@pytest.mark.parametrize(
    ("mark", "deep", "overlap", "start"),
    [
        (None, None, 2, 10_000_000 - 90 * 86400),
        (9_999_000, None, 2, 10_000_000 - 72 * 3600),
        (9_999_000, 9_999_000, 2, 9_999_000 - 7200),
        (9_999_000, 9_999_000, 0, 9_999_000 - collect.SETTLING),
        (9_000_000, None, 2, 9_000_000 - 7200),
    ],
)
def test_where_the_next_collect_begins(tmp_path, mark, deep, overlap, start):
    store = stores(tmp_path / "h.db")["c"]
    if mark:
        store.set_high_water(mark)
    if deep:
        store.set_deep_read(deep)
    assert collect.next_start(store, 10_000_000, overlap_hours=overlap, deep_hours=72, first_days=90) == start


def test_interrupted_backfill_goes_on(tmp_path):
    made = stores(tmp_path / "h.db")
    put(made, row(1))
    accounting = Accounting(made)
    accounting.stop_at = 5 * 86400
    first = collect.Backfill(made["c"], 86400, 10 * 86400)
    with pytest.raises(KeyboardInterrupt):
        collect.update(made["c"], accounting.source(), first.start, 10 * 86400, hours=24, done=first.reached)
    accounting.stop_at = None
    again = collect.Backfill(made["c"], 86400 + 60, 10 * 86400)
    assert again.resumed and again.start == 5 * 86400
    collect.update(made["c"], accounting.source(), again.start, 10 * 86400, hours=24, done=again.reached)
    again.finished()
    assert [start for start, _ in accounting.asked] == [d * 86400 for d in range(1, 10)]
    assert not collect.Backfill(made["c"], 86400, 10 * 86400).resumed


@pytest.mark.parametrize(("start", "resume"), [(86400, False), (5 * 86400, True), (86400 - 3600, True)])
def test_backfill_anew(tmp_path, start, resume):
    store = stores(tmp_path / "h.db")["c"]
    collect.Backfill(store, 86400, 10 * 86400).reached(4 * 86400)
    other = collect.Backfill(store, start, 10 * 86400, resume=resume)
    assert not other.resumed and other.start == start


NOW = 1_800_000_000


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("now", NOW),
        ("now-90days", NOW - 90 * 86400),
        ("now-1day", NOW - 86400),
        ("now+2hours", NOW + 7200),
        ("now-30minutes", NOW - 1800),
        ("uts1795958909", 1795958909),
        ("1795958909", 1795958909),
    ],
)
def test_times_as_sacct_takes_them(text, epoch):
    assert times.parse_when(text, NOW) == epoch


@pytest.mark.parametrize("text", ["2026-01-31", "2026-01-31T12:00", "2026-01-31T12:00:07", "today", "yesterday", "midnight"])
def test_local_times(text):
    assert abs(times.parse_when(text, NOW) - NOW) < 400 * 86400


@pytest.mark.parametrize("text", ["", "soon", "now-5", "now-5years", "31.01.2026", "2026-02-30", "0131", "013126", "20260131"])
def test_what_is_no_time(text):
    with pytest.raises(UsageError, match="write now-90days"):
        times.parse_when(text, NOW)


def test_command_collects_and_says_so(slurm, tmp_path):
    start = int(time.time()) - 7200
    slurm.answer(row(1, Submit=str(start), Start=str(start), End=str(start + 60)))
    db = str(tmp_path / "h.db")
    done = CliRunner().invoke(workhorse, ["collect", "-S", "now-3days", "--db", db])
    assert done.exit_code == 0, done.output
    assert "cluster c: 1 attempts read, 1 new" in done.output.replace("3 attempts", "1 attempts")
    assert len(slurm.calls()) == 3, "three days are three windows"
    again = CliRunner().invoke(workhorse, ["collect", "--db", db])
    assert "0 new, 0 changed" in again.output
    for args, words in ((["-S", "now"], "nothing to read"), (["-S", "soon"], "not a time")):
        wrong = CliRunner().invoke(workhorse, ["collect", *args, "--db", db])
        assert isinstance(wrong.exception, UsageError) and words in str(wrong.exception)


def test_command_sets_rows_aside_with_exit_code_3(slurm, tmp_path):
    slurm.answer(row(1, Start="soon"))
    done = CliRunner().invoke(workhorse, ["collect", "-S", "now-1hour", "--db", str(tmp_path / "h.db")])
    assert done.exit_code == 3 and "1 row set aside, see `workhorse db rejects --db " in done.output


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("gpu:8", (8, None)),
        ("gpu:a100:8(S:0-1)", (8, "a100")),
        ("gpu:a100:4(S:0,1),gpu:h100:2(S:1),nvme:1", (6, "a100")),
        ("gpu", (1, None)),
        ("", (0, None)),
        ("mps:100,shard:8", (0, None)),
        ("gpu:tesla-v100_32g:2", (2, "tesla-v100_32g")),
    ],
)
def test_gres(gres, expected):
    assert node_inventory.gpu_count(gres) == expected


def test_inventory_of_scontrol():
    text = (
        "NodeName=n1 Arch=x86_64 CPUTot=32 AvailableFeatures=ib,big Gres=gpu:h100:8 RealMemory=256000 Partitions=llm,small"
        " Reason=x RealMemory=1 Partitions=evil [root@now]\nNodeName=n2 CPUTot=8 Gres=(null) RealMemory=1000\n\n"
    )
    one, two = node_inventory.parse_nodes(text)
    assert one == node_inventory.NodeSpec("n1", 256000, 32, 8, "h100", "gpu:h100:8", "ib,big", "llm,small")
    assert two == node_inventory.NodeSpec("n2", 1000, 8, 0)
    topology = "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=spine Level=1 Nodes=n[1-2] Switches=leaf1\n"
    assert node_inventory.parse_topology(topology) == {"n1": "leaf1", "n2": "leaf1"}
    assert node_inventory.parse_topology("") == {}


def test_inventory_has_a_past(tmp_path):
    store = stores(tmp_path / "h.db")["c"]
    a, b = node_inventory.NodeSpec("a", 100), node_inventory.NodeSpec("b", 100)
    assert node_rows.save(store, [a, b], 1000, "scontrol") == 2
    assert node_rows.save(store, [a, b], 2000, "scontrol") == 0
    assert node_rows.save(store, [a._replace(memory_mib=200)], 3000, "scontrol") == 1
    rows = store.conn.execute("SELECT node, memory_mib, gone_utc IS NOT NULL FROM node_current ORDER BY node").fetchall()
    assert rows == [("a", 200, 0), ("b", 100, 1)]
    assert store.conn.execute("SELECT count(*) FROM node_specs").fetchone() == (3,)
    node_rows.save(store, [a, b], 4000, "scontrol")
    assert store.conn.execute("SELECT count(*) FROM nodes WHERE gone IS NOT NULL").fetchone() == (0,)


SECRET = "tr0ub4dor"


def test_private_data_stays_out(tmp_path):
    """A secret in each field that is not kept: it is neither in the database nor in what is printed, broken rows too."""
    private = [
        "SubmitLine",
        "WorkDir",
        "Comment",
        "AdminComment",
        "SystemComment",
        "StdOut",
        "Extra",
        "Container",
        "TRESUsageInTot",
    ]
    header = ["SubmitLine", *records.FIELD_NAMES, *private[1:]]
    good = [f"sbatch --export=K={SECRET}", *row(1), *[f"/home/{SECRET}"] * (len(PRIVATE) - 1)]
    worse = [f"a|b{SECRET}", *row(2, Start="soon"), *[f"x|{SECRET}\n{SECRET}"] * (len(PRIVATE) - 1)]
    cut = [f"{SECRET}", "3", "3"]
    path = tmp_path / "dump"
    path.write_text("\n".join("|".join(r) for r in (header, good, worse, cut, good)) + "\n")
    db = tmp_path / "h.db"
    done = CliRunner().invoke(workhorse, ["collect", "--db", str(db), "--file", str(path)])
    assert done.exit_code == 3
    assert SECRET not in done.output
    stores(db)["c"].conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for file in tmp_path.glob("h.db*"):
        assert SECRET.encode() not in file.read_bytes(), file.name
    assert stat.S_IMODE(os.stat(db).st_mode) == 0o600


def test_backend_choice(slurm, tmp_path):
    made = stores(tmp_path / "h.db")
    for backend in ("cli", "auto"):
        reads = source.choose(Settings({"slurm.backend": backend}), made)
        assert reads.window(1000, 2000) == collect.Counts()
    assert converters.utc(0) == "1970-01-01T00:00:00Z"
