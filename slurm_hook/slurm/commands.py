"""Slurm's commands for the command line and dispatch: list argv, a timeout, a controlled environment, errors that speak.

The submit path has its own leaner call (cluster.py); nothing here is imported by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..common import bounded
from ..common.errors import SlurmError

TIMEOUT = 60.0
# the caller's habits (SQUEUE_FORMAT, SACCT_FORMAT …) must not change what we read; SLURM_CONF and the like stay
_SCRUBBED = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SBATCH_")
_listeners: list[Callable[[], None]] = []


@contextmanager
def heard(listener: Callable[[], None]) -> Iterator[None]:
    """For the time of the block, `listener` is called whenever a command has ended, well or not: this process gets on."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def environment(extra: Mapping[str, str] | None = None, *, scrub: Sequence[str] = _SCRUBBED) -> dict[str, str]:
    """Our environment without format variables, with epoch times and a plain locale."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(tuple(scrub))}
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", **(extra or {})}


def run(argv: Sequence[str], *, timeout: float = TIMEOUT, text: str | None = None) -> str:
    """Output of a Slurm command. Raises SlurmError naming the command, what it said and what to do."""
    code, out, err = attempt(argv, timeout=timeout, text=text)
    if code != 0:
        said = err.strip() or out.strip() or "no message"
        raise SlurmError(f"{argv[0]} failed (exit code {code}): {said[:400]}")
    return out


def attempt(
    argv: Sequence[str], *, timeout: float = TIMEOUT, text: str | None = None, env: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Exit code, output and error output of a command. Raises SlurmError where it can't be run or doesn't end in time."""
    try:
        code, out, stderr = bounded.run(
            argv,
            timeout,
            env=env if env is not None else environment(),
            text=None if text is None else text.encode("utf-8", "surrogateescape"),
        )
    except FileNotFoundError as err:
        raise SlurmError(f"{argv[0]} is not in PATH; install Slurm's client commands or mend PATH") from err
    except OSError as err:
        raise SlurmError(f"{argv[0]} can't be started ({err.strerror})") from err
    except bounded.Expired as err:
        raise SlurmError(f"{argv[0]} did not end within {timeout:g} s; is slurmctld up? try `scontrol ping`") from err
    finally:
        for listener in _listeners:
            listener()
    return code, _text(out), _text(stderr)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
