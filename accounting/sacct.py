"""The only place that runs sacct. Rows come out as lists of text, whatever users put into their job names.

Rows are ended by count, not by line: with --parsable every field is followed by the delimiter, which is made up for
each call and so cannot occur in any field; line breaks, bars and broken bytes inside fields then do no harm.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from slurm_hook.errors import SlurmError

from . import records


class SlurmTimeout(SlurmError):
    """The answer took too long or was too large: ask for less."""


_READ = 1 << 20
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
        done = subprocess.run(
            list(argv), capture_output=True, timeout=timeout, env=clean_environment(), stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]}: no answer within {timeout:g} s; see whether slurmdbd and slurmctld run") from None
    except OSError as err:
        raise SlurmError(f"{argv[0]}: can't be run ({err.strerror})") from err
    if done.returncode:
        words = _last_words(done.stderr)
        raise SlurmError(f"{argv[0]} failed (exit code {done.returncode}): {words}; see whether slurmctld and slurmdbd run")
    return done.stdout.decode("utf-8", "surrogateescape")


def require(command: str) -> None:
    """Raises SlurmError when a command isn't in PATH."""
    if shutil.which(command) is None:
        raise SlurmError(f"{command}: not in PATH; run where Slurm's commands are, or read a dump with `collect --file`")


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
        if cluster:
            self.argv.append(f"--clusters={cluster}")
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
                _end(child)
                child.wait()
                if child.stdout:
                    child.stdout.close()
            if child.returncode:
                stderr.seek(0)
                words = _last_words(stderr.read())
                too_large = "size limit" in words or "range" in words
                raise (SlurmTimeout if too_large else SlurmError)(
                    f"sacct failed (exit code {child.returncode}): {words}; see whether slurmdbd runs"
                )

    def _watched(self, child: subprocess.Popen[bytes], stdout: IO[bytes]) -> Iterator[list[str]]:
        expired = threading.Event()

        def end() -> None:
            expired.set()
            _end(child)

        timer = threading.Timer(self.timeout, end)
        timer.daemon = True
        timer.start()
        try:
            yield from split_rows(stdout, self.delimiter, len(self.fields))
            child.wait()
        finally:
            timer.cancel()
            if expired.is_set():
                raise SlurmTimeout(
                    f"sacct: not done within {self.timeout:g} s ([slurm] timeout); ask for less with [history] window_hours,"
                    " or see why slurmdbd is slow"
                )


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a command that still runs, with what it started: a site's sacct may be a wrapper whose child keeps the pipe."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)


def split_rows(stream: IO[bytes], delimiter: str, width: int) -> Iterator[list[str]]:
    """Rows of `width` fields, each field followed by the delimiter and each row by a line break.

    Raises SlurmError when the output ends inside a row.
    """
    mark, rest, fields = delimiter.encode(), b"", []
    while block := stream.read(_READ):
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
