"""Excludes that Slurm can't refuse: whatever it takes without them, it takes with them."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_hook.decision import decide, directives, feasibility, safe_excludes
from slurm_hook.published import mark
from slurm_hook.slurm.cluster import Node
from slurm_hook.slurm.request import Request
from tests.unit.test_decide import PARTITIONS, case

KINDS = st.tuples(
    st.sampled_from([4, 8, 16]), st.sampled_from([1000.0, 2000.0, 4000.0]),
    st.sampled_from([(0, ""), (2, "a"), (4, "a"), (4, "b")]),
    st.sampled_from([(), ("fast",), ("fast", "rack1")]), st.sampled_from([("llm",), ("llm", "other"), ("other",)]),
)  # fmt: skip
REQUESTS = st.builds(
    lambda count, tasks, gpus, node, constraint, partition: Request(
        nodes_min=count[0], nodes_max=count[1], ntasks=tasks, gpus=gpus, gpus_per_node=node[2], gpu_type=node[3],
        cpus_per_task=node[0], mem_node=node[1], constraint=constraint, partition=partition,
    ),
    st.sampled_from([(0, 0), (1, 1), (2, 2), (3, 3), (2, 4)]), st.sampled_from([0, 0, 3, 6, 12]), st.sampled_from([0, 0, 4, 9]),
    st.tuples(st.sampled_from([1, 2, 8]), st.sampled_from([None, 500.0, 2000.0, 4000.0]), st.sampled_from([0, 0, 2, 4]),
              st.sampled_from(["", "", "a", "b"])),
    st.sampled_from(["", "", "fast", "fast&rack1", "fast|rack1"]), st.sampled_from(["llm", "llm", "other", "llm,other"]),
)  # fmt: skip


def nodes_of(kinds) -> dict[str, Node]:
    return {
        f"n{i}": Node(f"n{i}", "IDLE", cpus=cpus, mem=mem, gpus=gpus, gpu_type=kind, features=features, partitions=partitions)
        for i, (cpus, mem, (gpus, kind), features, partitions) in enumerate(kinds)
    }


def takes(nodes: list[Node], asked: Request) -> bool:
    """What Slurm asks of an empty partition, from its manual alone: are there that many nodes, with all that each and all
    together must have?"""
    return any(_one_partition([n for n in nodes if part in n.partitions], asked) for part in asked.partition.split(","))


def _one_partition(nodes: list[Node], asked: Request) -> bool:
    fitting = [
        n
        for n in nodes
        if n.cpus >= asked.cpus_per_task
        and n.mem >= (asked.mem_node or 0)
        and n.gpus >= asked.gpus_per_node
        and (not asked.gpu_type or n.gpu_type == asked.gpu_type)
        and {"": True, "fast": "fast" in n.features, "fast&rack1": {"fast", "rack1"} <= {*n.features},
             "fast|rack1": bool({"fast", "rack1"} & {*n.features})}[asked.constraint]
    ]  # fmt: skip
    most = asked.nodes_max or len(fitting)
    counts = [n for n in range(max(1, asked.nodes_min), most + 1) if n <= len(fitting)]
    return any(_together(fitting, n, asked) for n in counts)


def _together(fitting: list[Node], count: int, asked: Request) -> bool:
    """Some `count` of these nodes have room for all tasks and all GPUs: tried out, the fewest of each kind suffice."""
    options = {(0, 0, 0)}
    for n in fitting:
        grown = {(k + 1, t + n.cpus // asked.cpus_per_task, g + n.gpus) for k, t, g in options if k < count}
        options |= {(k, min(t, asked.ntasks), min(g, asked.gpus)) for k, t, g in grown}
    return any(k == count and t >= asked.ntasks and g >= asked.gpus for k, t, g in options)


TWO = Request(2, 2, partition="llm")


@settings(max_examples=400)
@given(
    st.lists(KINDS, min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=2, max_size=10), REQUESTS,
    st.integers(0, 1023), st.booleans(),
)  # fmt: skip
@example([(4, 1000.0, (0, ""), (), ("llm",)), (8, 1000.0, (0, ""), (), ("llm",))], [0, 0, 1], TWO, 4, False)
def test_what_is_taken_without_ours_is_taken_with_them(kinds, places, asked, chosen, trusted):
    there = nodes_of([kinds[place % len(kinds)] for place in places]).values()
    nodes = [node for node in there if {*asked.partition.split(",")}.intersection(node.partitions)]
    ours = {n.name for i, n in enumerate(nodes) if chosen >> i & 1}
    need = feasibility.need_per_node(asked, max(1, asked.nodes_min)) if trusted else None
    found = safe_excludes.kinds_of(nodes, asked, asked.partition.split(","), need)
    left = safe_excludes.sure(nodes, found, ours, safe_excludes.most_nodes(asked, found))
    assert left <= ours
    assert not takes(nodes, asked) or takes([n for n in nodes if n.name not in left], asked)


SMALL, LARGE = (8, 1000.0, (4, "a"), (), ("llm",)), (16, 2000.0, (4, "a"), (), ("llm",))
OTHER = (16, 2000.0, (4, "b"), (), ("llm",))


@pytest.mark.parametrize(
    ("kinds", "ours", "count", "left"),
    [
        ([SMALL] * 4, "0 1", 2, "0 1"), ([SMALL] * 4, "0 1", 3, ""), ([SMALL] * 4, "0 1 2 3", 1, ""),
        ([SMALL, SMALL, LARGE, LARGE], "0 1", 2, "0 1"), ([SMALL, SMALL, LARGE, LARGE], "2 3", 2, ""),
        ([SMALL, SMALL, LARGE, LARGE], "0 2 3", 1, "0"), ([SMALL, SMALL, OTHER, OTHER], "0 1", 2, ""),
        ([SMALL, SMALL, OTHER, OTHER], "0 2", 1, "0 2"),
    ],
)  # fmt: skip
def test_a_kind_that_loses_nodes_keeps_enough_or_is_stood_for(kinds, ours, count, left):
    nodes = list(nodes_of(kinds).values())
    names = {f"n{i}" for i in ours.split()}
    found = safe_excludes.kinds_of(nodes, Request(count, count, gpu_type="a" if OTHER in kinds else ""), ["llm"])
    assert safe_excludes.sure(nodes, found, names, count) == {f"n{i}" for i in left.split()}
    alike = found if LARGE in kinds else []
    if alike and ours == "0 1":
        assert not safe_excludes.sure(nodes, found, names, count, exact=True)


def test_nodes_that_are_down_stand_for_none():
    nodes = [n._replace(state="DOWN") if n.name == "n1" else n for n in nodes_of([SMALL] * 3).values()]
    assert not safe_excludes.sure(nodes, safe_excludes.kinds_of(nodes, Request(2, 2), ["llm"]), {"n0"}, 2)


def mixed(large: int = 8) -> dict[str, Node]:
    """gpu01 … of 512 GB, and the last of them with twice that."""
    from tests.unit.test_decide import NAMES, node

    return {name: node(name, mem=1_024_000.0 if i >= 16 - large else 512_000.0) for i, name in enumerate(NAMES)}


@pytest.mark.parametrize(
    ("asked", "more", "actions"),
    [
        (Request(4, 4), {}, {"steer"}),  # of more memory it has no use
        (Request(4, 4, mem_node=200_000.0), {}, {"steer"}),
        (Request(4, 4, mem_node=300_000.0), {}, {"steer", "pass"}),  # the larger stand for the others, not the other way round
        (Request(ntasks=128), {}, {"steer"}),
        (Request(ntasks=128, mem_cpu=9000.0), {}, {"steer", "pass"}),
        (Request(4, 4, inner=("hint",)), {"mode": "avoid", "bad": ("gpu03",)}, {"avoid"}),
        (Request(8, 8, mem_node=300_000.0), {"mode": "avoid", "bad": ("gpu12",)}, {"pass"}),
        (Request(comment=mark.text(mark.Mark(demand=1.0e6)), mem_node=1000.0), {}, {"steer"}),
    ],
)
def test_a_partition_of_several_kinds(asked, more, actions):
    assert {decide.decide(case(asked, nodes=mixed(), seed=seed, **more)).action for seed in range(30)} == actions


def test_a_total_demand_sets_a_count_only_where_the_partitions_limit_is_known():
    told = directives.parse(b"#!/bin/sh\n#WORKHORSE demand=1500G\n")
    known = decide.decide(case(Request(), directives=told, mode="avoid"))
    assert known.nodes > 1
    assert decide.decide(case(Request(), directives=told, mode="avoid", live=False)).nodes == 0
    limits = {"llm": {**PARTITIONS["llm"], "max_nodes": 2}}
    assert decide.decide(case(Request(), directives=told, mode="avoid", live_fields={"partitions": limits})).nodes == 0
