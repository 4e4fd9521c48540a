"""Jobs as people name them: 4711, a task of an array 4711_3, a component of a heterogeneous job 4711+1."""

from __future__ import annotations

import re

from .errors import UsageError

_ID = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,9})?")


def checked_id(text: str) -> str:
    """A job as people name it: 123, an array's task 123_4, a component 123+1. Raises UsageError."""
    if not _ID.fullmatch(text):
        raise UsageError(f"{text!r} is not a job; write 4711, 4711_3 (a task of an array) or 4711+1 (a component)")
    return text


def own_number(job: str) -> str:
    """What to ask Slurm for: of component 123+1 its own number, which is 124, as 123+1 gives the first component's row."""
    first, plus, offset = job.partition("+")
    return str(int(first) + int(offset)) if plus else job


def check_single(asked: str, label: str) -> None:
    """Raises UsageError where a number stands for an array or a heterogeneous job: each of its members has its own story."""
    if label != asked and label.startswith((f"{asked}_", f"{asked}+")):
        what = "an array" if label[len(asked)] == "_" else "a heterogeneous job"
        example = label.replace("[", "")  # of `28_[3-9%2]`, tasks that wait, the first
        example = example[: len(asked) + 1] + (re.match(r"\d+", example[len(asked) + 1 :]) or ["0"])[0]
        raise UsageError(f"job {asked} is {what}; name one of its members, such as {example}")
