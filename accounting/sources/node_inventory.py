"""Inventory of nodes: what each has, as Slurm's configuration says now or as its tasks let infer. Kept with history."""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_hook.common import hostlist
from slurm_hook.common.errors import InputError, UsageError

from . import converters, sacct


class NodeSpec(NamedTuple):
    """What a node has. memory MiB (RealMemory)."""

    name: str
    memory_mib: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    gres: str = ""
    features: str = ""
    partitions: str = ""
    switch: str = ""


_PAIR = re.compile(r"(?:^| )(NodeName|CPUTot|RealMemory|Gres|AvailableFeatures|Partitions)=(\S*)")


def parse_nodes(text: str) -> list[NodeSpec]:
    """`scontrol -o show node` → specs. The first of each key counts: a later one may stand in a free-text reason."""
    specs = []
    for line in text.split("\n"):
        found: dict[str, str] = {}
        for key, value in _PAIR.findall(line):
            found.setdefault(key, "" if value == "(null)" else value)
        if found.get("NodeName"):
            gpus, kind = gpu_count(found.get("Gres", ""))
            specs.append(
                NodeSpec(
                    found["NodeName"], converters.integer(found.get("RealMemory", "")),
                    converters.integer(found.get("CPUTot", "")), gpus, kind, found.get("Gres", ""),
                    found.get("AvailableFeatures", ""), found.get("Partitions", ""),
                )
            )  # fmt: skip
    return specs


def gpu_count(gres: str) -> tuple[int, str | None]:
    """GPUs in a Gres text and the type most of them have: `gpu:a100:4(S:0-1),gpu:2` → 6, "a100"."""
    total, types = 0, dict[str, int]()
    for item in re.split(r",(?![^(]*\))", gres):
        name, *rest = re.sub(r"\(.*\)", "", item).split(":")
        if name != "gpu":
            continue
        count = int(rest[-1]) if rest and rest[-1].isdigit() else 1
        total += count
        if rest and not rest[0].isdigit():
            types[rest[0]] = types.get(rest[0], 0) + count
    return total, max(types, key=lambda t: types[t]) if types else None


def parse_topology(text: str) -> dict[str, str]:
    """`scontrol -o show topology` → leaf switch of each node. Topologies without switches give nothing."""
    switches: dict[str, str] = {}
    for line in text.split("\n"):
        pairs = dict(p.split("=", 1) for p in line.split() if "=" in p)
        if pairs.get("Level") == "0" and pairs.get("Nodes"):
            for name in hostlist.expand(pairs["Nodes"]):
                switches[name] = pairs.get("SwitchName", "")
    return switches


def from_slurm(timeout: float, cluster: str = "") -> list[NodeSpec]:
    """The nodes of the running configuration with their leaf switches. Raises SlurmError."""
    there = [f"--cluster={cluster}"] if cluster else []
    specs = parse_nodes(sacct.run(["scontrol", *there, "--oneliner", "show", "node"], timeout))
    try:
        switches = parse_topology(sacct.run(["scontrol", *there, "--oneliner", "show", "topology"], timeout))
    except (sacct.SlurmError, ValueError):  # no topology plugin: a cluster without switches
        switches = {}
    return [s._replace(switch=switches.get(s.name, "")) for s in specs]


def cluster_name(timeout: float) -> str:
    """ClusterName of the configuration here. Raises SlurmError."""
    text = sacct.run(["scontrol", "show", "config"], timeout)
    match = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
    if not match:
        raise sacct.SlurmError("scontrol show config: no ClusterName; name the cluster with -M")
    return match[1]


def as_slurm_names(cluster: str) -> str:
    """The name of a cluster as accounting has it, which is lower case however it was written: rows, marks and inventory of
    one cluster must not part. Raises UsageError for several clusters."""
    if "," in cluster or cluster.lower() == "all":
        raise UsageError(f"-M {cluster}: one cluster at a time; run once for each")
    return cluster.lower()


def from_file(path: str) -> list[NodeSpec]:
    """Specs from a saved `scontrol -o show node`. Raises InputError."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            specs = parse_nodes(file.read())
    except (OSError, ValueError) as err:
        raise InputError(
            f"{path}: can't be read ({getattr(err, 'strerror', None) or err}); save it with `scontrol -o show node`"
        ) from err
    if not specs:
        raise InputError(f"{path}: no NodeName=… line; save it with `scontrol -o show node`")
    return specs
