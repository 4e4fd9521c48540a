"""Manifests of stages: read, check, and submit as ordinary Slurm jobs chained by --dependency.

A manifest is TOML (JSON of the same shape where Python has no TOML):

    name = "llama"
    [stage.pretrain]
    script = "pretrain.sh"            # relative to the manifest
    args = ["--epochs", "3"]
    options = ["--partition=gpu", "--time=2-0"]
    after = ["prepare"]               # or {prepare = "afterany"}
    nodes = 4                         # or demand = "640G"
    checkpoint = "30"                 # minutes, or hours:minutes:seconds

Everything is checked before the first job is submitted. If a later sbatch fails, what was submitted is cancelled.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter

from ..common import toml
from ..common.errors import InputError, SlurmError, WorkhorseError
from ..common.record import TYPE_CHECKING, Record
from ..dispatch import tracking
from ..published import mark
from ..slurm import commands, jobs, sbatch_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

KINDS = ("afterok", "afterany", "afternotok", "after", "aftercorr")
STAGE_KEYS = ("script", "args", "options", "after", "nodes", "demand", "checkpoint")
MANIFEST_KEYS = ("name", "options", "stage")
MAX_STAGES = 1000
_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")
_NAMES = "1 to 64 letters, digits and the signs _ . + -"
_JOB = re.compile(r"(\d+)(?:;[\w.-]+)?\s*")
# what the manifest itself says, or what would make the answer unreadable
_OWN = {
    "--dependency": "write it as after = [...]", "-d": "write it as after = [...]", "--parsable": "it is always given",
    "--wait": "stages are chained, not waited for", "-W": "stages are chained, not waited for",
    "--wrap": "name a script", "--test-only": "use `workhorse submit --dry-run`", "--array": "", "-a": "",
    "--clusters": "a pipeline lives on one cluster", "-M": "a pipeline lives on one cluster", "--help": "", "--usage": "",
    "--version": "", "-h": "", "-V": "",
}  # fmt: skip
_ALLOWED = frozenset({"--array", "-a"})
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stage(Record):
    """A stage as the manifest has it. after: stage → kind of dependency; demand in MiB, checkpoint in minutes, 0 not given."""

    name: str
    script: str
    args: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    after: Mapping[str, str] = {}
    nodes: int = 0
    demand: float = 0.0
    checkpoint: float = 0.0


class Pipeline(Record):
    """A manifest that was checked; stages in an order in which they can be submitted."""

    name: str
    stages: tuple[Stage, ...]
    folder: str = "."


def read(path: str, name: str | None = None) -> Pipeline:
    """A checked pipeline; name: in place of its own. Raises InputError naming file, stage, reason and mend."""
    if name is not None and not _NAME.fullmatch(name):
        raise InputError(f"--name {name!r}: {_NAMES}; nothing was submitted")
    found = _read(path)
    return found if name is None else found._replace(name=name)


def _read(path: str) -> Pipeline:
    try:
        with open(path, "rb") as file:
            raw = file.read(4 * 1024 * 1024)
    except OSError as err:
        raise InputError(f"{path}: can't be read ({err.strerror})") from err
    return check(_parse(path, raw), path)


def _parse(path: str, raw: bytes) -> Any:
    try:
        if path.endswith(".json"):
            return json.loads(raw)
        try:
            tomllib = toml.reader()
        except ModuleNotFoundError as err:
            mend = "install the package tomli, or write the same as JSON in a file named *.json"
            raise InputError(f"{path}: TOML can't be read by this Python; {mend}") from err
        return tomllib.loads(raw.decode("utf-8"))
    except ValueError as err:  # TOMLDecodeError, JSONDecodeError and UnicodeDecodeError are all ValueErrors
        raise InputError(f"{path}: not valid {'JSON' if path.endswith('.json') else 'TOML'} ({err})") from err


def check(data: Any, path: str = "pipeline.toml") -> Pipeline:
    """A pipeline from parsed TOML or JSON. Raises InputError for whatever sbatch could not do as asked."""
    try:
        return _checked(data, os.path.dirname(os.path.abspath(path)), os.path.basename(path))
    except InputError as err:
        raise InputError(f"{path}: {err}; nothing was submitted") from None


def _checked(data: Any, folder: str, file_name: str) -> Pipeline:
    _known_keys(data, MANIFEST_KEYS, "the manifest")
    name = data.get("name", file_name.rsplit(".", 1)[0])
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"name {name!r}: {_NAMES}")
    tables = data.get("stage")
    if not isinstance(tables, dict) or not 0 < len(tables) <= MAX_STAGES:
        raise InputError(f"1 to {MAX_STAGES} stages are needed; begin each with [stage.NAME]")
    common = _words(data, "options", "the manifest")
    stages = {key: _stage(key, table, folder, common) for key, table in tables.items()}
    _check_after(stages)
    for stage in stages.values():
        _check_demand(stage)
    return Pipeline(name, tuple(stages[key] for key in _order(stages)), folder)


def _stage(name: str, table: Any, folder: str, common: tuple[str, ...]) -> Stage:
    where = f"stage {name}"
    if not _NAME.fullmatch(name):
        raise InputError(f"{where!r}: a name has {_NAMES}")
    _known_keys(table, STAGE_KEYS, where)
    nodes, demand = table.get("nodes", 0), _demand(table, where)
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 0:
        raise InputError(f"{where}: nodes = {nodes!r} must be a whole number above 0")
    given = (*common, *_words(table, "options", where))
    _check_options(given, where)
    return Stage(
        name=name, script=_script(table, folder, where), args=_words(table, "args", where), options=given,
        after=_after(table, where), nodes=nodes, demand=demand, checkpoint=_checkpoint(table, where),
    )  # fmt: skip


def _known_keys(table: Any, known: Sequence[str], where: str) -> None:
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table of {', '.join(known)}")
    for key in table:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}; valid ones: {', '.join(known)}")


def _words(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    words = table.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, (str, int, float)) for word in words):
        raise InputError(f'{where}: {key} must be a list of words, such as ["--partition=gpu", "--time=60"]')
    if any("\0" in str(word) for word in words):
        raise InputError(f"{where}: {key} holds a zero byte")
    return tuple(str(word) for word in words)


def _check_options(words: Sequence[str], where: str) -> None:
    for word in words:
        key = word.partition("=")[0] if word.startswith("--") else word[:2]
        if not word.startswith("-") and word == ":":
            raise InputError(f"{where}: heterogeneous jobs are written in the script, with #SBATCH hetjob")
        if key in _OWN and key not in _ALLOWED:
            hint = _OWN[key]
            raise InputError(f"{where}: {key} can't be among the options" + (f"; {hint}" if hint else ""))
    _check_as_read(words, where)


def _check_as_read(words: Sequence[str], where: str) -> None:
    """The same of what sbatch makes of them: shortened names, letters in one word, a word that it would take for the script."""
    read = sbatch_options.read([*words, "script"])
    for name in sorted(read.sets):
        key = next((key for key in (f"--{name}", f"-{name}") if key in _OWN and key not in _ALLOWED), "")
        if key:
            raise InputError(f"{where}: {key} can't be among the options, shortened or not; {_OWN[key] or 'leave it out'}")
    if read.known and (read.script != len(words) or read.insert != read.script):
        raise InputError(f"{where}: among the options is a word that is none, or the last one lacks its value")


def _script(table: Mapping[str, Any], folder: str, where: str) -> str:
    script = table.get("script")
    if not isinstance(script, str) or not script:
        raise InputError(f'{where}: a script is needed, script = "{where.split()[1]}.sh"')
    path = os.path.join(folder, os.path.expanduser(script))
    if not os.path.isfile(path):
        raise InputError(f"{where}: there is no script {path}")
    if not os.access(path, os.R_OK):
        raise InputError(f"{where}: the script {path} can't be read; mend its permissions")
    if any(word in (b"--wait", b"-W") for line in _directives(path) for word in line.split()):
        raise InputError(f"{where}: the script {path} says --wait; stages are chained, not waited for")
    return path


def _after(table: Mapping[str, Any], where: str) -> dict[str, str]:
    after = table.get("after", [])
    if isinstance(after, str):
        after = [after]
    if isinstance(after, list) and all(isinstance(name, str) for name in after):
        return dict.fromkeys(after, "afterok")
    if isinstance(after, dict) and all(kind in KINDS for kind in after.values()):
        return dict(after)
    raise InputError(f"{where}: after must be a list of stages, or a table of stage = one of {', '.join(KINDS)}")


def _demand(table: Mapping[str, Any], where: str) -> float:
    if "demand" not in table:
        return 0.0
    return _read_value(table["demand"], where, "demand", "memory such as 640G", "parse_memory")


def _checkpoint(table: Mapping[str, Any], where: str) -> float:
    if "checkpoint" not in table:
        return 0.0
    return _read_value(table["checkpoint"], where, "checkpoint", "minutes, or hours:minutes:seconds", "parse_minutes")


def _read_value(value: Any, where: str, key: str, form: str, reader: str) -> float:
    from ..slurm import request  # noqa: PLC0415

    parse = {"parse_memory": lambda text: request.parse_memory(text, key), "parse_minutes": request.parse_minutes}[reader]
    try:
        number = parse(str(value)) if not isinstance(value, bool) else None
    except WorkhorseError as err:
        raise InputError(f"{where}: {key} = {value!r} must be {form} ({err})") from None
    if number is None or not number > 0:
        raise InputError(f"{where}: {key} = {value!r} must be {form}")
    return float(number)


def _check_after(stages: Mapping[str, Stage]) -> None:
    for stage in stages.values():
        for name in stage.after:
            if name not in stages:
                raise InputError(f"stage {stage.name} comes after {name!r}, which is no stage; stages are {', '.join(stages)}")


def _check_demand(stage: Stage) -> None:
    """A demand travels in the comment: one of the user's own would lose it, and the stage would run on a single node."""
    if stage.demand and not stage.nodes and own_comment(stage):
        raise InputError(
            f"stage {stage.name}: demand can't be passed on beside a comment of its own; write #WORKHORSE demand=… into the "
            "script instead, or give nodes"
        )


def _order(stages: Mapping[str, Stage]) -> list[str]:
    """Stages in an order where each comes after what it depends on; else as in the manifest."""
    try:
        return list(TopologicalSorter({name: list(stage.after) for name, stage in stages.items()}).static_order())
    except CycleError as err:
        raise InputError(f"stages wait for each other: {' → '.join(err.args[1])}") from None


def argv(pipeline: Pipeline, stage: Stage, ids: Mapping[str, int], *, marked: bool = True, sbatch: str = "sbatch") -> list[str]:
    """The sbatch call of a stage. ids: job ids of the stages submitted so far."""
    words = [sbatch, "--parsable", f"--job-name={stage.name}", *stage.options]
    if stage.nodes:
        words.append(f"--nodes={stage.nodes}")
    if stage.after:
        # Slurm reads what is joined by commas as "all of these"
        by_kind: dict[str, list[str]] = {}
        for name, kind in stage.after.items():
            by_kind.setdefault(kind, []).append(str(ids[name]))
        words.append("--dependency=" + ",".join(":".join([kind, *jobs]) for kind, jobs in by_kind.items()))
    if marked:
        asked = mark.Mark(pipeline=pipeline.name, stage=stage.name, demand=stage.demand, checkpoint=stage.checkpoint)
        words.append(f"--comment={mark.text(asked)}")
    return [*words, stage.script, *stage.args]


def own_comment(stage: Stage) -> bool:
    """The user's own comment, in the options or the script: it stays, and the stage's name isn't recorded."""
    if any(word.startswith("--com") for word in stage.options):
        return True
    return any(b"--com" in line for line in _directives(stage.script))


def _directives(script: str) -> Iterable[bytes]:
    """The #SBATCH lines of a script."""
    with open(script, "rb") as file:
        for line in file.read(1 << 20).split(b"\n"):
            if line.strip() and not line.strip().startswith(b"#"):
                return
            if line.startswith((b"#SBATCH", b"#SLURM")):
                yield line


UNANSWERED = ("Unable to contact", "timed out", "Communication connection failure", "Unable to establish")


class StageError(WorkhorseError):
    """sbatch takes a stage for wrong, or the user has interrupted the submission."""


def submit(pipeline: Pipeline, tell: Callable[[Stage, int, bool], None], sbatch: str = "sbatch") -> dict[str, int]:
    """Submit all stages in order; `tell` is called after each with its job id and whether it carries our mark.

    Raises StageError when sbatch refuses one, SlurmError when Slurm doesn't answer: what was submitted is cancelled first,
    and the message says so.
    """
    ids: dict[str, int] = {}
    with _heeded() as interrupted:
        for stage in pipeline.stages:
            marked = not own_comment(stage)
            try:
                ids[stage.name] = _submit_one(argv(pipeline, stage, ids, marked=marked, sbatch=sbatch))
                tell(stage, ids[stage.name], marked)
                if interrupted:
                    raise KeyboardInterrupt
            except (SlurmError, StageError, KeyboardInterrupt, OSError) as err:
                kind = SlurmError if isinstance(err, SlurmError) else StageError
                raise kind(f"stage {stage.name}: {err or 'interrupted'}; {_cancel(ids)}") from None
    return ids


@contextmanager
def _heeded() -> Iterator[list[int]]:
    """A first signal to end is heeded between two stages only, so that no job is submitted of which nobody knows the number."""
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {n: signal.signal(n, note) for n in _ENDING if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _submit_one(words: Sequence[str]) -> int:
    # sbatch itself waits up to a minute and a half for a slurmctld that is busy
    # the environment is the user's own: the job inherits it
    environment = {key: value for key, value in os.environ.items() if key != "SBATCH_WAIT"}
    code, out, err = commands.attempt(words, timeout=300.0, env=environment)
    # a site's own wrapper may print a banner: the id is the last line that has the form of --parsable
    found = [m for m in map(_JOB.fullmatch, out.split("\n")) if m]
    if code != 0 and any(word in err for word in UNANSWERED):
        raise SlurmError(f"Slurm did not answer sbatch (exit code {code}): {err.strip()[:400]}")
    if code != 0:
        raise StageError(f"sbatch refused it (exit code {code}): {err.strip()[:400] or 'no message'}")
    if not found:
        raise SlurmError(f"sbatch printed no job id but {out[:200]!r}; a job may have been submitted, look with squeue")
    return int(found[-1][1])


def namesakes(name: str) -> list[str]:
    """The caller's jobs that wait or run as stages of a pipeline of this name; none where Slurm doesn't answer, which the
    submission itself will say."""
    try:
        found = jobs.load(str(os.geteuid()))
    except SlurmError:
        return []
    return [job.label for job in found if job.mark is not None and job.mark.pipeline == name and job.state in tracking.LIVING]


def uncounted(stage: Stage, job: int) -> bool:
    """A stage whose demand nobody has turned into a node count: submitted past our sbatch, or while we are off."""
    if not stage.demand or stage.nodes:
        return False
    code, out, _ = commands.attempt(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%k"])
    told = mark.parse(out.strip())
    return code == 0 and not (told is not None and told.decided)


def _cancel(ids: Mapping[str, int]) -> str:
    if not ids:
        return "nothing was submitted"
    names = ", ".join(f"{name} ({job})" for name, job in ids.items())
    try:
        code, _, err = commands.attempt(["scancel", *(str(job) for job in ids.values())])
    except SlurmError as error:
        code, err = 1, str(error)
    if code == 0:
        return f"cancelled what had been submitted: {names}"
    return f"these jobs are submitted and could not be cancelled ({err.strip()[:200]}): {names}"


def plan_lines(pipeline: Pipeline) -> Iterable[str]:
    """The sbatch calls that would be made, with stage names for the ids: what --dry-run prints."""
    for stage in pipeline.stages:
        pretended = argv(pipeline, stage, {name: 0 for name in stage.after}, marked=not own_comment(stage))
        after = ",".join(f"{kind}:<{name}>" for name, kind in stage.after.items())
        yield " ".join(_shown(f"--dependency={after}" if w.startswith("--dependency=") else w) for w in pretended)


def _shown(word: str) -> str:
    import shlex  # noqa: PLC0415

    return shlex.quote("".join(c if c.isprintable() else "?" for c in word))
