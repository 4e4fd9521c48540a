"""Which nodes a job may use: the decision as a pure function of request, scores and live state."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.common.config import Settings
from slurm_hook.common.errors import RequestError
from slurm_hook.decision import decide, directives, sizing
from slurm_hook.published import decision_log, mark
from slurm_hook.published.snapshot import Live, NodeScore, Reservation, Scores
from slurm_hook.slurm.cluster import Node
from slurm_hook.slurm.request import Request
from slurm_hook.submit import wrapper

NOW = 1_800_000_000.0
NAMES = [f"gpu{i:02d}" for i in range(1, 17)]
PARTITIONS = {
    "llm": {"nodes": "", "default": True, "max_time": None, "state": "UP"},
    "small": {"nodes": "", "default": False, "max_time": 60, "state": "UP"},
}


def node(name: str, **more) -> Node:
    place = NAMES.index(name) if name in NAMES else 0
    fields = {"state": "IDLE", "cpus": 32, "mem": 512_000.0, "gpus": 8, "features": ("a100", f"rack{place // 8}")}
    return Node(name=name, **{**fields, "partitions": ("llm", "small") if place >= 12 else ("llm",), **more})


def case(request: Request | tuple = Request(nodes_min=4, nodes_max=4), *, bad=(), nodes=None, live=True, **more) -> decide.Case:
    scores = {
        name: NodeScore(
            name, capability=0.05 if name in bad else 1.0, relative=0.05 if name in bad else 1.0, lemon=name in bad,
            gpus=8, cpus=32, mem=512_000, partitions=("llm",), switch=f"leaf{NAMES.index(name) // 4}",
        )
        for name in NAMES
    }  # fmt: skip
    scores.update(more.pop("scores", {}))
    settings = Settings().replace(steer__mode=more.pop("mode", "steer"), **more.pop("settings", {}))
    found = Scores(
        "s1", "c", NOW - more.pop("age", 60), NOW - 60, more.pop("method", "published"), settings.hook_mapping(), scores
    )
    heard = Live("c", NOW - 20, partitions=PARTITIONS)._replace(**more.pop("live_fields", {})) if live else None
    return decide.Case(
        requests=request if isinstance(request, tuple) and not isinstance(request, Request) else (request,),
        directives=more.pop("directives", directives.Directives()), scores=found, settings=settings,
        nodes=nodes if nodes is not None else {name: node(name) for name in NAMES}, live=heard, now=NOW, seed=more.pop("seed", 7),
    )  # fmt: skip


def four(**more) -> Request:
    return Request(nodes_min=4, nodes_max=4)._replace(**more)


def test_a_pool_is_what_the_excludes_leave():
    made = decide.decide(case(bad=("gpu03",)))
    assert made.action == "steer" and len(made.pool) == 4 and "gpu03" not in made.pool
    assert set(made.excludes) == set(NAMES) - set(made.pool)
    assert made.nodes == 0
    assert abs(sum(c.probability for c in made.candidates) - 1) < 1e-9


def test_the_same_seed_draws_the_same_pool_and_others_spread():
    assert decide.decide(case(seed=5)).pool == decide.decide(case(seed=5)).pool
    assert len({decide.decide(case(seed=seed)).pool for seed in range(40)}) > 3


@pytest.mark.parametrize(
    ("quantiles", "method", "kept_out"),
    [((), "attributed", True), ((1e6, 2e6), "attributed", False), ((1e6, 2e6), "published", True)],
)
def test_a_lemon_is_a_candidate_of_cheap_jobs_only(quantiles, method, kept_out):
    """Were it left out for all, it would be idle, and all that is left when a large job comes."""
    made = case(bad=("gpu03",), method=method)
    made = made._replace(scores=made.scores._replace(cost_quantiles=quantiles))
    pools = [decide.decide(made._replace(seed=seed)) for seed in range(60)]
    assert {d.action for d in pools} == {"steer"}
    assert any("gpu03" in d.pool for d in pools) is not kept_out


@pytest.mark.parametrize("lemon", [False, True])
def test_a_suspect_is_left_out_even_for_cheap_jobs(lemon):
    suspect = NodeScore("gpu03", capability=1.0, relative=1.0, suspect_until=NOW + 60, lemon=lemon)
    made = case(scores={"gpu03": suspect}, method="attributed")
    made = made._replace(scores=made.scores._replace(cost_quantiles=(1e6, 2e6)))
    assert not any("gpu03" in decide.decide(made._replace(seed=seed)).pool for seed in range(60))


def _doubtful(names):
    return {name: NodeScore(name, capability=0.3, relative=0.3) for name in names}


@pytest.mark.parametrize(
    ("doubtful", "quantiles", "kept_out"),
    [
        (NAMES[:8], (), True),  # worth good nodes, and enough others are there
        (NAMES[:8], (1e6, 2e6), False),  # cheap against the site's jobs: any node will do
        (NAMES[:-3], (), False),  # only three others: no job waits for better nodes
    ],
)
def test_doubtful_nodes_drop_out_for_costly_jobs(doubtful, quantiles, kept_out):
    drawn = set()
    for seed in range(80):
        made = case(scores=_doubtful(doubtful), method="attributed", seed=seed)
        made = made._replace(scores=made.scores._replace(cost_quantiles=quantiles))
        drawn |= set(decide.decide(made).pool)
    assert drawn.isdisjoint(doubtful) == kept_out


@pytest.mark.parametrize("method", ["published", "attributed"])
def test_better_nodes_are_drawn_more_often(method):
    low = -1.0 if method == "published" else 0.3
    weak = {name: NodeScore(name, capability=low, relative=0.6) for name in NAMES[:8]}
    one = Request(nodes_min=1, nodes_max=1)
    drawn = [n for seed in range(60) for n in decide.decide(case(one, scores=weak, method=method, seed=seed)).pool]
    assert sum(name in weak for name in drawn) < len(drawn) * (0.42 if method == "published" else 0.2)


def test_nodes_for_which_a_job_of_another_partition_waits_are_in_no_pool():
    """Slurm keeps them for it: gpu13 to gpu16 are in both partitions."""
    waits = {"live_fields": {"queue_head": {"small": 4000}}}
    pools = [decide.decide(case(four(), seed=seed, **waits)).pool for seed in range(20)]
    assert {len(pool) for pool in pools} == {4} and not {name for pool in pools for name in pool} & set(NAMES[12:])
    shared = {name: node(name) for name in NAMES[10:]}
    assert decide.decide(case(four(), nodes=shared)).action == "steer"
    assert decide.decide(case(four(), nodes=shared, **waits)).action != "steer"
    waits["live_fields"]["partitions"] = {**PARTITIONS, "llm": {**PARTITIONS["llm"], "tier": 2}}  # others never come first then
    assert decide.decide(case(four(), nodes=shared, **waits)).action == "steer"


def _eight(**parts: tuple[str, ...]) -> dict[str, Node]:
    """gpu01 … gpu08, in partition llm or those named."""
    return {name: node(name, partitions=parts.get(name, ("llm",))) for name in NAMES[:8]}


@pytest.mark.parametrize(
    ("request_", "more"),
    [
        # of each partition alone the job needs all nodes
        (four(partition="a,b"), {"nodes": _eight(**{n: ("a",) for n in NAMES[:4]}, **{n: ("b",) for n in NAMES[4:8]})}),
        # its partition isn't known: any may be the default one
        (four(), {"live": False, "nodes": _eight(**{n: ("a",) for n in NAMES[:4]}, **{n: ("b",) for n in NAMES[4:8]})}),
        # components of one job need the same nodes at the same time
        ((four(), four()), {"nodes": _eight()}),
        # nodes of the other shape may not do, whatever the reason
        (four(inner=("hint",)), {"nodes": {n: node(n, cpus=64 if n <= "gpu04" else 32) for n in NAMES[:8]}}),
        # four nodes of a shape could start it now, a fifth is busy
        (four(), {"nodes": {
            n: node(n, cpus=64 if n <= "gpu05" else 32, **({"state": "ALLOCATED"} if n == "gpu05" else {})) for n in NAMES[:9]
        }}),
        (four(odd=("contiguous",)), {"nodes": _eight()}),
    ],
)  # fmt: skip
def test_what_a_job_cannot_spare_stays(request_, more):
    """gpu02 is bad, and without it the job could never start, or not now."""
    flat = {name: NodeScore(name, capability=1.0, relative=1.0, lemon=name == "gpu02") for name in NAMES}
    made = decide.decide(case(request_, mode="avoid", scores=flat, **more))
    assert made.action == "pass" and not made.excludes


def test_one_partition_of_several_may_spare_a_node_that_the_others_do_not_have():
    flat = {name: NodeScore(name, capability=1.0, relative=1.0, lemon=name == "gpu02") for name in NAMES}
    there = _eight(**{n: ("a",) for n in NAMES[:5]}, **{n: ("b",) for n in NAMES[5:8]})  # b never held four
    assert decide.decide(case(four(partition="a,b"), mode="avoid", scores=flat, nodes=there)).excludes == ("gpu02",)


def test_no_pool_over_more_switches_than_asked_for():
    there = {name: node(name) for name in ("gpu01", "gpu02", "gpu05", "gpu06")}
    assert decide.decide(case(four(switches=2), nodes=there)).action == "steer"
    made = decide.decide(case(four(switches=1), nodes=there))
    assert "switches" in made.reason and made.fallback == "nodes"


@pytest.mark.parametrize(
    ("request_", "more", "reason", "fallback"),
    [
        (four(array="0-3"), {}, "array", "job"),
        (four(inner=("licenses",)), {}, "asks for licenses", "job"),
        (four(partition="llm,small"), {}, "several partitions", "partition"),
        (four(begin="2027-01-01T00:00:00"), {}, "begin", "job"),
        (four(dependency="afterok:1"), {}, "dependency", "job"),
        (four(wait=True), {}, "wait", "job"),
        (four(comment="mine"), {}, "comment of its own", "comment"),
        (four(exclude=tuple(f"other{i}" for i in range(1, 500, 2))), {}, "too many for a mark", "comment"),
        (four(), {"live": False}, "dispatch", "dispatch"),
        (four(), {"live_fields": {"created": NOW - 181}}, "dispatch", "dispatch"),
        (four(), {"live_fields": {"topology": "block"}}, "block", "partition"),
        (four(), {"live_fields": {"queue_head": {"llm": 4000}}}, "waits", "waiting"),
        (four(), {"live_fields": {"partitions": {"llm": {**PARTITIONS["llm"], "state": "DOWN"}}}}, "partition", "partition"),
        (four(), {"mode": "avoid"}, "mode avoid", ""),
        ((four(), four()), {}, "heterogeneous", "job"),
    ],
)
def test_what_may_at_most_avoid(request_, more, reason, fallback):
    made = decide.decide(case(request_, bad=("gpu03", "gpu09"), **more))
    assert made.action == "avoid" and reason in made.reason
    assert made.fallback == fallback and json.loads(decision_log.line(made)).get("fallback", "") == fallback
    assert not fallback or fallback in decision_log.FALLBACKS
    assert made.excludes == ("gpu03",)  # 2 % of 16 nodes, at least one


@pytest.mark.parametrize(("many", "marked"), [(1, True), (90, True), (300, False), (5000, False)])
def test_a_mark_never_makes_a_comment_that_slurm_refuses(many, marked):
    """Slurm takes 1024 bytes; the user's own excludes are in the mark."""
    made = case(four(exclude=tuple(f"other{i:05d}" for i in range(1, 2 * many, 2))), bad=("gpu03",))
    words = wrapper.arguments(made, decide.decide(made))
    comments = [word for word in words if word.startswith("--comment=")]
    assert [len(word) < 1024 for word in comments] == [True] * marked
    assert any(word.startswith("--exclude=") and "other00001" in word.replace("[", "") for word in words)


def test_a_list_of_nodes_that_no_argument_holds_is_not_added():
    made = case(four(exclude=tuple(f"other{i:07d}" for i in range(1, 40_000, 2))), bad=("gpu03",))
    with pytest.raises(RequestError, match="longer than an argument"):
        wrapper.arguments(made, decide.decide(made))


@pytest.mark.parametrize(
    ("request_", "more", "reason"),
    [
        (four(nodelist="gpu01"), {}, "named the nodes"),
        (four(clusters="other"), {}, "cluster"),
        (four(reservation="r"), {}, "reservation"),
        (four(odd=("spread-job",)), {}, "spread-job"),
        (four(constraint="[rack0|rack1]"), {}, "constraint"),
        (four(constraint="gpu*4"), {}, "constraint"),
        (four(comment="wh=1;m=avoid"), {}, "already decided"),
        (Request(nodes_min=17, nodes_max=17), {}, "16 nodes could hold this, 17"),
        (four(mem_node=600_000.0), {}, "0 nodes"),
        (four(), {"age": 80 * 3600}, "h old"),
        (four(), {"directives": directives.parse(b"#!/bin/sh\n#WORKHORSE steer=off\n")}, "steer=off"),
        ((four(exclude=("gpu01",)), four()), {}, "excludes of their own"),
    ],
)
def test_what_is_left_alone(request_, more, reason):
    made = decide.decide(case(request_, bad=("gpu03",), **more))
    assert made.action == "pass" and reason in made.reason and not made.excludes


@pytest.mark.parametrize(
    ("change", "usable"),
    [
        ({"state": "DOWN"}, False), ({"flags": frozenset({"DRAIN"})}, False), ({"flags": frozenset({"NOT_RESPONDING"})}, False),
        ({"state": "ALLOCATED"}, False), ({"flags": frozenset({"PLANNED"})}, False), ({"flags": frozenset({"RESERVED"})}, False),
        ({"flags": frozenset({"MAINTENANCE"})}, False), ({"flags": frozenset({"POWERED_DOWN"})}, False),
        ({"flags": frozenset({"COMPLETING"})}, False), ({"flags": frozenset({"CLOUD"})}, True),
        ({"state": "MIXED", "cpus_used": 31}, True), ({"state": "MIXED", "cpus_used": 32}, False),
        ({"partitions": ("other",)}, False),
    ],
)  # fmt: skip
def test_pools_come_from_nodes_that_can_start_now(change, usable):
    nodes = {name: node(name, **(change if name == "gpu01" else {})) for name in NAMES}
    taken = {n for seed in range(60) for n in decide.decide(case(Request(nodes_min=3, nodes_max=3), nodes=nodes, seed=seed)).pool}
    assert ("gpu01" in taken) == usable
    assert len(taken) >= 12


@pytest.mark.parametrize(
    ("request_", "free"),
    [
        (four(mem_node=200_000.0), {"mem_used": 400_000.0}),
        (four(gpus_per_node=4), {"gpus_used": 5}),
        (four(cpus_per_task=20), {"cpus_used": 13}),
        (four(exclusive="exclusive"), {"cpus_used": 1}),
        (four(mem_node=0.0), {"cpus_used": 1}),
    ],
)
def test_free_memory_cpus_and_gpus_count(request_, free):
    full = {name: node(name, state="MIXED", **free) for name in NAMES[:8]}
    for seed in range(20):
        made = decide.decide(case(request_, nodes={**{n: node(n) for n in NAMES}, **full}, seed=seed))
        assert made.action == "steer" and not set(made.pool) & set(full)


def test_reservations_that_the_job_could_meet_are_kept_clear():
    soon = Reservation("r", NOW + 1800, NOW + 7200, tuple(NAMES[:8]))
    short = decide.decide(case(four(minutes=20.0), live_fields={"reservations": (soon,)}, seed=3))
    assert short.action == "steer"
    for seed in range(20):
        long = decide.decide(case(four(minutes=60.0), live_fields={"reservations": (soon,)}, seed=seed))
        assert not set(long.pool) & set(NAMES[:8])
        unlimited = decide.decide(case(four(), live_fields={"reservations": (soon,)}, seed=seed))
        assert not set(unlimited.pool) & set(NAMES[:8])
    past = Reservation("r", NOW - 7200, NOW - 60, tuple(NAMES))
    assert decide.decide(case(four(), live_fields={"reservations": (past,)})).action == "steer"


def test_pools_given_a_moment_ago_count_as_taken():
    for seed in range(20):
        made = decide.decide(case(live_fields={"pools": ((NOW - 5, "gpu[01-08]"), (NOW - 500, "gpu[09-16]"))}, seed=seed))
        assert not set(made.pool) & set(NAMES[:8]) and made.action == "steer"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 16])
def test_the_fewest_leaf_switches(count):
    for seed in range(10):
        made = decide.decide(case(Request(nodes_min=count, nodes_max=count), seed=seed))
        assert len({NAMES.index(n) // 4 for n in made.pool}) == -(-count // 4)


def test_an_exclude_that_costs_a_switch_is_dropped():
    small = {name: node(name) for name in NAMES[:4]}
    made = decide.decide(case(four(array="1-2"), bad=("gpu02",), nodes={**small, "gpu05": node("gpu05")}))
    assert made.action == "pass" and "no node to avoid" in made.reason


def test_an_exclude_that_costs_the_start_now_is_dropped():
    busy = {name: node(name, state="ALLOCATED") for name in NAMES[4:]}
    made = decide.decide(case(four(array="1-2"), bad=("gpu02",), nodes={**{n: node(n) for n in NAMES}, **busy}))
    assert "gpu02" not in made.excludes


@pytest.mark.parametrize(
    ("request_", "size"),
    [
        (Request(nodes_min=2, nodes_max=4), 4),
        (Request(nodes_min=2, nodes_max=8, nodes_sizes=(2, 4, 6, 8)), 8),
        (Request(nodes_min=2, nodes_max=40, nodes_sizes=(2, 7, 40)), 7),
        (Request(ntasks=64), 2),
        (Request(ntasks=33), 2),
        (Request(ntasks=16, cpus_per_task=8), 4),
        (Request(ntasks=12, ntasks_per_node=4), 3),
        (Request(gpus=24), 3),
        (Request(gpus_per_task=1, ntasks=17), 3),
    ],
)
def test_pool_sizes_from_ranges_tasks_and_gpus(request_, size):
    assert len(decide.decide(case(request_)).pool) == size


@pytest.mark.parametrize("mode", ["steer", "avoid"])
def test_a_total_demand_never_asks_for_more_nodes_than_the_partition_gives(mode):
    """Such a job would wait for ever."""
    told = directives.parse(b"#!/bin/sh\n#WORKHORSE demand=1500G\n")
    counts = []
    for most in (2, 3):
        limits = {"llm": {**PARTITIONS["llm"], "max_nodes": most}}
        made = decide.decide(case(Request(), directives=told, mode=mode, live_fields={"partitions": limits}))
        counts.append((made.nodes, "demand" in made.reason))
    assert counts == [(0, True), (3, False)]


def test_total_demand_draws_until_it_is_exceeded_and_sets_the_count():
    told = directives.parse(b"#!/bin/sh\n#WORKHORSE demand=1500G\n")
    made = decide.decide(case(Request(), directives=told, settings={"scoring__capacity_resource": "mem"}))
    assert made.action == "steer" and made.nodes == len(made.pool) == 4  # 512000 MiB each, 1536000 MiB are not exceeded by 3
    by_mark = Request(comment=mark.text(mark.Mark(demand=600_000.0)))
    asked = decide.decide(case(by_mark, settings={"scoring__capacity_resource": "mem"}))
    assert asked.nodes == 2
    given_count = decide.decide(case(four(), directives=told))
    assert given_count.nodes == 0 and len(given_count.pool) == 4


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({"dependency": "afterok:1"}, 4), ({"array": "0-3"}, 4), ({"begin": "2027-01-01T00:00:00"}, 4), ({}, 4),
        ({"exclude": tuple(NAMES[:14])}, 0),  # the two that are left don't have it
        ({"exclude": tuple(NAMES[:8])}, 4),
        ({"nodes_min": 2, "nodes_max": 2, "dependency": "afterok:1"}, 0),  # the user's own count stays
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["avoid", "steer"])
def test_a_total_demand_sets_the_count_also_where_nothing_can_start_now(more, count, mode):
    """From what the nodes have in all: what is free now is no matter to a stage that waits."""
    told = directives.parse(b"#!/bin/sh\n#WORKHORSE demand=1500G\n")
    busy = {name: node(name, state="ALLOCATED", mem_used=512_000.0, gpus_used=8, cpus_used=32) for name in NAMES}
    made = decide.decide(
        case(
            Request(**more),
            directives=told,
            nodes=busy,
            mode=mode,
            bad=("gpu09",),
            settings={"scoring__capacity_resource": "mem"},
        )
    )
    assert made.nodes == count
    if count:
        assert (made.action, made.excludes) == ("avoid", ("gpu09",))
    elif not more.get("nodes_min"):
        assert made.action == "pass" and "more than the 2 nodes" in made.reason


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.floats(1, 5e6))
def test_whichever_nodes_slurm_chooses_they_exceed_the_demand(capacities, demand):
    count = sizing.nodes_for(demand, capacities)
    smallest = sorted(capacities)
    if count:
        assert sum(smallest[:count]) > demand >= sum(smallest[: count - 1])
    else:
        assert sum(smallest) <= demand


def test_excludes_never_name_a_node_that_slurm_does_not_know():
    nodes = {name: node(name) for name in NAMES[:6]}
    made = decide.decide(case(Request(nodes_min=2, nodes_max=2), nodes=nodes, bad=("gpu03", "gpu12")))
    assert set(made.excludes) <= set(nodes)
    avoided = decide.decide(case(Request(nodes_min=2, nodes_max=2), nodes=nodes, bad=("gpu12",), mode="avoid"))
    assert avoided.action == "pass"


@given(
    st.integers(1, 16), st.lists(st.sampled_from(NAMES), unique=True), st.lists(st.sampled_from(NAMES), unique=True),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["DOWN", "ALLOCATED", "IDLE"])), st.sampled_from(["avoid", "steer"]),
)  # fmt: skip
def test_whatever_the_cluster_looks_like(count, bad, own, states, mode):
    """A decision leaves enough nodes, never takes the user's excludes back, and confines only to what is free."""
    nodes = {name: node(name, state=states.get(name, "IDLE")) for name in NAMES}
    made = decide.decide(case(Request(nodes_min=count, nodes_max=count, exclude=tuple(own)), bad=bad, nodes=nodes, mode=mode))
    left = {n for n in NAMES if nodes[n].usable} - set(own) - set(made.excludes)
    assert made.action == "pass" or len(left) >= count
    assert not set(made.excludes) & set(own)
    if made.action == "steer":
        assert left == set(made.pool) and all(nodes[n].idle for n in made.pool) and not set(made.pool) & (set(bad) | set(own))
    free = {n for n in NAMES if nodes[n].idle} - set(own)
    if made.action == "avoid" and len(free) >= count:
        assert len(free - set(made.excludes)) >= count
