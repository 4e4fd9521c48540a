# ruff: noqa: E501 - tables
"""Draws calls: the same for the same seed and place. Most can be ours and submit; the rest is what people and tools do."""

from __future__ import annotations

import random
import shlex
import signal
from collections.abc import Sequence

from slurm_hook.slurm.sbatch_options import LONG_FLAGS, LONG_VALUE
from tests.fuzz import surroundings
from tests.fuzz.call import Call, Part
from tests.fuzz.sites import SITES

NODES = (
    "gpu03", "gpu03,gpu05", "gpu[03-04]", "gpu[01-03,07]", "gpu[02,04]", "gpu04,gpu09", "gpu03 gpu05", "gpu03,,gpu05", "nowhere1",
    "gpu[1-", "GPU01", "gpu[001]", "gpu05,gpu05", "{gpu05}", "gpu[01-14]", "None assigned", "", "zz1,gpu01", "gpu[0-70000]",
)  # fmt: skip
# long option, its letter, values; more often the further in front
VALUES: tuple[tuple[str, str, Sequence[str]], ...] = (
    ("nodes", "N", ("2", "2", "3", "4", "2-4", "1", "02", "99", "2-", "x", "", "2k", "-1", "0", "4-2")),
    ("exclude", "x", NODES),
    ("nodelist", "w", NODES),
    ("ntasks", "n", ("4", "64", "2", "1", "0", "x")),
    ("job-name", "J", ("a", "x y", "", "llama-%j", "$(id)", "a\nb", "-N2", "naïve", "nodes : 9")),
    ("comment", "", ("mine", "", "wh=1;p=llama;g=eval;d=100", "wh=1;m=avoid;s=x", "wh=", "a b", "\x1b[31m", "$(id)`id`")),
    ("partition", "p", ("llm", "small", "llm,small", "nowhere")),
    ("time", "t", ("5", "1-0", "10:00", "soon", "0")),
    ("gpus", "G", ("12", "16", "1", "gpu:8", "x")),
    ("gpus-per-node", "", ("2", "8", "9", "0")),
    ("gres", "", ("gpu:2", "gpu:8", "gpu:1", "none", "gpu:x", "nosuch:1")),
    ("mem", "", ("100", "0", "1G", "99999G", "x")),
    ("mem-per-cpu", "", ("100", "1G")),
    ("mem-per-gpu", "", ("100",)),
    ("ntasks-per-node", "", ("2", "8", "33")),
    ("gpus-per-task", "", ("1", "2")),
    ("cpus-per-task", "c", ("2", "1", "33")),
    ("constraint", "C", ("fast", "fast|slow", "fast&slow", "[fast*1&slow*1]", "nosuch", "#SBATCH", "(fast|slow)&fast")),
    ("dependency", "d", ("singleton", "afterok:999999", "x")),
    ("array", "a", ("0-3", "0-3%2", "5", "x")),
    ("begin", "b", ("now+1hour", "tomorrow")),
    ("output", "o", ("/dev/null", "x.out", "%j.out")),
    ("error", "e", ("/dev/null",)),
    ("input", "i", ("/dev/null", "none")),
    ("chdir", "D", ("/tmp", "/nowhere", ".")),
    ("export", "", ("ALL", "NONE", "ALL,A=1,B=x y", "A", "NIL")),
    ("account", "A", ("ml", "nobody")),
    ("qos", "q", ("normal", "nosuch")),
    ("reservation", "", ("nosuch",)),
    ("distribution", "m", ("block", "cyclic", "arbitrary", "x")),
    ("switches", "", ("1@5", "2")),
    ("signal", "", ("B:USR1@60", "TERM")),
    ("mail-type", "", ("NONE", "x")),
    ("licenses", "L", ("nosuch",)),
    ("open-mode", "", ("append", "x")),
    ("clusters", "M", ("sandbox", "nosuch")),
    ("nice", "", ()),
    ("wait-all-nodes", "", ("1",)),
    ("kill-on-invalid-dep", "", ("yes",)),
    ("threads-per-core", "", ("1",)),
    ("extra-node-info", "B", ("1:1:1",)),
    ("core-spec", "S", ("1",)),
    ("deadline", "", ("now+3days",)),
    ("hint", "", ("nomultithread",)),
    ("tmp", "", ("1",)),
    ("wckey", "", ("k",)),
    ("profile", "", ("none",)),
    ("no-such", "", ("3",)),
)  # fmt: skip
FLAGS = (
    ("hold", "H"), ("hold", "H"), ("parsable", ""), ("quiet", "Q"), ("verbose", "v"), ("exclusive", ""), ("requeue", ""),
    ("no-requeue", ""), ("contiguous", ""), ("spread-job", ""), ("overcommit", "O"), ("oversubscribe", "s"), ("no-kill", "k"),
    ("use-min-nodes", ""), ("ignore-pbs", ""), ("propagate", ""), ("test-only", ""), ("reboot", ""), ("version", "V"), ("help", "h"),
    ("usage", ""), ("get-user-env", ""), ("nonsense", "Z"), ("exclusive=user", ""), ("nice=5", ""), ("propagate=NONE", ""),
    ("parsable=1", ""), ("hold=1", ""), ("no-kill=off", ""),
)  # fmt: skip
# where the sandbox keeps its jobs' output is known to the shell that writes the script
DUMP = '"{ env -0; umask; ulimit -a; id; grep Sig[BIC] /proc/self/status; } >${SLURM_CONF%/etc/*}/out/dump-\\$SLURM_JOB_ID\\n"'
FILED = ("nodelist", "nodefile", "exclude", "export-file", "bbf")
SIGNALS = ("KILL", "TERM", "INT", "QUIT", "USR1", "USR2", "ALRM", "PIPE", "XCPU", "HUP")
NAMES = tuple(LONG_FLAGS + LONG_VALUE)


class Maker:
    """One call's dice."""

    def __init__(self, seed: object) -> None:
        self.dice = random.Random(str(seed))

    def chance(self, share: float) -> bool:
        """True for this share."""
        return self.dice.random() < share

    def near(self, choices: Sequence) -> object:  # type: ignore[type-arg]
        """One of these, more often one of the first."""
        return choices[min(int(self.dice.expovariate(4.0 / len(choices))), len(choices) - 1)]

    def call(self) -> Call:
        """A call."""
        if self.chance(0.02):
            return self.running()
        parts = surroundings.script(self)
        parts += self.options()
        parts += surroundings.around(self)
        parts += surroundings.delivery(self, parts)
        site = self.site()
        kill, probe = None, False
        if self.chance(0.06):
            kill = (
                signal.Signals["SIG" + self.dice.choice(SIGNALS)],
                round(self.dice.random() ** 1.5 * 0.15, 4),
                self.chance(0.3),
            )
        elif self.chance(0.05):
            probe = True
            parts.append(Part("option", "-v"))
        merged = not probe and self.chance(0.4)
        return Call(tuple(parts), site, merged, kill, probe)

    def site(self) -> str:
        """Which installation the call goes through."""
        return self.dice.choices(list(SITES), [site.weight for site in SITES.values()])[0]

    def running(self) -> Call:
        """A call whose job runs and writes down its environment and limits."""
        lines = [f"'#!/bin/bash{self.dice.choice(('', ' -l'))}\\n'", DUMP, f"'exit {self.dice.choice((0, 0, 3))}\\n'"]
        around = [part for part in surroundings.around(self) if part.slot != "redirect"]
        options = [
            f"-N{self.dice.randint(1, 2)}",
            "-p run -t5 -o /dev/null -D /tmp",
            *self.dice.sample(("--wait", "--export=A=1", "--export=ALL,B='x y'", "-v"), self.dice.randint(0, 1)),
        ]
        parts = [Part("line", line) for line in lines] + [Part("option", option) for option in options]
        stdin = self.dice.choice((Part("script", '"$J"'), Part("redirect", "<j"), Part("redirect", "< <(cat j)")))
        return Call((*parts, *around, stdin), self.site(), runs=True)

    def options(self) -> list[Part]:
        """Options on the command line."""
        words = [self.option() for _ in range(min(int(self.dice.expovariate(0.5)), 6))]
        if self.chance(0.65):
            words.insert(self.dice.randrange(len(words) + 1), self.dice.choice(("-N2", "-N 2", "--nodes=2", "-N3", "-HN2")))
        if self.chance(0.04):
            words.insert(self.dice.randrange(len(words) + 1), ":")
        return [Part("option", word) for word in words]

    def option(self) -> str:
        """One option in one of its forms, as shell text."""
        if self.chance(0.25):
            name, letter = self.dice.choice(FLAGS)
            return f"-{letter}" if letter and self.chance(0.5) else f"--{self.shortened(name)}"
        if self.chance(0.12):
            name, letter = self.dice.choice(FILED), ""
            return self.form(name, {"nodelist": "w", "exclude": "x", "nodefile": "F"}.get(name, ""), surroundings.filed(self))
        name, letter, values = self.near(VALUES)  # type: ignore[misc]
        return self.form(name, letter, shlex.quote(str(self.near(values)))) if values else f"--{name}"

    def form(self, name: str, letter: str, value: str) -> str:
        """An option with its value, a shell word."""
        if letter and self.chance(0.5):
            lead = self.dice.choice(("", "", "", "H", "k"))
            return f"-{lead}{letter}{'' if self.chance(0.5) and value != chr(39) * 2 else ' '}{value}"
        return f"--{self.shortened(name)}{'=' if self.chance(0.7) else ' '}{value}"

    def shortened(self, name: str) -> str:
        """Sometimes an abbreviation, which may be ambiguous."""
        if "=" in name or self.chance(0.75):
            return name
        least = next((n for n in range(2, len(name)) if sum(other.startswith(name[:n]) for other in NAMES) == 1), len(name))
        return name[: self.dice.randint(least if self.chance(0.9) else 1, len(name))]
