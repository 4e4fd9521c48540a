"""Feasibility, constraint expressions, live nodes, match rules and directives, as tables."""

import pytest

from slurm_hook.common.config import Settings
from slurm_hook.common.errors import RequestError
from slurm_hook.decision import directives, feasibility, match, switches
from slurm_hook.dispatch import passes
from slurm_hook.slurm import cluster
from slurm_hook.slurm.cluster import Node
from slurm_hook.slurm.request import Request, request_from
from slurm_hook.submit import hints

FEATURED = {
    name: Node(name, "IDLE", features=tuple(f.split())) for name, f in {"a": "x y", "b": "y", "c": "x z", "d": ""}.items()
}


@pytest.mark.parametrize(
    ("constraint", "names"),
    [
        ("", "abcd"), ("x", "ac"), ("x&y", "a"), ("x|z", "ac"), ("x,y", "a"), ("(x|y)&z", "c"), ("x&(y|z)", "ac"),
        ("((y))", "ab"), ("(" * 500 + "x" + ")" * 500, "ac"), ("x|(z&(y|x))|nosuch", "ac"), ("(x&y)|(z)", "ac"),
        ("nosuch", ""), ("x&y&z", ""), ("x|y|z", "abc"),
    ],
)  # fmt: skip
def test_constraints(constraint, names):
    assert "".join(feasibility.by_constraint(FEATURED, constraint)) == names


UNREAD = [
    "[x|y]", "x*2", "x&y|z", "x&", "(x", "x)", "&x", "x y", "{x}", "[x*2&y*1]", "()", "(x)(y)", "x(y)", "(x&y|z)", "x||y",
    "(" * 1000, "x" * 1025, "(" * 60_000, "x&" * 30_000 + "x",
]  # fmt: skip


@pytest.mark.parametrize("constraint", UNREAD, ids=lambda text: text[:20])
def test_constraints_that_are_left_alone(constraint):
    with pytest.raises(RequestError):
        feasibility.by_constraint(FEATURED, constraint)


@pytest.mark.parametrize(
    ("request_", "nodes", "need"),
    [
        (Request(), 1, (1, 0.0, 0)),
        (Request(ntasks=8, cpus_per_task=2, mem_cpu=500.0), 2, (8, 4000.0, 0)),
        (Request(ntasks_per_node=4, gpus_per_task=2), 2, (4, 0.0, 8)),
        (Request(gpus=12, mem_gpu=4096.0), 2, (1, 24576.0, 6)),
        (Request(gpus_per_node=8, ntasks_per_gpu=1), 2, (8, 0.0, 8)),
        (Request(mem_node=64000.0, mincpus=16), 3, (16, 64000.0, 0)),
        (Request(ntasks=7), 2, (4, 0.0, 0)),
    ],
)
def test_need_per_node(request_, nodes, need):
    found = feasibility.need_per_node(request_, nodes)
    assert (found.cpus, found.mem, found.gpus) == need


LINE = (
    "NodeName={name} Arch=x86_64 CPUAlloc={alloc} CPUEfctv=30 CPUTot=32 CPULoad=0.5 AvailableFeatures=a,b ActiveFeatures=a "
    "Gres={gres} NodeAddr=x RealMemory=512000 AllocMem=1000 FreeMem=5 Sockets=2 Boards=1 MemSpecLimit=2000 State={state} "
    "ThreadsPerCore=1 Partitions=llm,small "
    "CfgTRES=cpu=32,mem=500G,gres/gpu=8 AllocTRES=cpu=2,mem=1000M,gres/gpu=3 Comment= State=DOWN MemSpecLimit=3000"
)


@pytest.mark.parametrize(
    ("state", "counted", "used"), [("MIXED", True, 3), ("MIXED", False, 8), ("IDLE", False, 0), ("ALLOCATED+DRAIN", False, 8)]
)
def test_gpus_that_the_site_does_not_count_are_not_taken_for_free(state, counted, used):
    line = LINE.format(name="n1", alloc=2, gres="gpu:8", state=state)
    line = line if counted else line.replace(",gres/gpu=8", "").replace(",gres/gpu=3", "")
    assert cluster.parse_nodes(line)["n1"].gpus_used == used


@pytest.mark.parametrize(
    ("state", "base", "flags", "usable", "open_"),
    [
        ("IDLE", "IDLE", set(), True, True),
        ("MIXED", "MIXED", set(), True, True),
        ("ALLOCATED", "ALLOCATED", set(), True, False),
        ("IDLE+DRAIN", "IDLE", {"DRAIN"}, False, False),
        ("IDLE*", "IDLE", {"NOT_RESPONDING"}, False, False),
        ("DOWN*+DRAIN", "DOWN", {"NOT_RESPONDING", "DRAIN"}, False, False),
        ("IDLE+CLOUD+POWERED_DOWN", "IDLE", {"CLOUD", "POWERED_DOWN"}, True, False),
        ("MIXED+PLANNED", "MIXED", {"PLANNED"}, True, False),
        ("IDLE+RESERVED", "IDLE", {"RESERVED"}, True, False),
    ],
)
def test_node_states(state, base, flags, usable, open_):
    node = cluster.parse_nodes(LINE.format(name="n1", alloc=2, gres="gpu:a100:8(S:0-1),lustre:1", state=state) + "\n\n")["n1"]
    assert (node.state, node.flags, node.usable, node.open) == (base, flags, usable, open_)
    assert (node.cpus, node.mem, node.gpus, node.gpu_type) == (30, 510000.0, 8, "a100")
    assert node.partitions == ("llm", "small") and node.features == ("a",)
    assert (node.cpus_used, node.gpus_used) == ((2, 3) if base != "IDLE" else (0, 0))


@pytest.mark.parametrize(
    ("gres", "expected"),
    [("(null)", (0, "")), ("gpu:8", (8, "")), ("gpu:a:2,gpu:b:6", (8, "b")), ("gpu", (1, "")), ("", (0, ""))],
)
def test_gres_of_nodes(gres, expected):
    node = cluster.parse_nodes(LINE.format(name="n1", alloc=0, gres=gres, state="IDLE"))["n1"]
    assert (node.gpus, node.gpu_type) == expected


def test_fewest_leaves():
    sums = {"a": 4.0, "b": 2.0, "c": 1.0}
    for wanted, leaves in ((1, 1), (4, 1), (5, 2), (6, 2), (7, 3), (8, 0)):
        assert switches.fewest_leaves(sums, lambda s, wanted=wanted: s >= wanted) == leaves


@pytest.mark.parametrize(
    ("request_", "rules", "nodes", "gpus", "expected"),
    [
        (Request(), {}, 2, 0, "min_nodes"),
        (Request(), {}, 1, 64, ""),
        (Request(), {"min_gpus": 8}, 1, 8, "min_gpus"),
        (Request(), {"min_gpus": 8}, 1, 7, ""),
        (Request(name="llm-7"), {"name": "llm-*"}, 1, 0, "name"),
        (Request(name="xllm-7"), {"name": "llm-*"}, 1, 0, ""),
        (Request(comment="train: x"), {"comment_prefix": "train"}, 1, 0, "comment_prefix"),
        (Request(comment="wh=1;p=a"), {}, 1, 0, "mark"),
        (Request(comment="wh=1;m=steer"), {}, 1, 0, ""),
        (Request(partition="llm"), {"partitions": ["llm"]}, 2, 0, "min_nodes"),
        (Request(partition="a,llm"), {"partitions": ["llm"]}, 2, 0, "min_nodes"),
        (Request(partition="a"), {"partitions": ["llm"]}, 2, 0, ""),
        (Request(account="x"), {"accounts": ["ml"]}, 2, 0, ""),
        (Request(), {"accounts": ["ml"]}, 2, 0, "min_nodes"),
        (Request(qos="low"), {"qos": ["high"]}, 2, 0, ""),
        (Request(), {"min_nodes": 4}, 3, 0, ""),
    ],
)
def test_match_rules(request_, rules, nodes, gpus, expected):
    settings = Settings().replace(**{f"match__{key}": value for key, value in rules.items()})
    assert match.reason(request_, directives.Directives(), settings, nodes=nodes, gpus=gpus) == expected


def test_a_directive_makes_a_job_ours_unless_switched_off():
    told = directives.parse(b"#!/bin/sh\n#WORKHORSE stage=a\n")
    assert match.reason(Request(), told, Settings(), nodes=1, gpus=0) == "directive"
    assert match.reason(Request(), told, Settings().replace(match__directives=False), nodes=1, gpus=0) == ""


@pytest.mark.parametrize(
    ("script", "fields", "errors"),
    [
        (b"#!/bin/sh\n#WORKHORSE demand=640G stage=pre-train_1 pipeline=llama.v2 checkpoint=30 steer=on\n",
         {"demand": 655360.0, "stage": "pre-train_1", "pipeline": "llama.v2", "checkpoint": 30.0, "steer": True}, 0),
        (b"#!/bin/sh\n#WORKHORSE steer=off # not now\n", {"steer": False}, 0),
        (b"#!/bin/sh\n\n# c\n#SBATCH -N2\n#WORKHORSE stage='a'\n", {"stage": "a"}, 0),
        (b"#!/bin/sh\ntrue\n#WORKHORSE stage=a\n", {"present": False, "stage": ""}, 0),
        (b"#!/bin/sh\n #WORKHORSE stage=a\n", {"present": False}, 0),
        (b"#!/bin/sh\n##WORKHORSE stage=a\n", {"present": False}, 0),
        (b"#!/bin/sh\n#WORKHORSES stage=a\n", {"present": False}, 0),
        (b"#!/bin/sh\n#WORKHORSE\n", {"present": True}, 0),
        (b"#!/bin/sh\n#WORKHORSE checkpoint=01:30:00\n", {"checkpoint": 90.0}, 0),
        (b"#!/bin/sh\n#WORKHORSE demand=x stage=$(id) bogus=1 steer=maybe word\n", {"demand": 0.0, "stage": ""}, 5),
        (b"#!/bin/sh\n#WORKHORSE stage=a\xff\xfe\x1b[31m\n", {"stage": ""}, 1),
        (b"#!/bin/sh\n#WORKHORSE stage=" + b"a" * 65 + b"\n", {"stage": ""}, 1),
        (b"\0\0\0", {"present": False}, 0),
        (b"", {"present": False}, 0),
    ],
)  # fmt: skip
def test_directives(script, fields, errors):
    found = directives.parse(script)
    assert {key: getattr(found, key) for key in fields} == fields
    assert len(found.errors) == errors and all(text.startswith("#WORKHORSE") for text in found.errors)


def test_hints_hold_what_the_shim_can_see(tmp_path):
    settings = Settings().replace(match__name="llm *", match__min_nodes=4, steer__mode="steer")
    text = hints.text(settings)
    assert text.splitlines() == ["mode steer", "min_nodes 4", "min_gpus 0", "name llm *", "directives 1", "end"]
    assert (tmp_path / "hints").as_posix() == hints.write(str(tmp_path), settings)


PARTITION = (
    "PartitionName=p State=UP Nodes=n1 OverSubscribe={over} MaxCPUsPerNode=UNLIMITED JobDefaults={jobs} DefMemPerNode=UNLIMITED"
)


@pytest.mark.parametrize(
    ("asked", "over", "defaults", "config", "starts"),
    [
        # 28 of 32 CPUs, 7 of 8 GPUs and 500000 of 512000 MiB are taken
        ({}, "NO", "(null)", {"DefMemPerCPU": "1000"}, True),
        ({"cpus-per-task": "4"}, "NO", "(null)", {"DefMemPerCPU": "4000"}, False),
        ({"cpus-per-task": "4", "mem": "1G"}, "NO", "(null)", {"DefMemPerCPU": "4000"}, True),
        ({}, "NO", "(null)", {"DefMemPerNode": "16000"}, False),
        ({}, "NO", "(null)", {"DefMemPerNode": "UNLIMITED"}, False),  # all of a node's memory
        ({"mem": "1G"}, "EXCLUSIVE", "(null)", {}, False),
        ({"mem": "1G", "gpus-per-node": "1"}, "NO", "(null)", {}, True),
        ({"mem": "1G", "gpus-per-node": "1", "cpus-per-gpu": "8"}, "NO", "(null)", {}, False),
        ({"mem": "1G", "gpus-per-node": "1"}, "NO", "DefCpuPerGPU=8,DefMemPerGPU=1", {}, False),
        ({"gpus-per-node": "1"}, "NO", "DefMemPerGPU=64000", {"DefMemPerCPU": "1"}, False),
        ({"gpus-per-node": "1"}, "NO", "(null)", {"JobDefaults": "DefMemPerGPU=64000", "DefMemPerCPU": "1"}, False),
    ],
)
def test_room_counts_what_jobs_get_without_asking(asked, over, defaults, config, starts):
    """Confined to a node without room the job would wait for the next pass of dispatch."""
    facts = passes.parse_partitions(PARTITION.format(over=over, jobs=defaults), config)["p"]
    request = request_from({"nodes": "1", **asked})
    need = feasibility.in_partition(feasibility.need_per_node(request, 1), request, facts)
    node = Node("n1", "MIXED", cpus=32, cpus_used=28, mem=512000.0, mem_used=500000.0, gpus=8, gpus_used=7)
    assert feasibility.can_start(node, need) is starts
    assert feasibility.can_start(node._replace(state="IDLE", cpus_used=0, mem_used=0.0, gpus_used=0), need)
