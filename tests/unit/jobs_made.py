"""Jobs, nodes and scores for tests of dispatch and queue."""

from slurm_hook.common.config import Settings
from slurm_hook.dispatch.updates import World
from slurm_hook.published import mark
from slurm_hook.published.snapshot import Live, NodeScore, Scores
from slurm_hook.slurm.cluster import Node
from slurm_hook.slurm.jobs import Details, Job

NOW = 1_800_000_000.0


def job(number=1, **changes):
    """A pending, eligible two-node job in partition llm, marked by the wrapper unless `comment` says otherwise."""
    details = Details(eligible=NOW - 600, nodes_max=changes.get("nodes", 2), cpus=8, mem=64000.0, gpus=16)
    plain = {
        "id": number, "label": str(number), "state": "PENDING", "user": "alice", "partition": "llm", "qos": "normal",
        "account": "ml", "priority": 100, "nice": 0, "submit": NOW - 600, "start": 0.0, "end": 0.0, "minutes": 60.0,
        "nodes": 2, "req_nodes": "", "excludes": "", "node_list": "", "dependency": "", "reason": "Resources",
        "reservation": "", "features": "", "sharing": "NO", "comment": mark.text(mark.Mark(mode="avoid")), "name": "train",
        "details": details,
    }  # fmt: skip
    return Job(**{**plain, **changes})


def node(name, state="IDLE", flags=(), partitions=("llm",), **changes):
    busy = state not in ("IDLE", "DOWN")
    plain = {
        "cpus": 32, "cpus_used": 32 if busy else 0, "mem": 512000.0, "mem_used": 512000.0 if busy else 0.0, "gpus": 8,
        "gpus_used": 8 if busy else 0,
    }  # fmt: skip
    return Node(name=name, state=state, flags=frozenset(flags), partitions=tuple(partitions), **{**plain, **changes})


def nodes(count=8, state="IDLE", **special):
    """n1 … nX in `state`; special: name=state of some."""
    names = [f"n{i}" for i in range(1, count + 1)]
    return {name: node(name, special.get(name, state)) for name in names}


def scores(names, lemons=(), **changes):
    made = {}
    for name in names:
        worth = 0.02 if name in lemons else 1.0
        made[name] = NodeScore(name, capability=worth, relative=worth, lemon=name in lemons)
    plain = {
        "id": "s1",
        "cluster": "c",
        "created": NOW - 60,
        "as_of": NOW - 60,
        "method": "attributed",
        "settings": {},
        "nodes": made,
    }
    return Scores(**{**plain, **changes})


def world(found, there=None, lemons=(), mode="steer", **changes):
    """A world of one partition; details of the jobs count for the real clock, so `now` is in their future."""
    there = nodes() if there is None else there
    part = {"nodes": "", "default": True, "max_time": None, "state": "UP"}
    made = World(
        jobs=found, nodes=there, scores=scores(there, lemons), settings=Settings({"steer.mode": mode}),
        live=Live(cluster="c", created=NOW, partitions={"llm": part}, topology=""), now=NOW, period=60.0, seed=lambda: 7,
    )  # fmt: skip
    made = made._replace(**changes)
    return made._replace(live=made.live._replace(created=made.now))
