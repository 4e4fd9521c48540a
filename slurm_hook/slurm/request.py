"""What sbatch was asked for, per heterogeneous component, from its own print-out of its options.

`sbatch -v --test-only ARGS` prints one block of options for each component before it contacts slurmctld, with script,
environment and command line already merged. The same keys and spellings come from `slurm.json_cli_options` in a
cli_filter, so one `Request` serves both. Memory is MiB, times are minutes, counts are numbers.
"""

from __future__ import annotations

from ..common import hostlist
from ..common.errors import HostlistError, RequestError
from ..common.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_MEMORY = 1e15  # MiB; a mark holds no more
PREFIX = "sbatch: "
OPENING = "sbatch: defined options"
RULE = "sbatch: -------------------- --------------------"
CLOSING = "sbatch: end of defined options"
UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


class Request(Record):
    """One component as sbatch understood it. None, 0 and "" stand for what the user did not say.

    nodes_min, nodes_max: 0 where no node count was given; nodes_sizes: the only counts allowed, where they were given
    as a list or with a step; gpus: in all; gpus_per_node, gpus_per_task, gpus_per_socket: as named; gpu_type: "" any;
    inner: options that make a start now depend on what placement can't weigh;
    mem_node: MiB per node, 0.0 for all of its memory (`--mem=0`), None where not given.
    """

    nodes_min: int = 0
    nodes_max: int = 0
    nodes_sizes: tuple[int, ...] = ()
    ntasks: int = 0
    ntasks_per_node: int = 0
    ntasks_per_gpu: int = 0
    cpus_per_task: int = 1
    mincpus: int = 0
    mem_node: float | None = None
    mem_cpu: float | None = None
    mem_gpu: float | None = None
    gpus: int = 0
    gpus_per_node: int = 0
    gpus_per_task: int = 0
    gpus_per_socket: int = 0
    cpus_per_gpu: int = 0
    gpu_type: str = ""
    exclusive: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    name: str = ""
    comment: str = ""
    constraint: str = ""
    nodelist: str = ""
    exclude: tuple[str, ...] = ()
    array: str = ""
    reservation: str = ""
    switches: int = 0
    minutes: float | None = None
    clusters: str = ""
    wait: bool = False
    begin: str = ""
    dependency: str = ""
    odd: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()

    @property
    def nodes_given(self) -> bool:
        """The user said how many nodes."""
        return self.nodes_min > 0

    def allows(self, count: int) -> bool:
        """The user's node count permits this many nodes (anything where none was given)."""
        if not self.nodes_given:
            return True
        if self.nodes_sizes:
            return count in self.nodes_sizes
        return self.nodes_min <= count <= self.nodes_max


def parse_blocks(text: str) -> list[dict[str, str]]:
    """Options of each complete block, in order. Raises RequestError for a block that isn't unambiguous.

    Values can hold raw line breaks (a job name, say), so a line that looks like an option only counts in sbatch's own
    order: keys are printed sorted, each once.
    """
    blocks: list[dict[str, str]] = []
    lines = text.split("\n")
    i = 0
    while i < len(lines):
        if lines[i] == OPENING and i + 1 < len(lines) and lines[i + 1] == RULE:
            end = _block_end(lines, i + 2)
            if end is None:
                break
            blocks.append(_parse_block(lines[i + 2 : end]))
            i = end + 2
        else:
            i += 1
    return blocks


def complete_blocks(text: str) -> int:
    """How many complete blocks the text holds so far."""
    return text.count(f"\n{RULE}\n{CLOSING}\n")


def _block_end(lines: list[str], start: int) -> int | None:
    for i in range(start, len(lines) - 1):
        if lines[i] == RULE and lines[i + 1] == CLOSING:
            return i
    return None


def _parse_block(lines: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    last = ""
    for line in lines:
        key = line[len(PREFIX) : len(PREFIX) + 20].rstrip(" ") if line.startswith(PREFIX) else ""
        if key and line[len(PREFIX) + max(20, len(key)) :][:2] == ": " and _is_key(key):
            if key <= last:
                raise RequestError(f"sbatch printed the option {key!r} twice or out of order; a value holds a line break")
            options[key] = line[len(PREFIX) + max(20, len(key)) + 2 :]
            last = key
        elif last:
            options[last] += "\n" + line
        else:
            raise RequestError("sbatch printed an option block that doesn't begin with an option")
    return options


def _is_key(key: str) -> bool:
    return key.replace("-", "").isalpha() and key.isascii()


def request_from(options: Mapping[str, str]) -> Request:
    """A Request from one block's options. Raises RequestError for a value that can't be understood.

    Options that placement can't take into account are named in `odd`: such a job is left alone.
    """
    get = options.get
    low, high, sizes = parse_nodes(get("nodes", ""))
    gres_gpus, gres_type = parse_gres(get("gres", ""))
    counts = {key: parse_gpus(get(key, "")) for key in ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")}
    types = {kind for _, kind in counts.values() if kind} | ({gres_type} if gres_type else set())
    if len(types) > 1:
        raise RequestError(f"several GPU types are asked for ({', '.join(sorted(types))})")
    return Request(
        nodes_min=low, nodes_max=high, nodes_sizes=sizes,
        ntasks=_count(options, "ntasks", 0), ntasks_per_node=_count(options, "ntasks-per-node", 0),
        ntasks_per_gpu=_count(options, "ntasks-per-gpu", 0), cpus_per_task=_count(options, "cpus-per-task", 1),
        mincpus=_count(options, "mincpus", 0),
        mem_node=_memory(options, "mem"), mem_cpu=_memory(options, "mem-per-cpu"), mem_gpu=_memory(options, "mem-per-gpu"),
        gpus=counts["gpus"][0], gpus_per_node=max(counts["gpus-per-node"][0], gres_gpus),
        cpus_per_gpu=_count(options, "cpus-per-gpu", 0), inner=_among(options, _INNER),
        gpus_per_task=counts["gpus-per-task"][0], gpus_per_socket=counts["gpus-per-socket"][0],
        gpu_type=next(iter(types), ""),
        exclusive=_word(options, "exclusive"), partition=get("partition", ""), account=get("account", ""), qos=get("qos", ""),
        name=get("job-name", ""), comment=get("comment", ""), constraint=get("constraint", ""),
        nodelist=get("nodelist", "") or get("nodefile", ""), exclude=_names(get("exclude", "")), array=get("array", ""),
        reservation=get("reservation", ""), switches=_switches(get("switches", "")), minutes=parse_minutes(get("time", "")),
        clusters=get("clusters", "") or get("cluster", ""), wait="wait" in options, begin=get("begin", ""),
        dependency=get("dependency", ""), odd=_among(options, _UNMODELLED),
    )  # fmt: skip


# what changes the choice of nodes in ways that placement doesn't model
_UNMODELLED = (
    "burst-buffer", "bb", "bbf", "cluster-constraint", "extra", "uid", "gid", "spread-job", "tres-per-task", "mcs-label",
    "sockets-per-node", "extra-node-info", "overcommit", "core-spec", "thread-spec", "segment", "stepmgr", "no-kill", "prefer",
    "power", "oversubscribe", "immediate", "use-min-nodes", "resv-ports", "consolidate-segments", "spread-segments",
    "contiguous", "tmp", "cores-per-socket",
)  # fmt: skip


# what there must be besides, so that nobody can tell whether the job could start right now
_INNER = (
    "hint", "threads-per-core", "ntasks-per-core", "ntasks-per-socket", "gres-flags", "gpus-per-socket", "licenses",
)  # fmt: skip


def _among(options: Mapping[str, str], keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(key for key in keys if options.get(key, "") not in ("", "unset"))


def parse_nodes(text: str) -> tuple[int, int, tuple[int, ...]]:
    """`4`, `2-4`, `2-8:2` and `1,3,5-9:2` as (least, most, allowed counts or ()); "" gives zeros. Raises RequestError."""
    if not text:
        return 0, 0, ()
    if "," not in text and ":" not in text:
        low, _, high = text.partition("-")
        first = _number(low, "nodes")
        return first, _number(high, "nodes") if high else first, ()
    sizes: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        first = _number(low, "nodes")
        last = _number(high, "nodes") if high else first
        if last - first > hostlist.MAX_HOSTS:
            raise RequestError(f"nodes {text[:40]!r}: over {hostlist.MAX_HOSTS}")
        sizes.update(range(first, last + 1, max(1, _number(step, "nodes") if step else 1)))
    if not sizes:
        raise RequestError(f"nodes {text[:40]!r}: an empty range")
    return min(sizes), max(sizes), tuple(sorted(sizes))


def parse_gpus(text: str) -> tuple[int, str]:
    """`8`, `a100:8` and `a100` as (count, type). Raises RequestError where several types are mixed."""
    if not text:
        return 0, ""
    if "," in text:
        raise RequestError(f"several GPU types are asked for ({text[:60]!r})")
    kind, colon, count = text.rpartition(":")
    if not colon and not text[:1].isdigit():
        return 1, text
    return _number(count, "gpus"), kind


def parse_gres(text: str) -> tuple[int, str]:
    """GPUs per node of a GRES list and their type: `gres:gpu:a100:4,lustre:1` gives (4, "a100"). Raises RequestError."""
    count, kinds = 0, set()
    for item in filter(None, text.split(",")):
        words = item.replace("gres/", "gres:", 1).split(":")
        if words[0] == "gres":
            words = words[1:]
        if not words or words[0] in ("none", "NONE"):
            continue
        if words[0] != "gpu":
            raise RequestError(f"GRES {words[0]!r} is asked for; only gpu is understood")
        n, kind = parse_gpus(":".join(words[1:])) if len(words) > 1 else (1, "")
        count += n
        kinds.add(kind)
    if len(kinds) > 1:
        raise RequestError("several GPU types are asked for")
    return count, next(iter(kinds), "")


def parse_minutes(text: str) -> float | None:
    """sbatch's printed time limit (`1-02:04:00`, `01:00:00`) in minutes; None for UNLIMITED or nothing. Raises RequestError."""
    if not text or text in ("UNLIMITED", "INFINITE", "Partition_Limit", "INVALID"):
        return None
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if len(parts) > 3 or (dash and not days):
        raise RequestError(f"time {text[:40]!r} is not a time limit")
    numbers = [_number(part, "time") for part in parts]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return _number(days, "time") * 1440.0 + hours * 60 + minutes + seconds / 60
    hours, minutes, seconds = [0, 0, *numbers][-3:] if len(numbers) != 1 else (0, numbers[0], 0)
    return hours * 60.0 + minutes + seconds / 60


def parse_memory(text: str, what: str = "mem") -> float:
    """`8G`, `1000`, `0?` in MiB (M where no unit stands). Raises RequestError."""
    body = text.rstrip("?")
    unit = body[-1:].upper() if body[-1:].isalpha() else ""
    number = body[: len(body) - len(unit)]
    if unit not in UNITS or not number.replace(".", "", 1).isdigit() or not number.isascii():
        raise RequestError(f"{what} {text[:40]!r} is not an amount of memory; write it as 64G")
    amount = float(number) * UNITS[unit]
    if amount >= MAX_MEMORY:
        raise RequestError(f"{what} {text[:40]!r} is more than there can be")
    return amount


def _memory(options: Mapping[str, str], key: str) -> float | None:
    text = options.get(key, "")
    return parse_memory(text, key) if text else None


def _count(options: Mapping[str, str], key: str, default: int) -> int:
    text = options.get(key, "")
    return _number(text, key) if text else default


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RequestError(f"{what} {text[:40]!r} is not a count")
    return int(text)


def _word(options: Mapping[str, str], key: str) -> str:
    value = options.get(key, "")
    return "" if value == "unset" else value


def _switches(text: str) -> int:
    return _number(text.partition("@")[0], "switches") if text else 0


def _names(text: str) -> tuple[str, ...]:
    """A list of nodes as Slurm reads it: blanks and tabs part names as commas do, but a line break, or a blank between brackets,
    is part of a name that it refuses."""
    if not text:
        return ()
    try:
        if {*text} & {*"\n\r\v\f"} or any(len(item.split()) > 1 for item in hostlist.split(text)):
            raise RequestError(f"exclude {text[:60]!r}: a blank within a name")
        return tuple(hostlist.expand(text))
    except HostlistError as err:
        raise RequestError(f"exclude: {err}") from None
