"""What squeue and sacct print, read: no name or comment can pass for another row, and words in place of numbers do no harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.common.errors import SlurmError
from slurm_hook.slurm import jobs
from slurm_hook.slurm.jobs import Link

SEP, END = "\x1fabc\x1f", "\x1eabc\x1e"
ROW = {
    "id": "12", "label": "12_[3-9%2]", "state": "PENDING", "user": "alice", "partition": "llm,small", "qos": "normal",
    "account": "ml", "priority": "4294901759", "nice": "-5", "submit": "1800000000", "start": "N/A", "end": "N/A",
    "minutes": "1-02:00:00", "nodes": "4", "req_nodes": "", "excludes": "gpu[01-03]", "node_list": "",
    "dependency": "(null)", "reason": "Resources", "reservation": "(null)", "features": "(null)", "sharing": "OK",
    "comment": "(null)", "name": "train",
}  # fmt: skip


def text(*rows):
    return "".join(SEP.join({**ROW, **row}.values()) + END + "\n" for row in rows)


def test_a_row_is_read():
    (job,) = jobs.parse(text({}), SEP, END)
    assert (job.id, job.label, job.priority, job.nice, job.minutes) == (12, "12_[3-9%2]", 4294901759, -5, 1560.0)
    assert (job.start, job.reservation, job.comment, job.dependency) == (0.0, "", "", "")
    assert job.array and not job.het and job.eligible
    assert jobs.nodes_of(job.excludes) == ("gpu01", "gpu02", "gpu03")


@given(st.text(max_size=40), st.text(max_size=40))
def test_hostile_names_and_comments_stay_in_their_row(name, comment):
    rows = jobs.parse(text({"name": name, "comment": comment}, {"id": "13", "name": "x\n99\x1fRUNNING\x1e"}), SEP, END)
    assert [job.id for job in rows] == [12, 13]
    assert rows[0].name == name
    assert rows[0].comment == ("" if comment == "(null)" else comment)


def test_separators_can_not_be_known_before():
    assert jobs._separators() != jobs._separators()
    assert not any(c in "".join(jobs._separators()) for c in "%,:|\n")


@pytest.mark.parametrize("broken", ["12" + SEP + "13" + END, SEP * 40 + END])
def test_another_squeue_is_told(broken):
    with pytest.raises(SlurmError, match="squeue printed"):
        jobs.parse(broken, SEP, END)


@pytest.mark.parametrize(
    ("changes", "eligible"),
    [
        ({}, True), ({"state": "RUNNING"}, False), ({"priority": "0"}, False), ({"reason": "JobHeldUser"}, False),
        ({"reason": "Dependency"}, False), ({"reason": "BeginTime"}, False), ({"reason": "BadConstraints"}, False),
        # an update makes Slurm forget the reason
        ({"reason": "None", "dependency": "afterok:3(unfulfilled)"}, False), ({"reason": "None"}, True),
        ({"reason": "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"}, True),
        ({"reason": "ReqNodeNotAvail, May be reserved for other job"}, True), ({"reason": "QOSMaxJobsPerUserLimit"}, True),
    ],
)  # fmt: skip
def test_who_waits_for_nodes(changes, eligible):
    (job,) = jobs.parse(text(changes), SEP, END)
    assert job.eligible is eligible


@pytest.mark.parametrize(
    ("dependency", "links"),
    [
        ("", []), ("singleton(unfulfilled)", []), ("afterok:12(unfulfilled)", [Link("afterok", 12, "unfulfilled")]),
        ("afterok:12(failed),afterany:13_4(unfulfilled)", [Link("afterok", 12, "failed"), Link("afterany", 13, "unfulfilled")]),
        ("afternotok:7_*(unfulfilled)?after:8+10(failed)", [Link("afternotok", 7, "unfulfilled"), Link("after", 8, "failed")]),
        ("aftercorr:9_*(unfulfilled),singleton(unfulfilled)", [Link("aftercorr", 9, "unfulfilled")]), ("expand:3", []),
    ],
)  # fmt: skip
def test_dependencies(dependency, links):
    assert jobs.links(dependency) == links


@pytest.mark.parametrize(
    ("tres", "found"),
    [
        ("cpu=2,mem=200G,node=2,billing=2,gres/gpu=8", (2, 204800.0, 8)), ("cpu=1,mem=1.50T,gres/gpu:a100=4", (1, 1572864.0, 4)),
        ("gres/gpu=8,gres/gpu:a100=8", (0, 0.0, 8)), ("", (0, 0.0, 0)), ("mem=oops,cpu=", (0, 0.0, 0)), ("mem=512K", (0, 0.5, 0)),
    ],
)  # fmt: skip
def test_tres(tres, found):
    assert jobs.parse_tres(tres) == found


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [
        ("5:00", 5), ("1:00:00", 60), ("2-00:00:00", 2880), ("0:30", 0.5), ("UNLIMITED", None), ("INVALID", None),
        ("Partition_Limit", None), ("NOT_SET", None), ("", None),
    ],
)  # fmt: skip
def test_limits(limit, minutes):
    assert jobs.parse_limit(limit) == minutes


def test_details():
    raw = _details() + _details(JobID="13", EligibleTime="N/A", RestartCnt="0", MaxNodes="0", tres="")
    assert jobs.parse_details(raw, SEP, END) == {12: jobs.Details(1.8e9, 1, 2, 2, 4096.0, 8), 13: jobs.Details()}


def _details(**told):
    """A row as Slurm prints it for a job that asks for nothing special."""
    plain = {
        "JobID": "12", "EligibleTime": "1800000000", "RestartCnt": "1", "MaxNodes": "2", "ReqSwitch": "0", "Contiguous": "0",
        "MinTmpDisk": "0", "Sockets": "*", "Cores": "*", "Threads": "*", "Licenses": "(null)", "NTPerCore": "N/A",
        "NTPerSocket": "N/A", **dict.fromkeys(jobs._TRES_PER, "N/A"), "tres": "cpu=2,mem=4G,gres/gpu=8",
    }  # fmt: skip
    return SEP.join({**plain, **told}[field] for field in jobs._DETAIL_FIELDS) + f"{END}\n"


@pytest.mark.parametrize(
    ("told", "changes"),
    [
        ({"tres-per-node": "gres:gpu:a100:4"}, {"gpu_type": "a100"}),
        ({"tres-per-job": "gres/gpu:a100:8", "tres-per-task": "cpu=2"}, {"gpu_type": "a100"}),
        ({"tres-per-node": "gres:gpu:4"}, {}),
        ({"tres-per-node": "gres/gpu:a100:2,gres/gpu:h100:2"}, {"odd": ("several GPU types",)}),
        ({"tres-per-node": "gres/gpu:4,gres/lustre:1"}, {"odd": ("gres:lustre",)}),
        ({"Contiguous": "1"}, {"odd": ("contiguous",)}), ({"MinTmpDisk": "10G"}, {"odd": ("tmp",)}),
        ({"Cores": "4"}, {"odd": ("cores-per-socket",)}), ({"Sockets": "2"}, {"odd": ("sockets-per-node",)}),
        ({"Threads": "1"}, {"inner": ("threads-per-core",)}), ({"Licenses": "matlab:2"}, {"inner": ("licenses",)}),
        ({"NTPerSocket": "2"}, {"inner": ("ntasks-per-socket",)}),
        ({"tres-per-socket": "gres:gpu:1"}, {"inner": ("gpus-per-socket",)}),
        ({"ReqSwitch": "1"}, {"switches": 1}), ({"ReqSwitch": "2@00:10:00"}, {"switches": 2}),
    ],
)  # fmt: skip
def test_details_tell_what_limits_the_choice_of_nodes(told, changes):
    (found,) = jobs.parse_details(_details(**told), SEP, END).values()
    assert found == jobs.Details(1.8e9, 1, 2, 2, 4096.0, 8)._replace(**{"gpu_type": "", **changes})


def test_history_joins_names_with_line_breaks():
    rows = [
        ["7", "CANCELLED by 1000", "60", "gpu[01-02]", "1800000000", "", "a\nb" + "\n9|8",
         "sbatch --dependency=afterok:5:6 x.sh\n9 y"],
        ["8", "RUNNING", "5", "None assigned", "Unknown", "wh=1;p=x", "plain", "sbatch -N2 y.sh"],
    ]  # fmt: skip
    found = jobs.parse_history("\n".join(SEP.join(row) for row in rows) + "\n", SEP)
    assert [(r.id, r.state, r.elapsed, r.node_list, r.end) for r in found] == [
        (7, "CANCELLED", 60.0, "gpu[01-02]", 1.8e9), (8, "RUNNING", 5.0, "", 0.0),
    ]  # fmt: skip
    assert (found[0].name, found[1].comment) == ("a\nb\n9|8", "wh=1;p=x")
    assert (found[0].after, found[1].after) == ((5, 6), ())


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("sbatch --dependency=afterok:12 a.sh", (12,)), ("sbatch --dependency afterany:12,afterok:13 a.sh", (12, 13)),
        ("sbatch -d afterok:12:13 a.sh", (12, 13)), ("sbatch -dafterok:12?afternotok:13_4 a.sh", (12, 13)),
        ("sbatch --depend=afterok:12+5 a.sh", (12,)), ("sbatch --dependency=singleton a.sh", ()), ("sbatch a.sh afterok:3", ()),
        ("sbatch --wrap=cut -d 5", ()), ("", ()), ("sbatch --deadline=afterok:3 a.sh", ()),
    ],
)  # fmt: skip
def test_what_a_submission_named(line, after):
    assert jobs.submitted_after(line) == after
