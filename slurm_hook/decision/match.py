"""Which jobs are ours: the `[match]` rules.

`partitions`, `accounts` and `qos` restrict; of the others (`min_nodes`, `min_gpus`, `name`, `comment_prefix`, a
`#WORKHORSE` line) one is enough. A job without partition, account or QOS of its own is judged by the site's default
where that is known, else it is taken as fitting.
"""

from __future__ import annotations

from ..common.record import TYPE_CHECKING
from ..published import mark

if TYPE_CHECKING:
    from ..common.config import Settings
    from ..slurm.request import Request
    from .directives import Directives


def reason(request: Request, directives: Directives, settings: Settings, *, nodes: int, gpus: int, partition: str = "") -> str:
    """Why the job is ours, "" where it isn't. nodes, gpus: the least that it can end up with; partition: the default."""
    for key, names in (
        ("partitions", (request.partition or partition).split(",")),
        ("accounts", [request.account]),
        ("qos", [request.qos]),
    ):
        if not _within(settings[f"match.{key}"], names):
            return ""
    if settings["match.directives"] and directives.present:
        return "directive"
    asked = mark.parse(request.comment)
    if asked is not None and not asked.decided:
        return "mark"
    if nodes >= settings["match.min_nodes"]:
        return "min_nodes"
    if 0 < settings["match.min_gpus"] <= gpus:
        return "min_gpus"
    return _by_text(request, settings)


def _by_text(request: Request, settings: Settings) -> str:
    prefix, pattern = settings["match.comment_prefix"], settings["match.name"]
    if prefix and request.comment.startswith(prefix):
        return "comment_prefix"
    if pattern and request.name:
        from fnmatch import fnmatchcase  # noqa: PLC0415 - imports re; only sites with a name rule pay for it

        if fnmatchcase(request.name, pattern):
            return "name"
    return ""


def _within(allowed: list[str], names: list[str]) -> bool:
    return not allowed or names == [""] or any(name in allowed for name in names)
