"""Which way accounting is read: [slurm] backend."""

from __future__ import annotations

from typing import Any

from slurm_hook.common.errors import SlurmError

from ..sources import pyslurm_source, records
from ..sources.pyslurm_source import UnfitError
from . import collect


def choose(settings: Any, stores: collect.Stores, cluster: str = "") -> collect.Source:
    """The source that [slurm] backend names. auto: pyslurm where it is installed, fits the running Slurm and can tell
    requeues, else sacct. Raises SlurmError when pyslurm is demanded and doesn't fit."""
    backend, timeout = settings.slurm.backend, settings.slurm.timeout
    cli = collect.from_sacct(stores, timeout, cluster)
    if backend == "cli":
        return cli
    try:
        module = pyslurm_source.fitting(timeout)
        if not pyslurm_source.tells_requeues(module):
            raise UnfitError("this pyslurm can't tell requeued jobs, of which it shows only the last attempt")
    except UnfitError as err:
        if backend == "pyslurm":
            raise SlurmError(f'[slurm] backend = "pyslurm": {err}; set it to "auto" or "cli"') from None
        return cli
    return from_pyslurm(module, stores, cli, cluster)


def why_not_pyslurm(timeout: float) -> str | None:
    """Why `auto` reads with sacct; None when it reads with pyslurm. For `workhorse doctor`."""
    try:
        module = pyslurm_source.fitting(timeout)
    except UnfitError as err:
        return str(err)
    return None if pyslurm_source.tells_requeues(module) else "this pyslurm can't tell requeued jobs"


def from_pyslurm(module: Any, stores: collect.Stores, cli: collect.Source, cluster: str = "") -> collect.Source:
    """pyslurm for windows, sacct for windows that pyslurm can't tell wholly and for what is asked by job number."""

    def window(start: int, end: int) -> collect.Counts:
        try:
            jobs = pyslurm_source.load(module, start, end, cluster)
        except UnfitError:
            return cli.window(start, end)
        rows = pyslurm_source.rows(jobs, pyslurm_source.tres_names(module))
        return collect.store_rows(stores, records.FIELD_NAMES, rows, source="pyslurm")

    return collect.Source(window, cli.jobs)
