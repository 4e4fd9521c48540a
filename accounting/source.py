"""Which way accounting is read: [slurm] backend."""

from __future__ import annotations

from typing import Any

from . import collect


def choose(settings: Any, stores: collect.Stores, cluster: str = "") -> collect.Source:
    """The source that [slurm] backend names; auto takes pyslurm where it fits the running Slurm. Raises SlurmError."""
    return collect.from_sacct(stores, settings.slurm.timeout, cluster)
