# ruff: noqa: E501 - tables
"""What a call of sbatch is made of: parts in slots, which make one bash program; and how the program is run and looked at."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import NamedTuple


class Part(NamedTuple):
    """One droppable piece. slot: line (of the script, for printf %b), setup, limit, env, name, option, script, argument, redirect."""

    slot: str
    text: str


@dataclass(frozen=True)
class Call:
    """site: which installation of ours it goes through; merged: stdout and stderr are one pipe; kill: signal, seconds until
    it comes, and whether the whole process group gets it; probe: look at sbatch itself, held up by a full stderr; runs: the
    job is to run, and says what it sees."""

    parts: tuple[Part, ...]
    site: str = "steer"
    merged: bool = False
    kill: tuple[signal.Signals, float, bool] | None = None
    probe: bool = False
    runs: bool = False

    def texts(self, slot: str) -> list[str]:
        """Texts of the parts in a slot, in order."""
        return [part.text for part in self.parts if part.slot == slot]

    def without(self, place: int) -> Call:
        """The same without one part."""
        return replace(self, parts=self.parts[:place] + self.parts[place + 1 :])

    def program(self) -> str:
        """The bash program; $S is the sbatch to call, $J the script."""
        lines = ["J=$PWD/j"]
        if self.texts("line"):
            lines.append(f"printf %b {' '.join(self.texts('line'))} >j; chmod 755 j")
        lines += self.texts("setup") + self.texts("limit")
        env = sorted(self.texts("env"), key=lambda text: not text.startswith("-u"))
        name = "" if env else "".join(f"-a {text} " for text in self.texts("name"))
        words = [f"exec {name}{'env ' if env else ''}{' '.join([*env, chr(34) + '$S' + chr(34)])}"]
        for slot in ("option", "script", "argument", "redirect"):
            words += self.texts(slot)
        lines.append(" ".join(words))
        return "; ".join(lines)

    def told(self) -> str:
        """A line that shows the call, as it is in a report."""
        line = self.program()
        if self.merged:
            line += " 2>&1"
        if self.kill:
            number, after, group = self.kill
            line += f"   # {number.name} to {'its process group' if group else 'it'} after {after * 1000:.0f} ms"
        return f"[{self.site}] {line}"
