"""Whose excludes are whose: the mark tells it of a new job, our memory of a known one, and the user's word wins."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.common import hostlist
from slurm_hook.common.errors import SnapshotError
from slurm_hook.dispatch import tracking
from slurm_hook.dispatch.tracking import State, Tracked
from slurm_hook.published import mark
from slurm_hook.published.mark import Mark
from tests.unit.jobs_made import NOW, job


def marked(**fields):
    return mark.text(Mark(**fields))


@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({}, True), ({"comment": "mine"}, False), ({"comment": ""}, False), ({"comment": marked(mode="control")}, False),
        ({"comment": marked(stage="a")}, True), ({"req_nodes": "n1"}, False), ({"reservation": "r"}, False),
        ({"priority": 0}, False), ({"state": "RUNNING"}, False), ({"dependency": "afterok:3"}, True),
        ({"label": "1_[2-3]"}, True),
        # what we can't read we can't keep either
        ({"excludes": "n1," * 20_001}, False), ({"excludes": "n[1-"}, False), ({"excludes": "n1," * 20_000}, True),
    ],
)  # fmt: skip
def test_which_jobs_dispatch_may_touch(changes, ours):
    assert tracking.concerns(job(**changes)) is ours


@pytest.mark.parametrize(
    ("comment", "excludes", "user", "ours", "confined", "hands_off"),
    [
        (marked(mode="avoid"), "n7", "", "n7", 0.0, False),
        (marked(mode="avoid", excludes="n1"), "n[1,7]", "n1", "n7", 0.0, False),
        (marked(mode="steer", excludes="n1"), "n[1,3-8]", "n1", "n[3-8]", NOW - 600, False),
        (marked(mode="steer"), "", "", "", 0.0, False),
        (marked(stage="a"), "n2", "n2", "", 0.0, False),  # nobody has decided: all are the user's
        (marked(mode="avoid", excludes="n1"), "n7", "n7", "", 0.0, True),  # the user took n1 off again
        # what can't be read, or names more than the job excludes, tells nothing of whose excludes these are
        ("wh=1;m=avoid;x=n[1-", "n7", "n7", "", 0.0, True),
        ("wh=1;m=steer;x=n[0-65535]", "n7", "n7", "", 0.0, True),
        ("wh=1;m=steer;x=n" + "[0]" * 320, "n7", "n7", "", 0.0, True),
    ],
)
def test_first_sight(comment, excludes, user, ours, confined, hands_off):
    got = tracking.adopt(job(comment=comment, excludes=excludes), None)
    assert (got.user, got.ours, got.confined, got.hands_off) == (user, ours, confined, hands_off)


@pytest.mark.parametrize(
    ("before", "excludes", "user", "ours", "hands_off"),
    [
        ("n6", "n[1,7]", "n1", "n7", False),  # as we set it
        ("n6", "n[1,6]", "n1", "n6", False),  # our last update isn't known to have arrived, and hasn't
        ("", "n1", "n1", "", False),  # our first
        ("n6", "n1", "n1", "", True), ("n6", "n9", "n9", "", True), ("n6", "n[1,7,9]", "n[1,7,9]", "", True),
        ("n6", "", "", "", True),
        # it is known: the user has cleared ours, or put back what was there before
        ("n7", "n1", "n1", "", True), ("n7", "n[1,6]", "n[1,6]", "", True), ("n7", "n[1,7]", "n1", "n7", False),
    ],
)  # fmt: skip
def test_known_jobs(before, excludes, user, ours, hands_off):
    known = Tracked(user="n1", ours="n7", before=before, culprits="n3")
    got = tracking.adopt(job(excludes=excludes), known)
    assert (got.user, got.ours, got.hands_off, got.culprits) == (user, ours, hands_off, "n3")
    assert hands_off or got.before == got.ours, "seen once, any other value is the user's word"
    if hands_off:  # for good: what the user sets later is the user's too
        again = tracking.adopt(job(excludes="n5"), got)
        assert (again.user, again.ours, again.hands_off) == ("n5", "", True)


NAMES = st.sets(st.sampled_from([f"n{i}" for i in range(1, 9)]))


@given(NAMES, NAMES)
def test_ours_and_the_users_add_up(user, ours):
    """What a wrapper of ours did is taken apart again, whatever it excluded."""
    given_job = job(comment=marked(mode="steer", excludes=hostlist.fold(user)), excludes=hostlist.fold(user | ours))
    got = tracking.adopt(given_job, None)
    assert not got.hands_off
    assert set(hostlist.expand(got.user)) == user
    assert set(hostlist.expand(got.ours)) == ours - user


def test_state_survives_and_is_private(tmp_path):
    path = tmp_path / "dispatch.json"
    assert tracking.read_state(str(path)) == State()
    state = State(tracked={7: Tracked(user="n1", confined=5.0)}, invested={"a/b": {"7@1": 2.0}}, seen={"a/b": NOW}, last_full=3.0)
    tracking.write_state(str(path), state)
    assert tracking.read_state(str(path)) == state
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "tracked": {"x": {}}}', '{"format": 1, "tracked": 3}']
)
def test_a_damaged_state_is_told_and_set_aside(tmp_path, content):
    path = tmp_path / "dispatch.json"
    path.write_text(content)
    with pytest.raises(SnapshotError, match="starts a new one"):
        tracking.read_state(str(path))
    tracking.discard(str(path))
    assert tracking.read_state(str(path)) == State()
    assert (tmp_path / "dispatch.json.damaged").read_text() == content


def test_pipelines_by_mark_and_by_dependency():
    found = [
        job(1, comment=marked(pipeline="llama")), job(2, comment="", dependency="afterok:1(unfulfilled)"),
        job(3, comment="own", dependency="afterany:2(unfulfilled)"), job(5, comment="", user="bob", dependency="afterok:1"),
        job(8, comment="", dependency="afterok:9(unfulfilled)"), job(9, comment=""), job(12, comment=marked(pipeline="llama")),
    ]  # fmt: skip
    assert tracking.groups(found, {}) == {
        1: "alice/llama", 2: "alice/llama", 3: "alice/llama", 5: "bob#5", 8: "alice#8", 9: "alice#8", 12: "alice/llama",
    }  # fmt: skip


RUN = "my_1c2d3e4f-0a1b-4c2d-8e3f-0123456789ab"


@pytest.mark.parametrize(
    ("name", "made_up"),
    [
        (RUN, True),
        (RUN[3:], True),
        (RUN.upper(), False),
        ("train", False),
        (RUN + "x", False),
        ("x" + RUN[3:], False),
        ("", False),
    ],
)
def test_names_that_a_program_made_up_for_one_run(name, made_up):
    assert tracking.is_run(name) is made_up


def test_what_is_published_of_chains_are_numbers_alone():
    assert tracking.numbers({7: "alice#3", 8: "alice/secret", 9: "o#dd#4"}) == {"7": 3, "9": 4}


def chain_seen(passes):
    """Names and invested hours after these passes, each a list of jobs."""
    state, now = State(), NOW
    for found in passes:
        group = tracking.groups(found, state.chains)
        invested, seen = tracking.invest(state, found, group, now)
        state = State(invested=invested, seen=seen, chains=tracking.remember(found, group))
        now += 60
    return group, {name: sum(parts.values()) for name, parts in state.invested.items()}


def plain(number, after=0, **changes):
    return job(number, **{"comment": "", "dependency": f"afterok:{after}(unfulfilled)" if after else "", **changes})


def ran(number, seconds, **changes):
    return plain(number, state="COMPLETED", start=NOW - 9000, end=NOW - 9000 + seconds, **changes)


@pytest.mark.parametrize(
    ("passes", "names", "invested"),
    [
        # met dependencies are forgotten, then the jobs themselves
        ([[plain(1), plain(2, 1), plain(3, 2)], [ran(1, 50), plain(2), plain(3, 2)], [plain(2), plain(3, 2)],
          [ran(2, 70), plain(3)]],
         {2: "alice#1", 3: "alice#1"}, {"alice#1": 120}),
        # a stage submitted later joins by a member that is still known
        ([[plain(1), plain(2, 1)], [plain(2)], [plain(2), plain(9, 2)]], {2: "alice#1", 9: "alice#1"}, {}),
        # two chains that a later stage joins become one, with what both have invested
        ([[ran(1, 10), plain(2, 1), ran(3, 20), plain(4, 3)],
          [plain(2), plain(4), plain(5, 2, dependency="afterok:2,afterok:4")]],
         {2: "alice#1", 4: "alice#1", 5: "alice#1"}, {"alice#1": 30}),
        # a member that its owner names names the chain
        ([[ran(1, 10), plain(2, 1)], [plain(2), plain(3, 2, comment=marked(pipeline="x"))]], {2: "alice/x", 3: "alice/x"},
         {"alice/x": 10}),
        # the number belongs to somebody else now
        ([[plain(1), plain(2, 1)], [plain(2, user="bob")]], {2: "bob#2"}, {}),
        # one after the other under the same name
        ([[ran(1, 30), plain(2, dependency="singleton(unfulfilled)"), plain(3, dependency="singleton(unfulfilled)")],
          [plain(2), plain(3, dependency="singleton(unfulfilled)"), plain(4, name="other"), plain(5, user="bob")], [plain(3)]],
         {3: "alice#1"}, {"alice#1": 30}),
        # a workflow's run by the name that its program made up for it
        ([[ran(1, 30, name=RUN), plain(2, name=RUN), plain(3, name="x"), plain(4, name=RUN, user="bob")], [plain(2, name=RUN)]],
         {2: "alice#1"}, {"alice#1": 30}),
        # an array, of which one task runs, and what waits for it; components of a het job
        ([[plain(1, label="1_[2-3]"), plain(5, label="1_1", state="RUNNING", start=NOW - 10), plain(6, 1)],
          [plain(5, label="1_1"), plain(6, 1)], [plain(6)]], {6: "alice#1"}, {"alice#1": 10}),
        ([[plain(1, label="1+0"), plain(2, label="1+1"), plain(3, 1)]], {1: "alice#1", 2: "alice#1", 3: "alice#1"}, {}),
        # a lone job is a pipeline of its own
        ([[ran(1, 10), plain(2)], [plain(2)]], {2: "alice#2"}, {}),
    ],
)  # fmt: skip
def test_chains_stay_together_when_slurm_forgets(passes, names, invested):
    assert chain_seen(passes) == (names, invested)


def test_chains_survive_in_the_state_file(tmp_path):
    path = str(tmp_path / "dispatch.json")
    tracking.write_state(path, State(chains={7: "alice#3"}))
    assert tracking.read_state(path).chains == {7: "alice#3"}
    data = json.loads((tmp_path / "dispatch.json").read_text())
    del data["chains"]  # as a version before wrote it
    (tmp_path / "dispatch.json").write_text(json.dumps(data))
    assert tracking.read_state(path).chains == {}


def test_invested_time_adds_up_over_attempts_and_is_forgotten_in_the_end():
    runs = job(1, state="RUNNING", start=NOW - 100, comment=marked(pipeline="x"))
    state = State()
    for start, now in ((NOW - 100, NOW), (NOW - 100, NOW + 50), (NOW + 60, NOW + 90)):  # requeued in between
        found = [runs._replace(start=start)]
        invested, seen = tracking.invest(state, found, tracking.groups(found, {}), now)
        state = State(invested=invested, seen=seen)
    assert sum(state.invested["alice/x"].values()) == 150 + 30
    assert tracking.invest(state, [], {}, NOW + 3 * 86400) == ({}, {})


def test_live_json_names_no_more_chained_jobs_of_a_user_than_so_many():
    """Each steered submission reads it."""
    chains = {job: "mallory#1" for job in range(1, 20_001)} | {50_001: "alice#50000", 50_002: "alice/llama"}
    told = tracking.numbers(chains)
    assert told["50001"] == 50_000 and "50002" not in told
    assert sorted(map(int, told))[:-1] == list(range(20_001 - tracking.MAX_CHAINED, 20_001))
