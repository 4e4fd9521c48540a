"""The published table for job_submit/lua: the nodes that mode avoid leaves out, and the rules that Lua can check.

Lua notation, read there as data and never run. `same` counts the nodes of the same size in that partition, so that Lua can
keep a job possible without knowing more.
"""

from __future__ import annotations

from ..common.config import Settings
from ..common.record import TYPE_CHECKING
from .snapshot import AVOID_BELOW

if TYPE_CHECKING:
    from .snapshot import NodeScore, Scores

NAME = "avoid.lua"
FORMAT = 1
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,*?:+-")


def text(scores: Scores) -> str:
    """The file's content, worst nodes first."""
    settings = Settings.from_mapping(scores.settings)
    lines = ["return {", f"  format = {FORMAT},", f"  created = {scores.created:.0f},"]
    lines.append(f"  max_age = {settings['steer.max_age_hours'] * 3600:.0f},")
    lines.append(f"  max_excluded = {settings['steer.max_excluded']:g},")
    lines.append(f"  min_nodes = {settings['match.min_nodes']},")
    words = {
        "id": scores.id, "mode": settings["steer.mode"], "name": settings["match.name"],
        "partitions": ",".join(settings["match.partitions"]), "accounts": ",".join(settings["match.accounts"]),
        "qos": ",".join(settings["match.qos"]),
    }  # fmt: skip
    lines += [f'  {key} = "{word}",' for key, word in words.items() if _WORD.issuperset(word)]
    return "\n".join([*lines, *_rows(scores), "}", ""])


def _rows(scores: Scores) -> list[str]:
    sizes: dict[tuple[str, tuple[object, ...]], int] = {}
    kinds: dict[tuple[object, ...], str] = {}
    for node in scores.nodes.values():
        kinds.setdefault(_kind(node), f"k{len(kinds) + 1}")
        for partition in node.partitions:
            sizes[partition, _kind(node)] = sizes.get((partition, _kind(node)), 0) + 1
    rows = []
    for node in sorted(filter(_is_bad, scores.nodes.values()), key=lambda n: (not n.lemon, n.capability or 0.0, n.name)):
        for partition in node.partitions:
            if _WORD.issuperset(node.name + partition):
                kind, same = kinds[_kind(node)], sizes[partition, _kind(node)]
                rows.append(f'  {{ node = "{node.name}", partition = "{partition}", kind = "{kind}", same = {same} }},')
    return rows


def _kind(node: NodeScore) -> tuple[object, ...]:
    return node.mem, node.cpus, node.gpus, node.gpu_type, node.features


def _is_bad(node: NodeScore) -> bool:
    """As mode avoid judges; suspects are left out, for they are ones for an hour only."""
    return node.lemon or (node.relative is not None and node.relative < AVOID_BELOW)
