"""The mark `wh=…` in a job's Comment: who decided, and what dispatch must know of a job it did not submit.

The first of wrapper, cli_filter, job_submit and `workhorse submit` to act writes it, and only into an empty Comment.
The job's owner can write anything there, so nothing in it is trusted beyond that owner's own job: unknown fields are
ignored, values are bounded and checked, a damaged mark is no mark.

    wh=1;m=steer;s=<snapshot id>;r=<seed>;x=<the user's own excludes>;p=<pipeline>;g=<stage>;d=<demand, MiB>;k=<minutes>

`x` is what makes our excludes separable: ours are the job's ExcNodeList without x. A mark without `m` asks for a
decision: `workhorse submit` writes it so that names and demand reach the wrapper (or else dispatch) without a file or a
variable that the job would inherit.
"""

from __future__ import annotations

from ..common.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from typing import Any

PREFIX = "wh="
VERSION = "1"
MODES = ("", "avoid", "steer", "control")  # "": asked only; steer: confined to a drawn pool; control: left untouched
MAX_LENGTH = 1024  # bytes in a comment of Slurm's
MAX_COMMENT = 1000  # Slurm refuses a job whose comment has more than 1024 bytes
MAX_EXCLUDES = 600  # of the user's own, folded, that leave room for the rest
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.+-")
_NODES = _SAFE | frozenset("[],")


class Mark(Record):
    """mode: one of MODES; snapshot, seed: replay the draw; excludes: the user's own, folded; demand: MiB in all (0: not
    given); checkpoint: minutes between checkpoints (0: not given)."""

    mode: str = ""
    snapshot: str = ""
    seed: int = 0
    excludes: str = ""
    pipeline: str = ""
    stage: str = ""
    demand: float = 0.0
    checkpoint: float = 0.0

    @property
    def decided(self) -> bool:
        """Somebody has acted on this job; the others stop there."""
        return bool(self.mode)


def clean_name(text: str) -> str:
    """A pipeline or stage name as it can stand in a mark: other characters become `_`, at most 64 of them."""
    return "".join(c if c in _SAFE else "_" for c in text[:64])


def text(mark: Mark) -> str:
    """The comment that holds this mark; fields at their defaults are left out."""
    fields = [PREFIX + VERSION]
    for key, value in (
        ("m", mark.mode), ("s", mark.snapshot), ("r", mark.seed or ""), ("x", mark.excludes),
        ("p", clean_name(mark.pipeline)), ("g", clean_name(mark.stage)),
        ("d", f"{mark.demand:.15g}" if mark.demand else ""), ("k", f"{mark.checkpoint:.15g}" if mark.checkpoint else ""),
    ):  # fmt: skip
        if value != "":
            fields.append(f"{key}={value}")
    return ";".join(fields)


def parse(comment: str) -> Mark | None:
    """The mark in a comment, None where there is none or it is damaged. Never raises: comments are hostile input."""
    if not comment.startswith(PREFIX) or len(comment) > MAX_LENGTH:
        return None
    version, *parts = comment[len(PREFIX) :].split(";")
    if version != VERSION:
        return None
    raw = dict(part.split("=", 1) for part in parts if "=" in part)
    try:
        return _checked(raw)
    except ValueError:
        return None


def _checked(raw: dict[str, Any]) -> Mark:
    mode, excludes = raw.get("m", ""), raw.get("x", "")
    if mode not in MODES or not _NODES.issuperset(excludes):
        raise ValueError(mode)
    names = {field: raw.get(key, "") for key, field in (("s", "snapshot"), ("p", "pipeline"), ("g", "stage"))}
    for value in names.values():
        if not _SAFE.issuperset(value):
            raise ValueError(value)
    seed = raw.get("r", "0")
    if not (seed.isascii() and seed.isdigit() and len(seed) <= 20):
        raise ValueError(seed)
    return Mark(
        mode=mode, seed=int(seed), excludes=excludes,
        demand=_number(raw.get("d", "0")), checkpoint=_number(raw.get("k", "0")), **names,
    )  # fmt: skip


def _number(value: str) -> float:
    number = float(value)
    if not 0 <= number < 1e15:  # also false for nan
        raise ValueError(value)
    return number
