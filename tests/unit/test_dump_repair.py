"""Dumps of others: what free text did to their rows, and what becomes of it."""

import io
import json
import secrets
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from accounting.history import collect, store
from accounting.sources import converters, dump, json_dump
from slurm_hook.cli import workhorse

DATA = Path(__file__).parent.parent / "data"
HEADER = "JobID|JobIDRaw|JobName|Submit|Start|End|State|ExitCode|NodeList|AllocNodes|AllocTRES|Comment|WorkDir"
FIELDS = HEADER.split("|")


def row(job="7", name="train", node="n1", comment="", workdir="/home/u"):
    return [job, job, name, "1000", "1010", "1090", "COMPLETED", "0:0", node, "1", "cpu=1,mem=4G,node=1", comment, workdir]


def read(tmp_path, text, delimiter="|", fields=()):
    """Names by job, and the rejects, of a dump with this text."""
    path = tmp_path / "dump"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    found, rejects = [], []
    with dump.open_dump(str(path)) as file:
        parsed = dump.Dump(file, delimiter, fields)
        for one in parsed.rows(rejects.append):
            found.append(dict(zip(parsed.header, one)))
    return found, rejects


BROKEN = {
    "line break inside the name": "first\nsecond",
    "line break at the end": "name\n",
    "several lines": "a\nb\n\nc",
    "bar": "a|b",
    "bars and breaks": "a|b\n|c\n",
    "tab and bell": "a\tb\a",
    "bytes that are not UTF-8": "\udce9t\udce9",
    "looks like a step": "7.batch",
    "looks like a number and a state": "12|FAILED",
    "carriage return": "a\rb",
    "next-line and other separators that are no line feed": "a\x85b\x0bc\x1cd\u2028e",
}


@pytest.mark.parametrize("name", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("end", ["", "|"], ids=["-P", "-p"])
def test_free_text_is_put_together(tmp_path, name, end):
    rows = [row("6"), row("7", name), row("8", comment=name), row("9", workdir="/tmp/" + name), row("10")]
    text = "\n".join("|".join(r) + end for r in [FIELDS, *rows]) + "\n"
    found, rejects = read(tmp_path, text)
    assert not rejects
    assert [r["JobIDRaw"] for r in found] == ["6", "7", "8", "9", "10"]
    assert found[1]["JobName"] == name
    assert [r["NodeList"] for r in found] == ["n1"] * 5


def test_broken_row_is_rejected_and_the_next_is_read(tmp_path):
    text = "\n".join([HEADER, "|".join(row("6"))[:40], "|".join(row("7")), "|".join(row("8")), "9|9|cut", ""])
    found, rejects = read(tmp_path, text)
    assert [r["JobIDRaw"] for r in found] == ["7", "8"]
    assert len(rejects) == 2
    assert "WorkDir" not in rejects[0].text and "/home" not in rejects[0].text


def test_odd_rows_behind_a_broken_one_are_kept(tmp_path):
    """A user's name with a blank fits no shape that is looked for first: neither it nor the row before costs the other."""
    names = ["JobID", "User", "Submit", "State", "NodeList", "JobName", "Comment"]
    rows = [[str(i), "x y", "1000", "FAILED", "n1", name, ""] for i, name in enumerate(["|", "", "a\nb", "plain"], 1)]
    found, rejects = read(tmp_path, "\n".join("|".join(r) for r in [names, *rows]) + "\n")
    assert [(r["JobID"], r["User"]) for r in found] == [(str(i), "x y") for i in range(1, 5)] and not rejects
    cut = ["9|x y|10"]
    found, rejects = read(tmp_path, "\n".join(["|".join(names), *cut, *["|".join(r) for r in rows[3:]]]) + "\n")
    assert [r["JobID"] for r in found] == ["4"] and len(rejects) == 1 and rejects[0].text.startswith("line 2:")


def test_joined_dumps_repeat_the_header(tmp_path):
    text = "\n".join([HEADER, "|".join(row("6")), HEADER, "|".join(row("7")), ""])
    found, rejects = read(tmp_path, text)
    assert [r["JobIDRaw"] for r in found] == ["6", "7"] and not rejects


@pytest.mark.parametrize("delimiter", ["|", ";", ",,", "\t", "\x1f", "^|^"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_any_delimiter_with_and_without_header(tmp_path, delimiter, newline):
    lines = [delimiter.join(row("6")), delimiter.join(row("7"))]
    for head, fields in (([delimiter.join(FIELDS)], ()), ([], FIELDS)):
        found, rejects = read(tmp_path, newline.join([*head, *lines, ""]), delimiter, fields)
        assert [r["JobIDRaw"] for r in found] == ["6", "7"] and not rejects
        assert found[1]["WorkDir"] == "/home/u"


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("|\n0:")), st.text(st.sampled_from("|\nab1"), max_size=9))
def test_no_name_costs_another_job(tmp_path_factory, name, comment):
    """Whatever stands in a name, the rows around it come out as they are."""
    rows = [row("6"), row("7", name, comment=comment), row("8")]
    text = "\n".join("|".join(r) for r in [FIELDS, *rows]) + "\n"
    found, rejects = read(tmp_path_factory.mktemp("d"), text)
    numbers = [r["JobIDRaw"] for r in found]
    assert numbers[0] == "6" and numbers[-1] == "8"
    assert numbers == ["6", "7", "8"] or rejects or "\n" in name + comment


@pytest.mark.parametrize("version", ["22.05", "24.11", "26.05"])
def test_json_says_what_the_text_says(tmp_path, version):
    """Same attempts and tasks from the JSON and the -P output of one Slurm; before 23.02 JSON has no usable exit codes."""
    found = {}
    for kind in ("psv", "json"):
        path = str(tmp_path / f"{kind}.db")
        stores = collect.Stores(store.connect(path), path, "testcl")
        source = DATA / f"slurm-{version}" / f"sacct.{kind}"
        rejects = []
        with dump.open_dump(str(source)) as file:
            if kind == "json":
                data = json_dump.load(file, source.name)
                header, rows = json_dump.HEADER, json_dump.rows(data, rejects.append)
            else:
                text = dump.Dump(file)
                header, rows = text.header, text.rows(rejects.append)
            utc = converters.Times(converters.timezone.utc)
            counts = collect.store_rows(stores, header, rows, source=kind, times=utc)
        assert (rejects, counts.rejected) == ([], 0)
        conn = stores["testcl"].conn
        jobs = conn.execute(
            "SELECT a.job_id, a.submit, a.label, a.array_job, a.array_task, a.het_job, a.het_offset, w.name, a.account,"
            " a.partition, a.qos, s.name, a.exit_code, a.exit_signal, a.eligible, a.start, a.end, a.limit_minutes,"
            " a.gpus, a.node_list, a.failed_node, a.nsteps FROM attempts a JOIN works w ON w.id = a.work_id"
            " JOIN states s ON s.id = a.state_id ORDER BY a.job_id, a.submit"
        ).fetchall()
        if version == "22.05":
            jobs = [(*j[:12], *j[14:]) for j in jobs]
        tasks = conn.execute(
            "SELECT a.job_id, a.submit, n.name, t.start, t.end, t.cpus, t.mem_mib, t.gpus, t.max_rss_mib, t.exact"
            " FROM tasks t JOIN attempts a ON a.id = t.attempt_id JOIN nodes n ON n.id = t.node_id ORDER BY 1, 2, 3"
        ).fetchall()
        found[kind] = jobs, tasks
        exits = conn.execute("SELECT exit_code FROM attempts WHERE label = '2'").fetchone()[0]
        assert exits == (None if (kind, version) == ("json", "22.05") else 3)
    assert len(found["psv"][0]) >= 32
    assert found["psv"] == found["json"]


@pytest.mark.parametrize(
    ("value", "word"),
    [("COMPLETED", "COMPLETED"), (["RUNNING"], "RUNNING"), (["PENDING", "REQUEUED"], "REQUEUED"), (["NEW_WORD"], "NEW_WORD")],
)
def test_json_states(value, word):
    assert json_dump.state(value) == word


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5),
        (None, None),
        ({"set": True, "infinite": False, "number": 7}, 7),
        ({"set": False, "infinite": False, "number": 0}, None),
        ({"set": True, "infinite": True, "number": 0}, None),
        (4294967294, None),
        ("5", None),
        (True, None),
    ],
)
def test_json_numbers(value, number):
    assert json_dump.number(value) == number


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ({"step": {"id": "batch"}}, "batch"),
        ({"step": {"id": "4.batch"}}, "batch"),
        ({"step": {"id": "9_1.0"}}, "0"),
        ({"step": {"id": "13+1.extern"}}, "extern"),
        ({"step": {"id": {"job_id": 4, "step_id": "0"}}}, "0"),
        ({"step": {"id": 3}}, "3"),
    ],
)
def test_json_step_names(step, name):
    assert json_dump.step_name(step) == name


def test_json_jobs_of_wrong_shape_are_set_aside(tmp_path):
    good = json.loads((DATA / "slurm-24.11/sacct.json").read_text())["jobs"][0]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"jobs": [1, {"job_id": 5}, good, {**good, "job_id": "x"}]}))
    db = str(tmp_path / "h.db")
    done = CliRunner().invoke(workhorse, ["collect", "--db", db, "--file", str(path)])
    assert done.exit_code == 3, done.output
    assert "3 rows set aside" in done.output
    assert store.connect(db).execute("SELECT count(*) FROM attempts").fetchone() == (1,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("JobName|State\nx|y\n", "no field JobIDRaw"),
        ("JobID|State\n1|FAILED\n", "Submit"),
        ("{", "not valid JSON"),
        ('{"a": 1}', "no list of jobs"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path, text, words):
    path = tmp_path / "x"
    path.write_text(text)
    done = CliRunner().invoke(workhorse, ["collect", "--db", str(tmp_path / "h.db"), "--file", str(path)])
    assert done.exit_code == 1
    assert words in str(done.exception)


def test_a_byte_order_mark_in_pieces():
    """A pipe may give one byte first: that is no mark yet, and the rest of it is no part of a field's name."""
    text = "\ufeff" + "\n".join(["|".join(FIELDS), "|".join(row("6")), ""])
    assert [r[0] for r in dump.Dump(io.StringIO(text, newline="\n")).rows(pytest.fail)] == ["6"]


def test_a_line_longer_than_what_is_read_at_once(tmp_path):
    long = "x" * (3 * dump._BLOCK)
    text = "\n".join("|".join(r) for r in [FIELDS, row("6"), row("7", comment=long), row("8")]) + "\n"
    found, rejects = read(tmp_path, text)
    assert [r["JobIDRaw"] for r in found] == ["6", "7", "8"] and found[1]["Comment"] == long and not rejects


def test_rejects_belong_to_the_cluster_that_the_dump_names(tmp_path):
    """No second cluster is made for rows that don't tell theirs: score would have to ask which is meant."""
    path, db = tmp_path / "dump", str(tmp_path / "h.db")
    header = "JobID|Cluster|Submit|State|Start|End|NodeList"
    lines = [header, "5.batch|big|1|COMPLETED|1|2|n1", "1|big|900|FAILED|1000|2000|n1", "2|cut"]
    path.write_text("\n".join(lines) + "\n")
    done = CliRunner().invoke(workhorse, ["collect", "--db", db, "--file", str(path)])
    assert done.exit_code == 3 and "cluster big: 1 attempt read" in done.output and "2 rows set aside" in done.output
    assert store.connect(db).execute("SELECT name FROM clusters").fetchall() == [("big",)]


SECRET = "tr0ub4dor"
ORDERS = (
    "JobID|SubmitLine|State|NodeList|Submit", "JobID|SubmitLine|JobName|State|NodeList|Submit",
    "JobID|JobName|SubmitLine|State|NodeList|Submit|User", "SubmitLine|JobID|State|NodeList|Submit",
    "JobID|State|NodeList|Submit|SubmitLine", "SubmitLine|JobID|State|NodeList|Submit|JobName",
    "JobID|State|NodeList|Submit|SubmitLine|JobName", "SubmitLine|Comment|JobIDRaw|JobID|Submit|State|NodeList|JobName",
)  # fmt: skip
PIECES = st.sampled_from([SECRET, "|", "\n", "7", " ", "x", "COMPLETED", f"7.{SECRET}", "1000", "n1", ""])


FIRST_OF_TWO = f"a|COMPLETED|{SECRET} y|1000\n|x"  # both of its lines have as many fields as the header


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(header=ORDERS[0], block=56, lines=[FIRST_OF_TWO])
@example(header=ORDERS[0], block=1 << 18, lines=["", FIRST_OF_TWO, ""])
@example(header=ORDERS[5], block=1 << 18, lines=["", f"{SECRET}\n", ""])
@example(header=ORDERS[6], block=1 << 18, lines=["", f"x|{SECRET} y\n", f"x|y\n{SECRET}"])
@example(header=ORDERS[7], block=1 << 18, lines=["", f"{SECRET}|x\ny", ""])
@given(
    header=st.sampled_from(ORDERS),
    block=st.sampled_from([8, 40, 1 << 18]),
    lines=st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=3),
)
def test_pieces_of_what_may_not_be_kept_are_nowhere(tmp_path, header, block, lines):
    """A command line with delimiters and line breaks spreads over other columns: neither rows nor rejects show it, however
    much is read at once."""
    kept = {"JobName": "train", "State": "COMPLETED", "NodeList": "n1", "Submit": "1000", "User": "u"}
    rows = []
    for number, line in enumerate(lines, 1):
        values = {**kept, **dict.fromkeys(("JobID", "JobIDRaw"), str(number)), "SubmitLine": f"sbatch {line}", "Comment": line}
        rows.append("|".join(values[name] for name in header.split("|")))
    path, history = tmp_path / "dump", str(tmp_path / f"{secrets.token_hex(8)}.db")
    path.write_text("\n".join([header, *rows]) + "\n")
    stores = collect.Stores(store.connect(history), history, "c")
    with dump.open_dump(str(path)) as file, mock.patch.object(dump, "_BLOCK", block):
        rejects = []
        text = dump.Dump(file)
        how = {"source": "d", "times": converters.Times(), "private": text.private}
        collect.store_rows(stores, text.header, text.rows(rejects.append), **how)
        collect.keep_rejects(stores, "d", rejects)
    names = [(table, "name") for table in ("works", "states", "nodes", "users")]
    for table, column in (("attempts", "label || node_list"), ("rejects", "reason || text"), *names):
        for (value,) in stores[""].conn.execute(f"SELECT {column} FROM {table}"):
            assert SECRET not in str(value), (table, value)
