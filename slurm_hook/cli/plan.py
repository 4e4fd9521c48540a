"""`workhorse plan`: what the wrapper would do with an sbatch call, and why, without submitting anything."""

from __future__ import annotations

import json
import os
import time

import click

from ..common import hostlist
from ..common.config import MODES, Settings
from ..common.errors import RefusedError, RequestError, SlurmError, UsageError
from ..common.installed import trusted_uids
from ..common.record import TYPE_CHECKING
from ..common.terminal import json_option
from ..explain.replay import rank_words
from ..published.snapshot import read_scores_later
from ..slurm import cluster, sbatch_options
from ..submit import batch_script, wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..decision.case import Candidate, Case, Decision

PATIENCE = 20.0  # seconds: nobody's submission waits for this
OWN = ("--json", "--sbatch", "--scores", "--mode", "--seed")


def real_sbatch(path: str) -> str:
    """The first sbatch in a PATH that is a binary. Raises SlurmError where there is none."""
    for folder in path.split(":"):
        found = os.path.join(folder or ".", "sbatch")
        try:
            with open(found, "rb") as file:
                if file.read(4) == wrapper.ELF:
                    return found
        except OSError:
            continue
    raise SlurmError("there is no sbatch in PATH that is a binary; name one with --sbatch")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@json_option
@click.option("--sbatch", "sbatch", type=click.Path(), help="the real sbatch; default: the first binary of that name in PATH")
@click.option("--scores", "folder", type=click.Path(), help="folder of the published files; default: [publish] path")
@click.option("--mode", type=click.Choice(MODES[1:]), help="judge as in this mode; default: the site's")
@click.option("--seed", type=click.IntRange(1, 2**63), help="draw as with this seed, such as that of a job's mark (r=…)")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def plan(settings: Settings, arguments: tuple[str, ...], folder: str | None, sbatch: str | None, **how: Any) -> None:
    """Show what would happen to `sbatch ARGUMENTS`, and why; nothing is submitted.

    Lists the nodes that could hold the job with fit, capability and probability, and the nodes of one draw. A submission
    draws anew, so it may get others.

    Example: workhorse plan -N4 --gpus-per-node=8 train.sh
    """
    if not arguments:
        raise UsageError("plan needs sbatch's arguments: workhorse plan -N4 job.sh")
    call = wrapper.Call(
        folder or settings.publish.path, sbatch or real_sbatch(os.environ.get("PATH", "")), "", PATIENCE, arguments
    )
    if how["mode"]:
        os.environ.pop(wrapper.VARIABLE, None)
    found = None if passed(settings, how["mode"]) else _consider(call, how["mode"], how["seed"])
    if found is None:
        reason = passed(settings, how["mode"]) or _not_ours(call)
        untouched = {"action": "pass", "reason": reason, "match": "", "added": []}
        click.echo(json.dumps(untouched, indent=1) if how["as_json"] else f"passed through: {reason}")
        return
    click.echo(json.dumps(_as_json(*found), indent=1) if how["as_json"] else text(*found))


def passed(settings: Settings, mode: str | None) -> str:
    """Why nothing would be looked at here and now, "" where it would. mode: what was asked for, whatever holds now."""
    path = os.path.join(os.path.dirname(settings.source), "disable")
    if mode:
        return ""
    if os.environ.get(wrapper.VARIABLE, "").lower() == "off":
        return f"{wrapper.VARIABLE}=off"
    return f"{path} exists; `workhorse enable` removes it" if os.path.exists(path) else ""


def _not_ours(call: wrapper.Call) -> str:
    rules = Settings.from_mapping(read_scores_later(call.publish, trusted_uids=trusted_uids())[0].settings)
    if rules["steer.mode"] == "off":
        return "mode off"
    return (
        f"not ours (mode {rules['steer.mode']}; [match] wants {rules['match.min_nodes']} nodes or more, or another of its rules)"
    )


def _consider(call: wrapper.Call, mode: str | None, seed: int | None) -> tuple[Case, Decision, str] | None:
    command = sbatch_options.read(call.argv)
    if not command.wrapped and command.script >= len(call.argv):
        raise UsageError("plan needs the script as a file, or --wrap: a script on stdin can't be read twice")
    uids = trusted_uids()
    scores, nodes = read_scores_later(call.publish, trusted_uids=uids)
    if mode:
        scores = scores._replace(settings={**scores.settings, "steer.mode": mode})
    script = batch_script.read(call.argv, command)
    try:
        asked = wrapper.ask(call, command, script)
    except RequestError as err:
        raise RequestError(f"passed through: {err}") from err
    query = cluster.NodeQuery(wrapper.scontrol_of(call), PATIENCE)
    try:
        return wrapper.consider(
            call, command, script, scores, asked=asked, query=query, nodes=nodes, deadline=time.monotonic() + PATIENCE, uids=uids,
            seed=seed,
        )  # fmt: skip
    except RefusedError as err:
        raise RequestError(_refusal(err, call.argv)) from err
    except RequestError as err:
        raise RequestError(f"passed through: {err}") from err
    finally:
        cluster.end(asked)
        query.end()


def _refusal(err: RefusedError, argv: Sequence[str]) -> str:
    """What sbatch itself says against the call: what is no row of its list of options."""
    lines = [line for line in err.said.split("\n") if line.strip() and not line.startswith("sbatch: ")]
    lines = [line for line in err.said.split("\n") if line.startswith("sbatch: error: ")] or lines or [f"nothing ({err})"]
    own = "; options of plan itself stand before those of sbatch" if any(w.partition("=")[0] in OWN for w in argv) else ""
    return f"sbatch refuses this: {wrapper.printable(' '.join(lines))}{own}"


def text(case: Case, decision: Decision, why: str) -> str:
    """The plan for people: what is done, the options added, the candidates."""
    words = {
        "pass": "passed through", "avoid": "some nodes left out", "steer": "confined to a drawn pool",
        "control": "left untouched, to compare others with",
    }  # fmt: skip
    watched = case.settings["steer.mode"] == "observe" and decision.action != "pass"
    lines = [f"{words[decision.action]}: {decision.reason}", f"ours by: {why}"]
    if watched:
        lines.insert(0, "mode observe: the job stays as it is; in another mode it would be:")
    lines.append(f"mode {case.settings['steer.mode']}, method {case.scores.method}, scores {case.scores.id}")
    if decision.pool:
        lines.append(f"pool: {hostlist.fold(decision.pool)} ({_demand(decision)}, cost rank {decision.rank:.2f})")
        lines += [rank_words(decision.rank)] if case.scores.method == "attributed" else []
    added = wrapper.arguments(case, decision)
    if added:
        lines.append(("would be added: " if watched else "added: ") + " ".join(added))
    lines += [f"note: {wrapper.printable(error)}" for error in case.directives.errors]
    if decision.candidates:
        lines += ["", f"{'NODE':<16} {'FREE_MIB':>9} {'FIT':>6} {'CAPABILITY':>10} {'PROBABILITY':>11}  NOW"]
        lines += [_row(c, decision) for c in sorted(decision.candidates, key=lambda c: (-c.probability, c.name))]
    return "\n".join(lines)


def _demand(decision: Decision) -> str:
    return f"demand {decision.total:.0f} MiB in all" if decision.total else f"demand {decision.demand:.0f} MiB on each node"


def _row(c: Candidate, decision: Decision) -> str:
    capability = "-" if c.capability is None else f"{c.capability:.3g}"
    notes = [c.against] if c.against else []
    notes += ["drawn"] if c.name in decision.pool else ["left out"] if c.name in decision.excludes and not decision.pool else []
    now = "yes" if c.startable else "no"
    chance = f"{c.probability:.4f}" if decision.pool else "-"  # without a draw there is none
    numbers = f"{c.name:<16} {c.capacity:>9.0f} {c.fit:>6.2f} {capability:>10} {chance:>11}"
    return f"{numbers}  {now:<4} {' '.join(notes)}".rstrip()


def _as_json(case: Case, decision: Decision, why: str) -> dict[str, Any]:
    found = decision._asdict()
    found["candidates"] = [c._asdict() for c in decision.candidates]
    return {**found, "match": why, "mode": case.settings["steer.mode"], "added": list(wrapper.arguments(case, decision))}
