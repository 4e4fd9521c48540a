"""The published files, which are the contract between the two halves.

`scores.json` is written by the accounting half (`accounting.publishing.publish`) each night and at each collect, `live.json` by
dispatch at each pass. Both are read by the submit path, which trusts them only when they and their folder belong to
root or the service user, can't be written by others, and are regular files of bounded size.

Times are epoch seconds, memory is MiB. Node data only: no user data is ever in these files.
"""

from __future__ import annotations

import posix as os
from _stat import S_ISREG, S_IWGRP, S_IWOTH
from itertools import repeat
from math import isnan

from ..common.errors import SnapshotError
from ..common.record import TYPE_CHECKING, Record, json_loads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

FORMAT = 1
MAX_BYTES = 64 * 1024 * 1024
SCORES_NAME = "scores.json"
LIVE_NAME = "live.json"
AVOID_BELOW = 0.5  # of the cluster's median capability: what mode avoid counts as bad besides lemons and suspects
CLOCKS_DIFFER = 60.0  # seconds, at most, by which hosts' clocks differ

# suspect_until of a node under an open mark `bad` (the year 2100): till the mark ends, which the next collect sees
WHILE_MARKED = 4_102_444_800.0


class NodeScore(Record):
    """What the scorer says of one node, and the static facts that placement needs of it.

    capability: None where the node has none of its own (it takes the median); relative: capability over the cluster's
    median; reliability: heavy hours per node-caused failure; breakdown: P of the method; hazard: failures per heavy
    hour; capacity: MiB of the capacity resource; suspect_until: epoch seconds, 0 if not suspect, WHILE_MARKED.
    """

    name: str
    capability: float | None = None
    relative: float | None = None
    low: float | None = None
    high: float | None = None
    reliability: float | None = None
    breakdown: float | None = None
    hazard: float | None = None
    tasks: int = 0
    lemon: bool = False
    suspect_until: float = 0.0
    capacity: float = 0.0
    mem: int = 0
    cpus: int = 0
    gpus: int = 0
    gpu_type: str = ""
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    switch: str = ""


class Scores(Record):
    """scores.json. `settings` is the hook's part of the settings, flat by key; `cost_quantiles` are the percentiles
    0, 5 … 100 of node-hours (nodes × limit) of the site's recent jobs, for the cost rank."""

    id: str
    cluster: str
    created: float
    as_of: float
    method: str
    settings: Mapping[str, Any]
    nodes: Mapping[str, NodeScore]
    cost_quantiles: tuple[float, ...] = ()

    def age(self, now: float) -> float:
        """Seconds since the scores were made. Ahead of now by more than a clock may be (a minute), they are as old as that."""
        return _age(self.created, now)


class Reservation(Record):
    """A reservation as placement needs it: its nodes are not used by a job that could overlap it."""

    name: str
    start: float
    end: float
    nodes: tuple[str, ...]


class Live(Record):
    """live.json: dispatch's heartbeat and what a submission would else have to ask slurmctld for.

    partitions: name → {"nodes": folded list, "default": bool, "max_time": minutes or None, "state": str}, its "max_nodes" and
    defaults where it has such;
    queue_head: highest priority of a job that gets the next free nodes, by partition; pools: (time, folded list) given
    lately, or waited for by name;
    chains: of jobs that dependencies tied together, by id the id of the first: numbers alone, no user data.
    """

    cluster: str
    created: float
    reservations: tuple[Reservation, ...] = ()
    partitions: Mapping[str, Any] = {}
    topology: str = ""
    queue_head: Mapping[str, Any] = {}
    pools: tuple[tuple[float, str], ...] = ()
    chains: Mapping[str, int] = {}

    def tier(self, partition: str) -> int:
        """Slurm's PriorityTier of a partition."""
        return int(self.partitions.get(partition, {}).get("tier", 1))

    def age(self, now: float) -> float:
        """Seconds since dispatch last wrote; a time to come counts as for the scores."""
        return _age(self.created, now)


def _age(created: float, now: float) -> float:
    """Seconds between both: what was written by a clock that has jumped since must not look fresh until that time comes."""
    return now - created if now >= created else 0.0 if created - now <= CLOCKS_DIFFER else created - now


def scores_to_json(scores: Scores) -> dict[str, Any]:
    """The JSON object of scores.json. Nodes come last, so that the rest can be had without them, and as columns: parsing
    thousands of objects would take each submission longer than its decision.

    A column is a list over the nodes; words and lists of words are {"of": those there are, "at": for each node which one};
    a field that is at its default everywhere is left out.
    """
    data = scores._asdict()
    data["settings"] = dict(scores.settings)
    nodes = [node for _, node in sorted(data.pop("nodes").items())]
    columns = {field: [getattr(node, field) for node in nodes] for field in NodeScore._fields}
    told = {field: _packed(values) for field, values in columns.items() if field == "name" or {*values} - {_DEFAULTS[field]}}
    return {"format": FORMAT, **data, "nodes": told}


def _packed(values: list[Any]) -> Any:
    if not values or not isinstance(values[0], (str, tuple)) or len({*values}) > len(values) // 2:
        return values
    place = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return {"of": list(place), "at": [place[value] for value in values]}


def scores_from_json(data: Any, source: str = SCORES_NAME) -> Scores:
    """Scores from parsed JSON. Raises SnapshotError when it isn't what this version can use."""
    return _without_nodes(data, source)._replace(nodes=_nodes(data, source))


def _nodes(data: Any, source: str) -> dict[str, NodeScore]:
    try:
        return _made(data["nodes"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as err:
        raise _damaged(source, err) from err


def _without_nodes(data: Any, source: str) -> Scores:
    _check_format(data, source)
    try:
        return Scores(
            id=str(data["id"]), cluster=str(data["cluster"]), created=float(data["created"]), as_of=float(data["as_of"]),
            method=str(data["method"]), settings=dict(data["settings"]), nodes={},
            cost_quantiles=tuple(float(x) for x in data.get("cost_quantiles", ())),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise _damaged(source, err) from err


def _damaged(source: str, err: Exception) -> SnapshotError:
    return SnapshotError(f"{source}: damaged ({type(err).__name__}: {err}); write it anew with `workhorse refresh`")


def live_to_json(live: Live) -> dict[str, Any]:
    """The JSON object of live.json."""
    data = live._asdict()
    data["reservations"] = [r._asdict() for r in live.reservations]
    return {"format": FORMAT, **data}


def live_from_json(data: Any, source: str = LIVE_NAME) -> Live:
    """Live from parsed JSON. Raises SnapshotError when it isn't what this version can use."""
    _check_format(data, source)
    try:
        reservations = tuple(
            Reservation(str(r["name"]), float(r["start"]), float(r["end"]), tuple(r["nodes"])) for r in data["reservations"]
        )
        return Live(
            cluster=str(data["cluster"]), created=float(data["created"]), reservations=reservations,
            partitions=dict(data["partitions"]), topology=str(data.get("topology", "")),
            queue_head=dict(data.get("queue_head", {})),
            pools=tuple((float(t), str(n)) for t, n in data.get("pools", ())), chains=dict(data.get("chains", {})),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise SnapshotError(f"{source}: damaged ({type(err).__name__}: {err}); dispatch writes it anew at its next pass") from err


def read_scores(folder: str, *, trusted_uids: Iterable[int] | None = None) -> Scores:
    """scores.json of a folder, after the trust checks. Raises SnapshotError."""
    path = _path(folder, SCORES_NAME)
    return scores_from_json(_parsed(_read(path, trusted_uids), path), path)


def read_scores_later(
    folder: str, *, trusted_uids: Iterable[int] | None = None
) -> tuple[Scores, Callable[[], dict[str, NodeScore]]]:
    """The same without nodes, and what makes these: a submission has better to do first. Both raise SnapshotError."""
    path = _path(folder, SCORES_NAME)
    head, nodes = _split(_read(path, trusted_uids), path)
    return _without_nodes(head, path), lambda: _nodes(_parsed(nodes, path), path)


def _split(text: str, source: str) -> tuple[Any, str]:
    """The object without its nodes, and the text of one with them: thousands take longer to parse than all the rest.

    No string can hold what is looked for, as its quotes would be escaped; files in which the nodes aren't last are taken whole.
    """
    at = text.find(',"nodes":{')
    try:
        head = json_loads(text[:at] + "}") if at >= 0 else None
    except (ValueError, RecursionError):
        head = None
    if isinstance(head, dict) and "cost_quantiles" in head:
        return head, "{" + text[at + 1 :]
    return _parsed(text, source), text


def read_live(folder: str, *, trusted_uids: Iterable[int] | None = None) -> Live:
    """live.json of a folder, after the trust checks. Raises SnapshotError."""
    path = _path(folder, LIVE_NAME)
    return live_from_json(_parsed(_read(path, trusted_uids), path), path)


def write_json(folder: str, name: str, data: Mapping[str, Any], mode: int = 0o644) -> str:
    """Write a published file as JSON, as `write_text` does. Returns its path."""
    import json  # noqa: PLC0415 - writers only; the submit path reads without it

    return write_text(folder, name, json.dumps(data, separators=(",", ":")), mode)


def write_text(folder: str, name: str, text: str, mode: int = 0o644) -> str:
    """Write a published file whole or not at all: temporary file, fsync, rename, fsync of the folder. Returns its path.

    Raises SnapshotError with the reason; the file that was there stays.
    """
    path, temporary = _path(folder, name), _path(folder, f".{name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                hand_over(file.fileno(), folder)
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _fsync_folder(folder)
    except OSError as err:
        raise SnapshotError(f"{path}: can't be written ({err.strerror}); let the service user write in {folder}") from err
    return path


def hand_over(descriptor: int, folder: str) -> None:
    """A file that root has just made goes to the owner of its folder: else a command run once as root would lock the
    service user out of its own files."""
    if os.geteuid() == 0:
        owner = os.stat(folder)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _fsync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _path(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def _read(path: str, trusted_uids: Iterable[int] | None) -> str:
    try:
        # O_NONBLOCK: a FIFO in place of the file must not hold a submission up
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as err:
        missing = isinstance(err, FileNotFoundError)
        mend = "; `workhorse score` writes scores.json, `workhorse dispatch` live.json" if missing else ""
        raise SnapshotError(f"{path}: can't be opened ({err.strerror}){mend}") from err
    try:
        _check_trust(path, os.fstat(descriptor), trusted_uids)
    except BaseException:
        os.close(descriptor)
        raise
    with open(descriptor, "rb") as file:
        try:
            return file.read(MAX_BYTES + 1).decode()
        except (ValueError, OSError) as err:
            raise _no_json(path, err) from err


def _parsed(text: str, source: str) -> Any:
    try:
        return json_loads(text)
    except (ValueError, RecursionError) as err:
        raise _no_json(source, err) from err


def _no_json(source: str, err: Exception) -> SnapshotError:
    return SnapshotError(f"{source}: not valid JSON ({type(err).__name__}); let `workhorse score` write it anew")


def _check_trust(path: str, status: os.stat_result, trusted_uids: Iterable[int] | None) -> None:
    if not S_ISREG(status.st_mode):
        raise SnapshotError(f"{path}: not a regular file")
    if status.st_size > MAX_BYTES:
        raise SnapshotError(f"{path}: {status.st_size} bytes, over the limit of {MAX_BYTES}")
    folder = path.rpartition("/")[0] or "/"
    trusted = {0} if trusted_uids is None else {0, *trusted_uids}
    for name, found in ((path, status), (folder, os.stat(folder))):
        if found.st_uid not in trusted:
            raise SnapshotError(f"{name}: owned by uid {found.st_uid}, which is neither root nor the service user")
        if found.st_mode & (S_IWGRP | S_IWOTH):
            raise SnapshotError(f"{name}: writable by others; run chmod go-w on it")


def _check_format(data: Any, source: str) -> None:
    if not isinstance(data, dict):
        raise SnapshotError(f"{source}: not a JSON object")
    if data.get("format") != FORMAT:
        raise SnapshotError(f"{source}: format {data.get('format')!r}, this version reads {FORMAT}; update the older half")


_DEFAULTS = NodeScore("")._asdict()
# what each published field must be; float stands for any number or null
_KINDS = {k: type(v) if isinstance(v, (bool, str, tuple)) else float for k, v in _DEFAULTS.items() if k != "name"}


def _made(columns: Mapping[str, Any]) -> dict[str, NodeScore]:
    """The nodes from their published columns. Raises TypeError, ValueError or KeyError for what isn't sound."""
    names = columns["name"]
    if type(names) is not list or not _is_sound(str, names) or len({*names}) != len(names):
        raise TypeError("the nodes' names")
    ordered = [_column(key, kind, columns.get(key), len(names)) for key, kind in _KINDS.items()]
    return dict(zip(names, [tuple.__new__(NodeScore, row) for row in zip(names, *ordered)]))


def _column(key: str, kind: type, told: Any, count: int) -> Iterable[Any]:
    if told is None:
        return repeat(_DEFAULTS[key], count)
    if type(told) is dict:
        values, at = _checked(key, kind, told["of"]), told["at"]
        if len(at) != count or not {*map(type, at)} <= {int} or min(at, default=0) < 0:
            raise TypeError(f"{key} isn't told of each node")
        return [values[i] for i in at]
    if len(told) != count:
        raise TypeError(f"{key} isn't told of each node")
    return _checked(key, kind, told)


def _checked(key: str, kind: type, values: Any) -> list[Any]:
    if type(values) is not list or not _is_sound(kind, values):
        raise TypeError(f"{key} holds what it can't be")
    return list(map(tuple, values)) if kind is tuple else values


def _is_sound(kind: type, column: Sequence[Any]) -> bool:
    types = set(map(type, column))
    if kind is tuple:
        return types <= {list} and all(type(word) is str for words in column for word in words)
    if kind is not float:
        return types <= {kind}
    # an endless number, or one that can't be ordered, must not reach the draw
    numbers = [value for value in column if value is not None]
    if not types <= {float, int, type(None)} or not numbers:
        return not numbers
    return min(numbers) > -1e300 and max(numbers) < 1e300 and not any(map(isnan, numbers))
