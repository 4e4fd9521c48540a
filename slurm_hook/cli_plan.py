"""`workhorse plan`: what the wrapper would do with an sbatch call, and why, without submitting anything."""

from __future__ import annotations

import json
import os
import time

import click

from . import cluster, hostlist, options, wrapper
from .config import Settings
from .errors import RequestError, SlurmError, UsageError
from .installed import trusted_uids
from .light import TYPE_CHECKING
from .snapshot import read_scores_later

if TYPE_CHECKING:
    from typing import Any

    from .decide import Candidate, Case, Decision

PATIENCE = 20.0  # seconds: nobody's submission waits for this


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
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.option("--sbatch", "sbatch", type=click.Path(), help="the real sbatch; default: the first binary of that name in PATH")
@click.option("--scores", "folder", type=click.Path(), help="folder of the published files; default: [publish] path")
@click.option("--mode", type=click.Choice(["observe", "avoid", "steer"]), help="judge as in this mode; default: the site's")
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
    case, decision, why = _consider(call, how["mode"], how["seed"])
    click.echo(json.dumps(_as_json(case, decision, why), indent=1) if how["as_json"] else text(case, decision, why))


def _consider(call: wrapper.Call, mode: str | None, seed: int | None) -> tuple[Case, Decision, str]:
    command = options.read(call.argv)
    if not command.wrapped and command.script >= len(call.argv):
        raise UsageError("plan needs the script as a file, or --wrap: a script on stdin can't be read twice")
    uids = trusted_uids()
    scores, nodes = read_scores_later(call.publish, trusted_uids=uids)
    if mode:
        scores = scores._replace(settings={**scores.settings, "steer.mode": mode})
    script = wrapper.script_of(call, command)
    asked = wrapper.ask(call, command, script)
    query = cluster.NodeQuery(wrapper.scontrol_of(call), PATIENCE)
    try:
        found = wrapper.consider(
            call, command, script, scores, asked=asked, query=query, nodes=nodes, deadline=time.monotonic() + PATIENCE, uids=uids,
            seed=seed,
        )  # fmt: skip
    except RequestError as err:
        raise RequestError(f"passed through: {err}") from err
    finally:
        cluster.end(asked)
        query.end()
    if found is None:
        rules = Settings.from_mapping(scores.settings)
        raise RequestError(
            f"passed through: not ours (mode {rules['steer.mode']}; [match] wants {rules['match.min_nodes']} nodes or more, "
            "or another of its rules)"
        )
    return found


def text(case: Case, decision: Decision, why: str) -> str:
    """The plan for people: what is done, the options added, the candidates."""
    words = {
        "pass": "passed through", "avoid": "some nodes left out", "steer": "confined to a drawn pool",
        "control": "left untouched, to compare others with",
    }  # fmt: skip
    lines = [f"{words[decision.action]}: {decision.reason}", f"ours by: {why}"]
    lines.append(f"mode {case.settings['steer.mode']}, method {case.scores.method}, scores {case.scores.id}")
    if decision.pool:
        lines.append(f"pool: {hostlist.fold(decision.pool)} ({_demand(decision)}, cost rank {decision.rank:.2f})")
    added = wrapper.arguments(case, decision)
    if added:
        lines.append("added: " + " ".join(added))
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
    numbers = f"{c.name:<16} {c.capacity:>9.0f} {c.fit:>6.2f} {capability:>10} {c.probability:>11.4f}"
    return f"{numbers}  {now:<4} {' '.join(notes)}".rstrip()


def _as_json(case: Case, decision: Decision, why: str) -> dict[str, Any]:
    found = decision._asdict()
    found["candidates"] = [c._asdict() for c in decision.candidates]
    return {**found, "match": why, "mode": case.settings["steer.mode"], "added": list(wrapper.arguments(case, decision))}
