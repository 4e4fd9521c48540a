"""`#WORKHORSE` lines of a batch script: what the user tells us about a job and Slurm has no option for.

They stand among the `#SBATCH` lines, with the same rules: column 1, before the first line that is neither blank nor a
comment. `#WORKHORSE demand=640G stage=pretrain pipeline=llama checkpoint=30`; `#WORKHORSE steer=off` leaves the job alone.
An error in one is told and ignored, never a reason to refuse a job.
"""

from __future__ import annotations

from ..common.errors import RequestError
from ..common.record import Record
from ..published import mark
from ..slurm.request import parse_memory, parse_minutes

WORD = "#WORKHORSE"
MAX_BYTES = 65536  # of the script that are looked at

# key, form, meaning: the table of the documentation
KEYS = (
    ("demand", "memory, such as 640G", "what the job needs in all; sets --nodes where no count is given"),
    ("stage", "name", "name of this stage, for pipelines and reports"),
    ("pipeline", "name", "name of the pipeline that the stage belongs to"),
    ("checkpoint", "minutes, or hours:minutes:seconds", "time between checkpoints, for reports and advice"),
    ("steer", "on or off", "off: this job is left alone"),
)  # fmt: skip


class Directives(Record):
    """present: there was at least one line; demand: MiB in all, 0 not given; checkpoint: minutes; errors: to be told."""

    present: bool = False
    demand: float = 0.0
    stage: str = ""
    pipeline: str = ""
    checkpoint: float = 0.0
    steer: bool = True
    errors: tuple[str, ...] = ()


def parse(script: bytes) -> Directives:
    """The directives of a script (its first bytes are enough). Never raises."""
    found: dict[str, str | float | bool] = {}
    errors: list[str] = []
    lines = header(script)
    for line in lines:
        for word in line[len(WORD) :].split("#", 1)[0].split():
            _read_word(word, found, errors)
    return Directives(present=bool(lines), errors=tuple(errors), **found)  # type: ignore[arg-type]


def header(script: bytes) -> list[str]:
    """The `#WORKHORSE` lines before the first command."""
    lines: list[str] = []
    for raw in script[:MAX_BYTES].split(b"\n"):
        line = raw.decode("utf-8", "replace")
        text = line.strip()
        if text and not text.startswith("#"):
            break
        if line.startswith(WORD) and line[len(WORD) : len(WORD) + 1] in ("", " ", "\t", "\r"):
            lines.append(line)
    return lines


def _read_word(word: str, found: dict[str, str | float | bool], errors: list[str]) -> None:
    key, equals, value = word.partition("=")
    value = value.strip("\"'")
    try:
        if not equals or key not in {name for name, _, _ in KEYS}:
            raise RequestError(f"unknown word; known are {', '.join(name for name, _, _ in KEYS)}, each followed by =")
        found[key] = _value(key, value)
    except RequestError as err:
        errors.append(f"{WORD} {word[:60]!r} is ignored: {err}")


def _value(key: str, value: str) -> str | float | bool:
    if key == "demand":
        return parse_memory(value, key)
    if key == "checkpoint":
        minutes = parse_minutes(value)
        if minutes is None:
            raise RequestError("give minutes")
        return minutes
    if key == "steer":
        if value not in ("on", "off"):
            raise RequestError("write steer=off or steer=on")
        return value == "on"
    if not value or mark.clean_name(value) != value:
        raise RequestError("a name has 1 to 64 letters, digits and the signs _ . + -")
    return value
