"""The map of the code in CONTRIBUTING.md: `python -m tests.rooms` writes it anew from the modules' own first sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "CONTRIBUTING.md"
MARKS = ("<!-- rooms -->\n", "<!-- /rooms -->\n")

# In the order in which data goes through: each module stands in one room.
ROOMS: tuple[tuple[str, str, str], ...] = (
    ("accounting", "Slurm's accounting → rows", "sacct events nodes source pyslurm_source dump repair dump_json times"),
    (
        "accounting",
        "Rows → attempts and tasks → SQLite",
        "records convert collect store bulk members earlier schema sqlite_words maintenance",
    ),
    ("accounting", "SQLite → columns, the scorer's input", "columns history settled culprits failed_steps truncate trust"),
    ("accounting", "The published method", "capability theilsen"),
    ("accounting", "The attributed method", "attribution exposure stretches failures blame groups outliers"),
    ("accounting", "Scores and what follows from them", "scoring carried refresh publish lemons suspects renew"),
    ("accounting", "Is it right, does it help", "backtest effect treatment decisions"),
    ("accounting", "Telling people", "explain story long report progress report_html metrics doctor doctor_slurm doctor_site"),
    ("accounting", "Commands", "cli cli_marks cli_db cli_scores cli_lemons cli_report cli_metrics cli_doctor cli_effect"),
    ("slurm_hook", "The contract between the halves", "snapshot luatable installed"),
    ("slurm_hook", "What a call asks for", "options request batch directives match hints"),
    ("slurm_hook", "What the cluster has now", "cluster nodeinfo jobs reasons topology bounded commands"),
    ("slurm_hook", "The decision, pure", "case decide candidates feasible sure placement wheel drawing spare sizing"),
    ("slurm_hook", "Ways in", "wrapper clifilter mark log"),
    (
        "slurm_hook",
        "Stages that wait",
        "pipeline queue priority waiting lost heads dispatch budget passes watching guard requeue reorder",
    ),
    ("slurm_hook", "Why it was so", "explain replay logfiles"),
    ("slurm_hook", "Commands", "cli cli_plan cli_explain cli_nodes cli_submit cli_queue cli_dispatch cli_hints table"),
    ("slurm_hook", "Ground", "errors config light hostlist job_ids toml terminal reference manual"),
)


def first_sentence(path: Path) -> str:
    """What a module says of itself, up to its first full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0].replace("|", "\\|")


def rooms_of(package: str) -> Iterator[str]:
    """The table of one package."""
    yield f"**`{package}/`**: {first_sentence(ROOT / package / '__init__.py')}.\n\n| room | module | duty |\n|---|---|---|\n"
    for folder, room, modules in ROOMS:
        if folder == package:
            for number, name in enumerate(modules.split()):
                yield f"| {room if number == 0 else ''} | {name} | {first_sentence(ROOT / package / f'{name}.py')} |\n"
    yield "\n"


def written(text: str) -> str:
    """CONTRIBUTING.md with the map as the code is now."""
    start, end = (text.index(mark) for mark in MARKS)
    tables = "".join(line for package in ("accounting", "slurm_hook") for line in rooms_of(package))
    return f"{text[: start + len(MARKS[0])]}\n{tables}{text[end:]}"


if __name__ == "__main__":
    TARGET.write_text(written(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
