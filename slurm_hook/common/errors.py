"""Exceptions of both halves. Each class carries its exit code; libraries raise, the command line converts.

A message names the input, the reason and the mend. Unexpected errors are not wrapped: they keep their traceback.
"""

from __future__ import annotations

EXIT_CODES = (
    (0, "done"),
    (1, "failed: the message says what and how to mend it"),
    (2, "usage: options, arguments or settings are wrong"),
    (3, "done, but some input was set aside (see the closing line)"),
    (69, "Slurm or slurmdbd did not answer"),
    (75, "another run holds the lock: try again later"),
)


class WorkhorseError(Exception):
    """Base of everything this project raises on purpose."""

    exit_code = 1


class UsageError(WorkhorseError):
    """Wrong options or arguments."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is unknown, of the wrong type or out of range."""


class InputError(WorkhorseError):
    """A file or record given to us can't be read as what it should be."""


class SnapshotError(WorkhorseError):
    """A published file is missing, damaged, too old or can't be trusted."""


class HostlistError(InputError):
    """A node list can't be expanded."""


class RequestError(WorkhorseError):
    """sbatch's print-out of its options was not what was expected: pass the call through."""


class RefusedError(RequestError):
    """sbatch itself can't make anything of a call; `said`: its own words, control characters and all."""

    def __init__(self, message: str, said: str = "") -> None:
        super().__init__(message)
        self.said = said


class PlacementError(WorkhorseError):
    """No set of nodes can hold the task."""


class SlurmError(WorkhorseError):
    """A Slurm command failed, timed out or is missing."""

    exit_code = 69


class StoreError(WorkhorseError):
    """The history database is unusable, locked or full; nothing was half-written."""


class BusyError(WorkhorseError):
    """Another process holds the lock."""

    exit_code = 75
