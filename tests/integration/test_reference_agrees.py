"""What is written from the code agrees with it, and every command explains itself. `python -m slurm_hook.reference` mends."""

import re
import shlex
from pathlib import Path

import pytest

from slurm_hook import manual, reference

pytestmark = pytest.mark.integration


def test_generated_files_agree_with_the_code():
    assert reference.stale() == [], "run python -m slurm_hook.reference"


def test_every_command_has_help_and_examples_that_its_options_accept():
    for name, command in manual.commands():
        assert command.help, f"{name}: no help"
        assert all(text for _, text in manual.options(command)), f"{name}: an option without help"
        assert manual.examples(command), f"{name}: add a paragraph 'Example: workhorse {name} …' to its help"
        for line in manual.examples(command):
            words = shlex.split(line)
            assert words[: 1 + len(name.split())] == ["workhorse", *name.split()], line
            with command.make_context(name, words[1 + len(name.split()) :]):
                pass


def test_commands_that_texts_name_exist():
    """Documents, rules, units and messages name commands: each is one, with the options that stand beside it."""
    known = dict(manual.commands())
    root = Path(reference.ROOT)
    texts = [*root.glob("etc/**/*.md"), *root.glob("etc/**/*.yml"), *root.glob("etc/systemd/*"), root / "README.md",
             *root.glob("accounting/*.py"), *root.glob("slurm_hook/*.py")]  # fmt: skip
    named = 0
    for path in texts:
        for words in re.findall(r"[`/]workhorse ((?:[a-z]+)(?: [a-z]+)?(?: --?[a-z-]+)*)", path.read_text(encoding="utf-8")):
            parts = words.split()
            name = next((n for n in (" ".join(parts[:2]), parts[0]) if n in known), None)
            assert name, f"{path.name}: there is no `workhorse {words}`"
            options = {option for param in known[name].params for option in (*param.opts, *param.secondary_opts)}
            given = {part for part in parts if part.startswith("-")}
            assert given <= options, f"{path.name}: `workhorse {words}`: no option {given - options}"
            named += 1
    assert named > 30
