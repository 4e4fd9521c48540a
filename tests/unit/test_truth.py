"""A generator of hostile accounting records whose truth is known: what goes in comes out, whatever notation it took."""

from datetime import datetime, timezone
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.history import collect, store
from accounting.sources import converters, dump
from slurm_hook.common import hostlist
from tests.accounting_rows import stores
from tests.conftest import SEARCH

FIELDS = [
    "JobID", "JobIDRaw", "Cluster", "User", "Submit", "Start", "End", "Elapsed", "State", "ExitCode",
    "AllocNodes", "AllocCPUS", "AllocTRES", "ReqMem", "NodeList", "MaxRSS", "MaxRSSNode", "Timelimit",
    "Partition", "FailedNode", "JobName", "Comment",
]  # fmt: skip
WORDS = ("Unknown", "None", "")
UNITS = {"M": 1, "G": 1024, "T": 1048576}


class Truth(NamedTuple):
    """What is so, apart from how it is written."""

    job: int
    label: str
    submit: int
    start: int | None
    end: int | None
    state: str
    code: int
    signal: int
    nodes: tuple[str, ...]
    cpus: int
    mem: int  # MiB in all
    gpus: int
    name: str
    user: str
    failed_node: str


node_names = st.lists(
    st.sampled_from([f"gpu{i:03}" for i in range(12)] + ["a1", "a01", "r2-b7"]), min_size=1, max_size=6, unique=True
)
hostile_names = st.text(st.characters(codec="utf-8", exclude_characters="\r") | st.sampled_from("|\n'\";\x1b\0"), max_size=20)


@st.composite
def truths(draw):
    """Attempts of some jobs, requeues among them; keys (job, submit) are different."""
    found = []
    for job in draw(st.lists(st.integers(1, 2**26), min_size=1, max_size=6, unique=True)):
        submit = draw(st.integers(1_500_000_000, 1_700_000_000))
        label = draw(st.sampled_from([str(job), f"{job}_7", f"{job}+1", f"{job + 5}_1234"]))
        for _ in range(draw(st.integers(1, 3))):
            ran = draw(st.booleans())
            start = submit + draw(st.integers(0, 9999)) if ran else None
            running = ran and draw(st.integers(0, 5)) == 0
            end = None if running or not ran else start + draw(st.sampled_from([0, 1, 59, 3600, 86_399, 90_000, 20_000_000]))
            state = "RUNNING" if running else draw(st.sampled_from(["COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "NEW_ONE"]))
            nodes = tuple(draw(node_names)) if ran else ()
            count = max(len(nodes), 1)
            found.append(
                Truth(
                    job, label, submit, start, end, state if ran else "CANCELLED", draw(st.integers(0, 255)),
                    draw(st.sampled_from([0, 9, 15])), nodes, count * 8, count * draw(st.sampled_from([1, 512, 4096, 131072])),
                    draw(st.sampled_from([0, 8])) * count, draw(hostile_names), draw(st.sampled_from(["alice", "bob", "x y"])),
                    draw(st.sampled_from(["", *nodes])),
                )
            )  # fmt: skip
            submit = (end or start or submit) + draw(st.integers(1, 1000))
    return found


def stamp(draw, epoch, iso):
    if epoch is None:
        return draw(st.sampled_from(WORDS))
    return datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S") if iso else str(epoch)


def span(draw, seconds):
    days, rest = divmod(seconds, 86400)
    long = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{long}" if days else long


def tres(draw, truth):
    """AllocTRES with or without GPU types, or nothing and ReqMem in one of its notations."""
    unit = draw(st.sampled_from([u for u, size in UNITS.items() if truth.mem % size == 0]))
    mem = f"{truth.mem // UNITS[unit]}{unit}"
    if draw(st.booleans()):
        gpus = f",gres/gpu={truth.gpus}" if truth.gpus else ""
        typed = f",gres/gpu:h100={truth.gpus}" if truth.gpus and draw(st.booleans()) else ""
        return f"billing=3,cpu={truth.cpus}{typed}{gpus},mem={mem},node={len(truth.nodes)}", draw(
            st.sampled_from(["0n", mem, "", "1Gc"])
        )
    count = max(len(truth.nodes), 1)
    notation = draw(st.sampled_from(["", "n", "c"] if truth.mem % truth.cpus == 0 else ["", "n"]))
    if notation == "c":
        return "", f"{truth.mem // truth.cpus}Mc"
    return "", f"{truth.mem // count}Mn" if notation == "n" else mem


def state(draw, truth):
    return f"CANCELLED by {draw(st.integers(0, 9999))}" if truth.state == "CANCELLED" and draw(st.booleans()) else truth.state


@st.composite
def dumps(draw):
    """Truths and a dump that tells them in some notation."""
    found = draw(truths())
    iso, delimiter = draw(st.booleans()), draw(st.sampled_from(["|", ";;", "\x1f"]))
    lines, gpus_told = [FIELDS], {}
    for truth in found:
        alloc, asked = tres(draw, truth)
        gpus_told[truth.job, truth.submit] = bool(alloc)
        lasted = span(draw, truth.end - truth.start) if truth.end is not None else "00:00:00"
        ran = len(truth.nodes)
        nodes = hostlist.fold(truth.nodes) if ran else draw(st.sampled_from(["None assigned", ""]))
        end = stamp(draw, truth.end, iso) if truth.start is not None else stamp(draw, truth.submit + 5, iso)
        lines.append(
            [truth.label, str(truth.job), "c", truth.user, stamp(draw, truth.submit, iso), stamp(draw, truth.start, iso), end,
             lasted, state(draw, truth), f"{truth.code}:{truth.signal}", str(ran), str(truth.cpus), alloc, asked, nodes, "", "",
             draw(st.sampled_from(["UNLIMITED", "Partition_Limit", "1-00:00:00", "60"])), "llm", truth.failed_node, truth.name,
             draw(st.sampled_from(["", "plain", "two words"]))]
        )  # fmt: skip
        for step in draw(st.lists(st.sampled_from(["batch", "extern", "0", "interactive", "na.me"]), max_size=3, unique=True)):
            if ran:
                lines.append(
                    [f"{truth.label}.{step}", f"{truth.job}.{step}", "c", "", stamp(draw, truth.start, iso),
                     stamp(draw, truth.start, iso), stamp(draw, truth.end, iso), lasted, "COMPLETED", "0:0", "1", "1", "", "",
                     truth.nodes[0], draw(st.sampled_from(["", "0", "12K", "3.5M"])), truth.nodes[0], "", "", "", step, ""]
                )  # fmt: skip
    trailing = draw(st.booleans())
    text = "".join(delimiter.join(line) + (delimiter if trailing else "") + "\n" for line in lines)
    return found, gpus_told, delimiter, text


@settings(max_examples=25 * max(SEARCH, 1), deadline=None)
@given(dumps())
def test_what_goes_in_comes_out(tmp_path_factory, case):
    found, gpus_told, delimiter, text = case
    folder = tmp_path_factory.mktemp("t")
    path, made, rejects = folder / "dump", stores(folder / "h.db"), []
    path.write_bytes(text.encode())
    for again in (False, True):
        with dump.open_dump(str(path)) as file:
            read = dump.Dump(file, delimiter)
            utc = converters.Times(timezone.utc)
            counts = collect.store_rows(made, read.header, read.rows(rejects.append), source="d", times=utc)
        if not again:
            new = counts.new
        assert not again or (counts.new, counts.changed) == (0, 0)
    conn = made["c"].conn
    rows = conn.execute(
        "SELECT a.job_id, a.label, a.submit, a.start, a.end, s.name, a.exit_code, a.exit_signal, a.cpus, a.mem_mib,"
        " w.name, u.name, a.failed_node FROM attempts a JOIN states s ON s.id = a.state_id JOIN works w ON w.id = a.work_id"
        " JOIN users u ON u.id = w.user_id"
    ).fetchall()
    there = {(r[0], r[2]) for r in rows}
    # free text that holds the delimiter may fit in more than one way: such a row is set aside, its numbers never guessed
    expected = [t for t in found if (t.job, t.submit) in there]
    missing = [t for t in found if (t.job, t.submit) not in there]
    assert all(suspicious(t, delimiter) for t in missing) and (not missing or rejects) and new == len(expected)
    told = {
        (t.job, t.label, t.submit, t.start, t.end if t.start else t.submit + 5, t.state, t.code, t.signal, t.cpus, t.mem, t.user,
         t.failed_node or None)
        for t in expected
    }  # fmt: skip
    assert {(*r[:10], *r[11:]) for r in rows} == told
    names = {(r[0], r[2]): store.loaded_text(r[10]) for r in rows}
    assert all(names[t.job, t.submit] == t.name for t in expected if not suspicious(t, delimiter))
    tasks = conn.execute(
        "SELECT a.job_id, a.submit, n.name, t.start, t.end, round(t.cpus, 6), round(t.mem_mib, 3), t.gpus FROM tasks t"
        " JOIN attempts a ON a.id = t.attempt_id JOIN nodes n ON n.id = t.node_id"
    ).fetchall()
    assert set(tasks) == {
        (t.job, t.submit, node, t.start, t.end, 8, round(t.mem / len(t.nodes), 3),
         t.gpus / len(t.nodes) if t.gpus and gpus_told[t.job, t.submit] else None)
        for t in expected for node in t.nodes
    }  # fmt: skip
    assert conn.execute("PRAGMA foreign_key_check").fetchall() == []


def suspicious(truth, delimiter):
    # a name that ends in the first half of a delimiter moves that by as much
    return (truth.name + delimiter).find(delimiter) < len(truth.name) or "\n" in truth.name
