"""sbatch's command line as getopt reads it: where the script stands, and which options the arguments set.

Only what is needed to put our own options in front of the script: which options take their value from the next word.
What the table makes of a call is checked against sbatch's own print-out before anything relies on it.
"""

from __future__ import annotations

from ..common.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

# short options; those that take a value, 22.05 to 26.05
SHORT_VALUE = frozenset("AabBcCDdeFGiJLMmNnopqStwx")
SHORT_NAMES = {"N": "nodes", "x": "exclude", "w": "nodelist", "F": "nodefile", "M": "clusters", "J": "job-name", "n": "ntasks",
               "W": "wait", "h": "help", "V": "version"}  # fmt: skip
# long options without a value, or with one only after `=`: the next word is not theirs
LONG_FLAGS = (
    "contiguous", "consolidate-segments", "exclusive", "external", "get-user-env", "help", "hold", "ignore-pbs", "nice",
    "no-bell", "no-kill", "no-requeue", "overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot",
    "requeue", "resv-ports", "share", "spread-job", "spread-segments", "stepmgr", "test-only", "usage", "use-min-nodes",
    "verbose", "version", "wait",
)  # fmt: skip
LONG_VALUE = (
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters", "comment",
    "constraint", "container", "container-id", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task",
    "deadline", "delay-boot", "dependency", "distribution", "error", "exclude", "export", "export-file", "extra",
    "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres",
    "gres-flags", "hint", "input", "job-name", "kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mcs-label",
    "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nodefile", "nodelist", "nodes", "ntasks",
    "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-tres", "open-mode",
    "oom-kill-step", "output", "partition", "power", "prefer", "priority", "profile", "qos", "reservation", "resources",
    "segment", "signal", "sockets-per-node", "switches", "thread-spec", "threads-per-core", "time", "time-min", "tmp",
    "tres-bind", "tres-per-task", "uid", "wait-all-nodes", "wckey", "wrap",
)  # fmt: skip
SHORT_FLAGS = frozenset("hHkKOQsuvVW")
# whose value may name a file that sbatch reads
FILES = frozenset(("nodelist", "nodefile", "exclude", "bbf", "export-file"))
NO_JOB = frozenset(("test-only", "help", "usage", "version"))
STARTS = (b"#SBATCH", b"#SLURM")
MAX_SCRIPT = 65536  # bytes: no more is read of a script in a file
_ALL = LONG_FLAGS + LONG_VALUE


class CommandLine(Record):
    """script: position of the script among the arguments, their number where there is none (--wrap or stdin); insert:
    where an option can be put that comes after all others (before a `--`); sets: long names of the options that the
    arguments set, all components together; known: every option was in the table; components: as many as `:` makes;
    wrapped: there is a --wrap; quiet: positions of the words that hold -Q or --quiet."""

    script: int
    insert: int
    sets: frozenset[str]
    known: bool
    components: int
    wrapped: bool
    quiet: tuple[int, ...] = ()


def read(argv: Sequence[str]) -> CommandLine:
    """The command line by the table above. Never raises: what it can't tell is said by `known`."""
    sets: set[str] = set()
    quiet: list[int] = []
    known, components, i, dashes = True, 1, 0, 0
    while i < len(argv):
        word = argv[i]
        if word == "--":
            i += 1
            dashes = 1
            break
        if word == ":":
            components += 1
        elif word.startswith("--"):
            name = _long_name(word[2:].partition("=")[0])
            known = known and name != ""
            sets.add(name)
            if name == "quiet":
                quiet.append(i)
            if name in LONG_VALUE and "=" not in word:
                i += 1
        elif word.startswith("-") and len(word) > 1:
            takes_next, names = _short(word[1:])
            sets.update(names)
            if "Q" in names:
                quiet.append(i)
            i += takes_next
        else:
            break
        i += 1
    script = min(i, len(argv))
    return CommandLine(script, script - dashes, frozenset(sets), known, components, "wrap" in sets, tuple(quiet))


def without_quiet(argv: Sequence[str], command: CommandLine) -> list[str]:
    """The arguments without -Q and --quiet, beside which sbatch takes no -v. As they are where they aren't all understood."""
    words = list(argv)
    for i in command.quiet if command.known else ():
        words[i] = "" if words[i].startswith("--") else _without_letter(words[i])
    return [word for i, word in enumerate(words) if i not in command.quiet or word]


def files(words: Sequence[str]) -> list[str]:
    """Values among these words that may name a file which sbatch reads: rather too many than too few."""
    found = []
    for word, following in zip(words, [*words[1:], ""]):
        if word.startswith("--"):
            written, equals, value = word[2:].partition("=")
            if not written or _long_name(written) not in ("", *FILES):
                continue
            found.append(value if equals else following)
        elif word.startswith("-"):
            letter, value = _first_value(word[1:])
            if letter and (letter not in SHORT_VALUE or SHORT_NAMES.get(letter) in FILES):
                found.append(value or following)
    return found


def _first_value(letters: str) -> tuple[str, str]:
    """The first letter of a word of short options that takes a value, or may take one as it isn't known; and what follows it."""
    for place, letter in enumerate(letters):
        if letter not in SHORT_FLAGS:
            return letter, letters[place + 1 :]
    return "", ""


def directives(script: bytes) -> list[str]:
    """The words of a script's `#SBATCH` lines, as sbatch parts and unquotes them."""
    found: list[str] = []
    for line in head(script):
        start = next((word for word in STARTS if line.startswith(word)), b"")
        if start:
            found += _words(line[len(start) :].decode("utf-8", "surrogateescape"))
    return found


def head(script: bytes) -> list[bytes]:
    """The lines before the first that is neither blank nor a comment."""
    lines = script.split(b"\n")
    end = next((i for i, line in enumerate(lines) if line.strip() and not line.strip().startswith(b"#")), len(lines))
    return lines[:end]


def _words(line: str) -> list[str]:
    found, word, quote, escaped = [], "", "", False
    for letter in f"{line} ":
        if not quote and letter.isspace():  # a backslash doesn't keep a blank
            found += [word] if word else []
            word, escaped = "", False
        elif escaped or (quote and letter not in (quote, "\\")):
            word, escaped = word + letter, False
        elif letter == "\\":
            escaped = True
        elif letter in "\"'":
            quote = "" if quote else letter
        elif letter == "#":
            break
        else:
            word += letter
    return [*found, word] if word else found


def aloud(script: bytes) -> bytes:
    """The script without the directives that say nothing but -Q or --quiet; as it is where that may only be its head."""
    if (b"-Q" not in script and b"--quiet" not in script) or len(script) >= MAX_SCRIPT:
        return script
    lines = script.split(b"\n")
    for i, line in enumerate(head(script)):
        word = next((word for word in STARTS if line.startswith(word)), b"")
        said = {*line[len(word) :].split()} if word else set()
        lines[i] = b"#" if said and said <= {b"-Q", b"--quiet"} else line
    return b"\n".join(lines)


def _without_letter(word: str) -> str:
    """`-HQN2` without its Q, which doesn't stand in a value; "" where nothing is left."""
    end = next((i for i, letter in enumerate(word) if letter in SHORT_VALUE), len(word))
    left = word[:end].replace("Q", "") + word[end:]
    return left if left != "-" else ""


def _long_name(word: str) -> str:
    """The option that a possibly shortened name means; "" where none or several fit."""
    if word in _ALL:
        return word
    fitting = [name for name in _ALL if name.startswith(word)]
    return fitting[0] if len(fitting) == 1 else ""


def _short(letters: str) -> tuple[bool, set[str]]:
    """Of one word of short options: whether the last takes the next word as its value, and the names set."""
    names: set[str] = set()
    for place, letter in enumerate(letters):
        names.add(SHORT_NAMES.get(letter, letter))
        if letter in SHORT_VALUE:
            return place == len(letters) - 1, names
    return False, names
