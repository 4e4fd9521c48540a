"""What the `sbatch` shim asks in a child process: which options to add to this call, if any.

The shim has bounded our time and carries on without us, so everything here may fail; it must only never answer wrongly.
The answer is plain lines: a header with the position at which to insert, one argument a line, notes for a terminal, and an
end line without which the shim believes nothing.

    workhorse 1 <position> <number of arguments>
    +--exclude=gpu[01-04]
    #note for a terminal
    end

`pass` and the end line: nothing to add. No end line at all: something of ours is broken, and the call passes through, too.
"""

from __future__ import annotations

import gc
import posix as os
import sys
import time

from ..common.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..common.config import Settings
    from ..decision.decide import Case, Decision
    from ..decision.directives import Directives
    from ..published.snapshot import Live, NodeScore, Scores
    from ..slurm.cluster import Node, NodeQuery, Started
    from ..slurm.request import Request
    from ..slurm.sbatch_options import CommandLine

SPARE = 0.2  # seconds before the shim stops waiting: we end by ourselves then
MAX_WORD = 100_000  # bytes; Linux takes 128 KiB in one argument
ELF = b"\x7fELF"
VARIABLE = "WORKHORSE_MODE"


class Call(Record):
    """One sbatch call as the shim hands it on."""

    publish: str
    sbatch: str
    service_uid: str
    limit: float
    argv: tuple[str, ...]


def main(words: Sequence[str]) -> None:
    """Entry: `words` are the shim's settings and then sbatch's arguments. Prints the answer; logs after it is out.

    Ends the process: to take thousands of records down one by one would keep a processor from the real sbatch.
    """
    started = time.monotonic()
    gc.disable()  # thousands of nodes and a life of a few milliseconds
    call = Call(words[0], words[1], words[2], float(words[3]) - SPARE, tuple(words[4:]))
    _bound(call.limit)
    os.closerange(3, 256)  # the caller's pipes are sbatch's: neither ours to hold, nor to be read by our question
    answer, line = answer_for(call, started)
    sys.stdout.write(answer or "pass\nend\n")
    sys.stdout.flush()
    os.close(1)  # the shim goes on now
    if line is not None:
        from ..published import decision_log  # noqa: PLC0415

        decision_log.send(line())
    os._exit(0)


def _bound(limit: float) -> None:
    """A process group of our own, so that one kill ends us and sbatch's child; and an end of our own making."""
    os.setpgid(0, 0)
    alarm(limit)


def alarm(limit: float) -> None:
    """The kernel ends this process after so many seconds: that needs no Python to work. Children can be waited for."""
    import _signal  # type: ignore[import-not-found]  # noqa: PLC0415 - `signal` imports enum, which costs milliseconds

    _signal.setitimer(_signal.ITIMER_REAL, limit)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)  # a caller that ignores it hands that on to us


def answer_for(call: Call, started: float) -> tuple[str, Callable[[], str] | None]:
    """The answer's text ("" for none) and what makes the line for syslog, once the answer is out (None: not ours)."""
    from ..common.errors import SlurmError, SnapshotError, WorkhorseError  # noqa: PLC0415

    try:
        return _answer(call, started)
    except (SnapshotError, SlurmError) as err:
        failed = err
        return "", lambda: failure_line(failed, by="wrapper")
    except WorkhorseError:  # what the user asks for can't be understood: sbatch will say why, if it is wrong
        return "", None


def failure_line(err: Exception, *, by: str) -> str:
    """The line for syslog where a submission passes because of us, not because of what it asks for."""
    from ..common.errors import SnapshotError  # noqa: PLC0415
    from ..published import decision_log  # noqa: PLC0415

    return decision_log.failure(by, "snapshot" if isinstance(err, SnapshotError) else "slurm", printable(str(err)))


def _answer(call: Call, started: float) -> tuple[str, Callable[[], str] | None]:
    from ..slurm import cluster, sbatch_options  # noqa: PLC0415
    from . import batch_script  # noqa: PLC0415

    command = sbatch_options.read(call.argv)
    script = batch_script.read(call.argv, command)
    _check_binary(call.sbatch)
    uids = uids_of(call.service_uid)
    asked = ask(call, command, script)
    query = cluster.NodeQuery(scontrol_of(call), call.limit, asked.pid)
    try:
        from ..published import snapshot  # noqa: PLC0415

        # read while sbatch works on its answer
        scores, nodes = snapshot.read_scores_later(call.publish, trusted_uids=uids)
        considered = consider(
            call, command, script, scores, asked=asked, query=query, nodes=nodes, deadline=started + call.limit - 0.1, uids=uids
        )
    finally:
        cluster.end(asked)
        query.end()
    if considered is None:
        return "", None
    case, decision, why = considered
    mode = case.settings["steer.mode"]
    added = () if mode == "observe" else arguments(case, decision)
    position = _position(call.argv, command, added)
    applied = bool(added) and position is not None
    quiet = command.quiet or sbatch_options.aloud(script) != script
    text = _text(added if applied else (), position or 0, [] if quiet else notes(case, decision))
    ms = (time.monotonic() - started) * 1000
    return text, lambda: log_line(case, decision, why, by="wrapper", applied=applied, ms=ms)


def _check_binary(path: str) -> None:
    """Only a real sbatch may be asked with --test-only: a site's wrapper could drop that and submit."""
    from ..common.errors import RequestError  # noqa: PLC0415

    with open(path, "rb") as file:
        if file.read(4) != ELF:
            raise RequestError(f"{path} is not a binary")


def consider(
    call: Call,
    command: CommandLine,
    script: bytes,
    scores: Scores,
    *,
    asked: Started,
    query: NodeQuery,
    nodes: Callable[[], Mapping[str, NodeScore]],
    deadline: float,
    uids: Sequence[int],
    seed: int | None = None,
) -> tuple[Case, Decision, str] | None:
    """What `sbatch` with these arguments would ask for, and our decision; None where the job isn't ours.

    scores: without its nodes, which `nodes` gives. Raises WorkhorseError for whatever makes it unknowable.
    """
    # more than is needed at once, as sbatch is at work
    from ..common import config  # noqa: F401, PLC0415
    from ..decision import directives, feasibility, match  # noqa: F401, PLC0415
    from ..slurm import cluster, request  # noqa: F401, PLC0415
    from . import batch_script  # noqa: PLC0415

    if scores.settings.get("steer.mode") == "off":
        return None
    told = directives.parse(script)
    blocks = max(command.components, batch_script.components(script))
    requests = _requests(call, command, blocks, cluster.options_of(asked, blocks, deadline, query.load))
    return judge(requests, told, scores, nodes, query=query, publish=call.publish, uids=uids, deadline=deadline, seed=seed)


def judge(
    requests: tuple[Request, ...],
    told: Directives,
    scores: Scores,
    nodes: Callable[[], Mapping[str, NodeScore]],
    *,
    query: NodeQuery,
    publish: str,
    uids: Sequence[int],
    deadline: float,
    seed: int | None = None,
) -> tuple[Case, Decision, str] | None:
    """Match rules, live nodes (the one RPC) and decision; None where the job isn't ours. Raises WorkhorseError.

    seed: of the draw; None for one of its own.
    """
    from ..common.config import Settings, weaker_mode  # noqa: PLC0415

    settings = Settings.from_mapping(scores.settings)
    mode = weaker_mode(settings["steer.mode"], _wanted_mode())
    if mode == "off":
        return None
    if mode != settings["steer.mode"]:
        settings = settings.replace(steer__mode=mode)
    if not all(request.nodes_given for request in requests):
        scores = scores._replace(nodes=nodes())
    why = _match(requests, told, settings, scores)
    if not why:
        return None
    query.ask()
    from ..decision import decide  # noqa: PLC0415 - while slurmctld answers

    if not scores.nodes:
        scores = scores._replace(nodes=nodes())
    live = _live(publish, uids)
    nodes_now = query.nodes(deadline, _partitions(scores, live))
    _check_excludes(requests, nodes_now)
    case = decide.Case(
        requests=requests, directives=told, scores=scores, settings=settings, nodes=nodes_now, live=live, now=time.time(),
        seed=_seed() if seed is None else seed,
    )  # fmt: skip
    return case, decide.decide(case), why


def _wanted_mode() -> str:
    """What the user's WORKHORSE_MODE says."""
    from ..slurm import cluster  # noqa: PLC0415

    return cluster.environment().get(VARIABLE.encode(), b"").decode("utf-8", "replace")


def wrong_mode() -> str:
    """What to tell a user whose WORKHORSE_MODE is no mode, "" where there is nothing to tell."""
    from ..common.config import MODES  # noqa: PLC0415

    wanted = _wanted_mode()
    if not wanted or wanted.lower() in MODES:
        return ""
    return f"{VARIABLE}={wanted[:40]} is ignored: write one of {', '.join(MODES)}"


def _check_excludes(requests: Sequence[Request], nodes: Mapping[str, Node]) -> None:
    """Raises RequestError where all that the user excludes is unknown: newer versions of Slurm refuse that, but no longer
    when one of ours stands beside it."""
    from ..common.errors import RequestError  # noqa: PLC0415

    if any(request.exclude and not any(name in nodes for name in request.exclude) for request in requests):
        raise RequestError("none of the excluded nodes is known here; see `sinfo -N`")


def _match(requests: Sequence[Request], told: Directives, settings: Settings, scores: Scores) -> str:
    """Why the job is ours, "" where it isn't; the nodes of the scores only matter where no count is given."""
    from ..decision import feasibility, match  # noqa: PLC0415

    largest = max((n.cpus for n in scores.nodes.values()), default=0), max((n.gpus for n in scores.nodes.values()), default=0)
    for request in requests:
        count = feasibility.least_nodes(request, *largest)
        why = match.reason(request, told, settings, nodes=count, gpus=feasibility.total_gpus(request, count))
        if why:
            return why
    return ""


def _partitions(scores: Scores, live: Live | None) -> dict[str, tuple[str, ...]]:
    """Partitions of each node, as published; those that came after the scores as dispatch knows them."""
    from ..common import hostlist  # noqa: PLC0415
    from ..common.errors import HostlistError  # noqa: PLC0415

    known = {name: score.partitions for name, score in scores.nodes.items()}
    newer: dict[str, tuple[str, ...]] = {}
    for partition, facts in (live.partitions if live else {}).items():
        try:
            names = hostlist.expand(str(facts.get("nodes", "")))
        except HostlistError:
            continue
        newer.update((name, (*newer.get(name, ()), partition)) for name in names if not known.get(name))
    known.update(newer)
    return known


def scontrol_of(call: Call) -> str:
    """The scontrol beside the real sbatch."""
    return f"{call.sbatch.rpartition('/')[0]}/scontrol"


def uids_of(text: str) -> tuple[int, ...]:
    """The service user's uid as the install wrote it, if it did."""
    return (int(text),) if text.isdigit() else ()


def ask(call: Call, command: CommandLine, script: bytes) -> Started:
    """Begin to ask sbatch what it makes of this call. Raises RequestError where it would read what can be read only once."""
    from ..slurm import cluster, sbatch_options  # noqa: PLC0415
    from . import batch_script  # noqa: PLC0415

    batch_script.check(call.argv, command, script)
    aloud = sbatch_options.aloud(script)  # on stdin where it isn't what the file says
    argv = sbatch_options.without_quiet(call.argv if aloud == script else call.argv[: command.script], command)
    in_file = command.wrapped or (command.script < len(call.argv) and aloud == script)
    fd = None if in_file else batch_script.memory_file(aloud)
    try:
        return cluster.start_sbatch(call.sbatch, argv, fd)
    finally:
        if fd is not None:
            os.close(fd)


def _requests(call: Call, command: CommandLine, blocks: int, text: str) -> tuple[Request, ...]:
    """The components in sbatch's print-out, as many as there must be. Raises RequestError."""
    from ..common.errors import RequestError  # noqa: PLC0415
    from ..slurm import request  # noqa: PLC0415

    printed = request.parse_blocks(text)
    if len(printed) != blocks:
        raise RequestError("sbatch printed more or fewer option blocks than expected")
    named = _script_name(call, command)
    return tuple(r if r.name else r._replace(name=named) for r in map(request.request_from, printed))


def _script_name(call: Call, command: CommandLine) -> str:
    """The name that sbatch gives a job without --job-name."""
    if command.wrapped:
        return "wrap"
    return call.argv[command.script].rpartition("/")[2] if command.script < len(call.argv) else "sbatch"


def _live(publish: str, uids: Sequence[int]) -> Live | None:
    from ..common.errors import SnapshotError  # noqa: PLC0415
    from ..published import snapshot  # noqa: PLC0415

    try:
        return snapshot.read_live(publish, trusted_uids=uids)
    except SnapshotError:
        return None


def _seed() -> int:
    return int.from_bytes(os.urandom(6), "big")


def arguments(case: Case, decision: Decision) -> tuple[str, ...]:
    """The options to add for a decision; none for "pass"."""
    from ..common import hostlist  # noqa: PLC0415
    from ..published import mark  # noqa: PLC0415

    if decision.action == "pass" and not decision.ours:
        return ()
    request = case.requests[0]
    added = []
    # -w pins the node count too, so only where that is fixed
    fixed = bool(decision.nodes) or (request.nodes_given and request.nodes_min == request.nodes_max)
    exact = bool(decision.pool) and fixed and case.settings["steer.form"] == "nodelist"
    if exact:
        added.append(f"--nodelist={hostlist.fold(decision.pool)}")
    elif decision.excludes:
        added.append(f"--exclude={hostlist.fold({*request.exclude, *decision.excludes})}")
    if decision.nodes and not request.nodes_given:
        added.append(f"--nodes={decision.nodes}")
    asked = mark.parse(request.comment)
    # an option on the command line reaches every component of a script
    if (not request.comment or asked is not None) and all(r.comment == request.comment for r in case.requests):
        told = case.directives
        before = asked or mark.Mark()
        comment = mark.text(mark.Mark(
            mode="avoid" if decision.ours else decision.action, snapshot=decision.snapshot, seed=decision.seed,
            excludes=hostlist.fold(request.exclude),
            pipeline=told.pipeline or before.pipeline, stage=told.stage or before.stage,
            demand=told.demand or before.demand, checkpoint=told.checkpoint or before.checkpoint,
        ))  # fmt: skip
        if len(comment) <= mark.MAX_COMMENT:
            added.append(f"--comment={comment}")
    return _plain(added)


def _plain(words: Sequence[str]) -> tuple[str, ...]:
    """The words, if each is a line of printable ASCII: published files and live names are not believed to be so."""
    from ..common.errors import RequestError  # noqa: PLC0415

    for word in words:
        if not (word.isascii() and word.isprintable() and " " not in word):
            raise RequestError("a node name or snapshot id holds strange characters")
        if len(word) > MAX_WORD:
            raise RequestError("the list of nodes is longer than an argument of a program may be")
    return tuple(words)


def _position(argv: Sequence[str], command: CommandLine, added: Sequence[str]) -> int | None:
    """Where to insert: in front, where the user's own arguments don't set the same; else right before the script.

    None where the arguments can't be told for sure (an unknown option, components with `:`).
    """
    names = {word[2:].partition("=")[0] for word in added}
    if not command.known:
        return None if any(_may_set(word) for word in argv) else 0
    if not names & command.sets:
        return 0
    if command.components > 1:
        return None
    return command.insert


def _may_set(word: str) -> bool:
    """A word that could set one of our options, whatever stands before it."""
    if word.startswith("--"):
        return word[2:5] in ("exc", "nod", "com") or len(word) < 5
    return word.startswith("-") and any(letter in word for letter in "xwNF")


def _text(added: Sequence[str], position: int, told: Sequence[str]) -> str:
    lines = [f"workhorse 1 {position} {len(added)}"]
    lines += [f"+{word}" for word in added]
    lines += [f"#{printable(note)}" for note in told]
    return "\n".join([*lines, "end", ""])


def notes(case: Case, decision: Decision) -> list[str]:
    """What the user is told on a terminal."""
    found = (*case.directives.errors, wrong_mode(), _note(decision, case.settings["steer.mode"]))
    return [note for note in found if note]


def _note(decision: Decision, mode: str) -> str:
    """What is done to the job; nothing where we only observe, as nobody's job is another then."""
    from ..common import hostlist  # noqa: PLC0415

    if mode == "observe":
        return ""
    if decision.total and not decision.pool:
        nodes = "1 node" if decision.nodes == 1 else f"{decision.nodes} nodes"
        return f"asked for {nodes}: a demand of {decision.total:.0f} MiB" if decision.nodes else decision.reason
    if decision.action == "steer":
        return f"chosen {hostlist.fold(decision.pool)} of {len(decision.candidates)} nodes"
    if decision.action == "avoid":
        return f"left out {hostlist.fold(decision.excludes)} ({decision.reason})"
    return ""


def printable(text: str) -> str:
    """One line without control characters, for a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)[:400]


def log_line(case: Case, decision: Decision, why: str, *, by: str, applied: bool, ms: float) -> str:
    """The line for syslog."""
    from ..common import hostlist  # noqa: PLC0415
    from ..published import decision_log  # noqa: PLC0415

    request = case.requests[0]
    return decision_log.line(
        decision, by=by, match=why, applied=applied, method=case.scores.method, partition=request.partition[:64],
        pipeline=case.directives.pipeline, stage=case.directives.stage, user_excludes=hostlist.fold(request.exclude),
        ms=round(ms, 1),
    )  # fmt: skip
