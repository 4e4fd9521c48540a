"""`workhorse submit`: the stages of a manifest as Slurm jobs chained by --dependency."""

from __future__ import annotations

import click

from ..common.record import TYPE_CHECKING
from ..common.terminal import json_option, tell
from ..pipelines import pipeline

if TYPE_CHECKING:
    from ..pipelines.pipeline import Stage


@click.command()
@click.argument("manifest", type=click.Path())
@click.option("-n", "--dry-run", is_flag=True, help="check all, print the sbatch calls, submit nothing")
@click.option("--name", help="name of the pipeline, in place of the manifest's: for a run of its own")
@click.option("--sbatch", default="sbatch", show_default=True, help="the sbatch to call")
@click.option("--parsable", is_flag=True, help="print stage|jobid only")
@json_option
def submit(manifest: str, *, dry_run: bool, name: str | None, sbatch: str, parsable: bool, as_json: bool) -> None:
    """Submit the stages of a pipeline manifest as jobs that wait for each other.

    All stages are checked first: unknown names, cycles and missing scripts are refused before anything is submitted. If
    sbatch refuses a later stage, those submitted before are cancelled. Jobs of yours under one name are one pipeline: where
    some of them still wait or run, you are told.

    Example: workhorse submit pipeline.toml --dry-run
    """
    checked = pipeline.read(manifest, name)
    rows: list[dict[str, object]] = []
    if dry_run:
        for stage, line in zip(checked.stages, pipeline.plan_lines(checked)):
            rows.append({"stage": stage.name, "after": dict(stage.after), "call": line})
            if not as_json:
                click.echo(line)

    def submitted(stage: Stage, job: int, marked: bool) -> None:
        after = f" after {', '.join(stage.after)}" if stage.after else ""
        note = "" if marked else " (has a comment of its own, which stays: the pipeline's name isn't recorded)"
        rows.append({"stage": stage.name, "after": dict(stage.after), "job": job, "marked": marked})
        if not as_json:
            click.echo(f"{stage.name}|{job}" if parsable else f"{stage.name}: job {job}{after}{note}")
        if pipeline.uncounted(stage, job):
            click.echo(
                f"workhorse submit: stage {stage.name}: its demand was not turned into a node count (sbatch here isn't "
                "workhorse's, or it is off or only observes); give nodes = … or it runs on as many as its options say",
                err=True,
            )

    if not dry_run:
        _tell_namesakes(checked.name)
        pipeline.submit(checked, submitted, sbatch)
    if as_json:
        tell("", {"pipeline": checked.name, "dry_run": dry_run, "stages": rows}, as_json=True)


def _tell_namesakes(name: str) -> None:
    there = pipeline.namesakes(name)
    if there:
        more = f" and {len(there) - 5} others" if len(there) > 5 else ""
        click.echo(
            f"workhorse submit: jobs {', '.join(there[:5])}{more} of yours belong to a pipeline {name}, too: with these they "
            "count as one, and share the hours that it has run; give a run of its own another name with --name",
            err=True,
        )
