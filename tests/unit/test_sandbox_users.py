"""The test users go with the last sandbox, also where several end at once."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.sandbox import claims, keeper, users


@pytest.fixture
def made(monkeypatch):
    """The users that the sandboxes of this test have made, and no real account."""
    there = set()

    def run(command, *words):
        there.add(words[-1]) if command == "useradd" else there.remove(words[-1])

    monkeypatch.setattr(claims, "PREFIX", f"slurm-sandbox-test-{os.getpid()}/")  # those that run on this machine don't count
    monkeypatch.setattr(users, "_run", run)
    monkeypatch.setattr(users, "_entry", lambda name: SimpleNamespace(pw_gecos=users.COMMENT) if name in there else None)
    monkeypatch.setattr(keeper, "sweep", lambda root, spared: None)
    monkeypatch.setattr(keeper, "remove_tree", lambda root: None)
    return there


def kept(name):
    """The keeper of a sandbox that is up, as far as the users go."""
    found = keeper.Keeper(keeper.Order(1, name, [], {}, None, False, "/checkout"))
    found.root = Path("/nonexistent") / name
    found.live = claims.claim(f"live/{found.root}")
    found.make_users()
    return found


def test_the_last_of_several_that_end_at_once_removes_the_users(made):
    sandboxes = [kept(name) for name in ("a", "b", "c")]  # all stay referenced: each process lives on after its `down`
    assert made == {*users.ORDINARY, users.SERVICE}
    for last, sandbox in ((False, sandboxes[1]), (False, sandboxes[0]), (True, sandboxes[2])):
        sandbox.down()
        assert bool(made) is not last
    assert not claims.held()


def test_a_real_account_of_that_name_stays(made, monkeypatch):
    sandbox = kept("a")
    monkeypatch.setattr(users, "_entry", lambda name: SimpleNamespace(pw_gecos="Alice of the third floor"))
    sandbox.down()
    assert made == {*users.ORDINARY, users.SERVICE}
