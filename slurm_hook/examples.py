"""One or more examples for every command: shown in its help, in the man page and in the command reference.

A test parses each of them with the command's own options.
"""

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "collect": (
        ("workhorse collect", "what is new since the last run"),
        ("workhorse collect -S now-90days", "read the last 90 days anew"),
        ("workhorse collect --db history.db --file jobs.psv", "a dump made by `sacct -a -D -P`, no Slurm needed"),
    ),
}


def epilog(command: str) -> str:
    """The examples as the last paragraph of a command's help; empty where there is none."""
    lines = [f"  {line}\n      {what}" for line, what in EXAMPLES.get(command, ())]
    return "\b\nExamples:\n" + "\n".join(lines) if lines else ""
