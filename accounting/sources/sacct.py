"""The only place that runs sacct. Rows come out as lists of text, whatever users put into their job names.

Rows are ended by count, not by line: with --parsable every field is followed by the delimiter, which is made up for
each call and so cannot occur in any field; line breaks, bars and broken bytes inside fields then do no harm.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from slurm_hook.common import bounded
from slurm_hook.common.errors import SlurmError

from . import records


class SlurmTimeout(SlurmError):
    """The answer took too long or was too large: ask for less."""


_IDS_AT_ONCE = 200  # an argument list has an end, and slurmdbd's patience too


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for Slurm's commands: epoch times, plain locale, nothing that changes what is shown."""
    unwanted = ("SACCT_", "SQUEUE_", "SINFO_", "SCONTROL_", "SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SLURM_BITSTR_LEN")
    kept = {k: v for k, v in (environ or os.environ).items() if not k.startswith(unwanted)}
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}


def run(argv: Sequence[str], timeout: float) -> str:
    """Output of a short Slurm command, surrogateescape. Raises SlurmError: missing, failed, or no answer in time."""
    require(argv[0])
    try:
        code, out, stderr = bounded.run(argv, timeout, env=clean_environment())
    except bounded.Expired:
        raise SlurmError(f"{argv[0]}: no answer within {timeout:g} s; see whether slurmdbd and slurmctld run") from None
    except OSError as err:
        raise SlurmError(f"{argv[0]}: can't be run ({err.strerror})") from err
    if code:
        raise SlurmError(f"{argv[0]} failed (exit code {code}): {_last_words(stderr)}; see whether slurmctld and slurmdbd run")
    return out.decode("utf-8", "surrogateescape")


def require(command: str) -> None:
    """Raises SlurmError when a command isn't in PATH."""
    if shutil.which(command) is None:
        raise SlurmError(f"{command}: not in PATH; run where Slurm's commands are (for a dump: workhorse collect --file)")


def _last_words(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return " / ".join(lines[-3:])[:500] or "no message"


def known_fields(timeout: float) -> list[str]:
    """The fields of `records.FIELDS` (and their stand-ins) that this Slurm has. One unknown field fails a whole call."""
    have = {name.lower() for name in run(["sacct", "--helpformat"], timeout).split()}
    wanted = []
    for field in records.FIELDS:
        name = next((n for n in (field.name, *field.instead) if n.lower() in have), None)
        if name and name not in wanted:
            wanted.append(name)
    if not {"Submit", "State", "NodeList"} <= set(wanted):
        raise SlurmError("sacct --helpformat doesn't name the fields that are needed; see whether sacct in PATH is Slurm's own")
    return wanted


class Query:
    """One sacct call: a window of time, or jobs by number (over all time since `start`). Times are epoch seconds."""

    def __init__(
        self, start: int, end: int, *, cluster: str = "", jobs: Sequence[int] = (), timeout: float, fields: Sequence[str]
    ) -> None:
        self.fields, self.timeout = list(fields), timeout
        self.delimiter = f"\x1f{secrets.token_hex(4)}\x1f"
        self.argv = ["sacct", "--allusers", "--duplicates", "--parsable", "--noheader", "--noconvert",
                     f"--delimiter={self.delimiter}", f"--format={','.join(self.fields)}",
                     f"--starttime=uts{start}", f"--endtime=uts{end}"]  # fmt: skip
        # a federation may be set to show the jobs of all its members (fed_display): each is read on its own
        self.argv.append(f"--clusters={cluster}" if cluster else "--local")
        if jobs:
            self.argv.append(f"--jobs={','.join(map(str, jobs))}")

    def rows(self) -> Iterator[list[str]]:
        """Run sacct and give its rows as they come. Raises SlurmError when it fails or stays silent too long."""
        require("sacct")
        with tempfile.TemporaryFile() as stderr:
            try:
                child = subprocess.Popen(
                    self.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=clean_environment(),
                    start_new_session=True,
                )
            except OSError as err:
                raise SlurmError(f"sacct: can't be run ({err.strerror})") from err
            try:
                yield from self._watched(child, child.stdout)  # type: ignore[arg-type]
            finally:
                code = _end(child)
            if code:
                stderr.seek(0)
                words = _last_words(stderr.read())
                too_large = "size limit" in words or "range" in words
                raise (SlurmTimeout if too_large else SlurmError)(
                    f"sacct failed (exit code {code}): {words}; see whether slurmdbd runs"
                )

    def _watched(self, child: subprocess.Popen[bytes], stdout: IO[bytes]) -> Iterator[list[str]]:
        deadline = bounded.Deadline(self.timeout)
        try:
            yield from split_rows(lambda: deadline.read(stdout), self.delimiter, len(self.fields))
            deadline.wait(child)
        except bounded.Expired:
            raise SlurmTimeout(
                f"sacct: not done within {self.timeout:g} s ([slurm] timeout); ask for less with [history] window_hours,"
                " or see why slurmdbd is slow"
            ) from None


def _end(child: subprocess.Popen[bytes]) -> int:
    """End what still runs of a command and give its exit code: 0 where it had ended well before."""
    done = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    bounded.end(child)
    return child.returncode if done else 0


def split_rows(read: Callable[[], bytes], delimiter: str, width: int) -> Iterator[list[str]]:
    """Rows of `width` fields, each field followed by the delimiter and each row by a line break.

    Raises SlurmError when the output ends inside a row.
    """
    mark, rest, fields = delimiter.encode(), b"", []
    while block := read():
        parts = (rest + block).split(mark)
        rest = parts.pop()
        fields += [part.decode("utf-8", "surrogateescape") for part in parts]
        whole = len(fields) - len(fields) % width
        for i in range(0, whole, width):
            row = fields[i : i + width]
            row[0] = row[0].lstrip("\n")
            yield row
        del fields[:whole]
    if fields or rest.strip(b"\n"):
        raise SlurmError("sacct: its output ends inside a row; see whether it was killed, and run again")


def by_ids(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Jobs in lists that one call can take."""
    for i in range(0, len(ids), _IDS_AT_ONCE):
        yield ids[i : i + _IDS_AT_ONCE]
