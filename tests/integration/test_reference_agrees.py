"""What is written from the code agrees with it, and every command explains itself. `python -m tests.reference` mends."""

import shlex

import pytest

from tests import manual, reference

pytestmark = pytest.mark.integration


def test_generated_files_agree_with_the_code():
    assert reference.stale() == [], "run python -m tests.reference"


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
