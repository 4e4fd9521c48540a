"""One pass of dispatch: who is confined, widened, refreshed or left alone; no Slurm needed."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_hook.common import hostlist
from slurm_hook.common.config import Settings
from slurm_hook.common.errors import SnapshotError
from slurm_hook.decision import decide
from slurm_hook.decision.decide import Case
from slurm_hook.decision.directives import Directives
from slurm_hook.dispatch import passes, queue_heads
from slurm_hook.dispatch import updates as dispatch
from slurm_hook.dispatch.tracking import Tracked
from slurm_hook.dispatch.updates import CULPRIT, REFRESH, STEER, WIDEN
from slurm_hook.published import mark
from slurm_hook.published.mark import Mark
from slurm_hook.published.snapshot import Reservation
from slurm_hook.slurm.jobs import Details, nodes_of
from tests.unit.jobs_made import NOW, job, node, nodes, scores, world


def marked(**fields):
    return mark.text(Mark(**fields))


def plan(found, known=None, **changes):
    return dispatch.plan(world(found, **changes), known or {})


def pool(update, there):
    return set(there) - set(nodes_of(update.excludes))


def test_a_stage_that_can_start_now_is_confined_to_nodes_without_lemons():
    there = nodes(8, n1="ALLOCATED", n2="DOWN")
    (update,) = plan([job()], there=there, lemons={"n3"}).updates
    assert update.why == STEER
    drawn = pool(update, there)
    assert len(drawn) == 2 and drawn <= {"n4", "n5", "n6", "n7", "n8"}
    assert update.tracked.confined == NOW
    assert set(nodes_of(update.tracked.ours)) == set(there) - drawn


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "Dependency"}, {"reason": "None", "dependency": "afterok:4(unfulfilled)"}, {"label": "1_[1-4]"},
        {"label": "1+0"}, {"partition": "llm,other"}, {"details": None},
        {"details": Details(eligible=0.0, nodes_max=2, cpus=8, gpus=16)},
        {"details": Details(eligible=NOW + 60, nodes_max=2, cpus=8, gpus=16)},
        {"details": Details(eligible=NOW - 60, nodes_max=4, cpus=8, gpus=16)},  # -N2-4 might get more than a pool has
        {"nodes": 9},
    ],
)  # fmt: skip
def test_who_is_never_confined(changes):
    """Only avoid's few excludes, or none, for a stage that can't start now or whose pool we can't know."""
    for update in plan([job(**changes)], lemons={"n3"}).updates:
        assert update.why == REFRESH
        assert set(nodes_of(update.excludes)) <= {"n3"}
        assert update.tracked.confined == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"comment": "mine"}, {"comment": marked(mode="control")}, {"req_nodes": "n1"}, {"reservation": "r"}, {"priority": 0},
        {"state": "RUNNING", "node_list": "n[1-2]"}, {"state": "COMPLETED"},
    ],
)  # fmt: skip
def test_who_is_left_alone(changes):
    assert plan([job(**changes)], lemons={"n3"}).updates == ()


def test_what_did_not_start_by_the_next_pass_is_widened_and_rests():
    there = nodes(8)
    found = job()
    (first,) = plan([found], there=there, lemons={"n3"}).updates
    after = found._replace(excludes=first.excludes)
    (second,) = plan([after], {1: first.tracked}, there=there, lemons={"n3"}, now=NOW + 60).updates
    assert second.why == WIDEN and second.excludes == "n3"
    assert second.tracked.confined == 0
    third = plan([after._replace(excludes="n3")], {1: second.tracked}, there=there, lemons={"n3"}, now=NOW + 120)
    assert third.updates == (), "a stage that didn't start in its pool must not be confined again at once"
    later = NOW + 60 + dispatch.REST_PASSES * 60
    (again,) = plan([after._replace(excludes="n3")], {1: second.tracked}, there=there, lemons={"n3"}, now=later).updates
    assert again.why == STEER


@pytest.mark.parametrize(("since", "widened"), [(600, True), (31, True), (5, False)])
def test_a_pool_given_at_submission_counts_the_same(since, widened):
    details = Details(eligible=NOW - since, nodes_max=2, cpus=8, gpus=16)
    found = job(comment=marked(mode="steer", excludes="n1"), excludes="n[1-6]", submit=NOW - since, details=details)
    updates = plan([found], lemons={"n7"}).updates
    assert [u.why for u in updates] == ([WIDEN] if widened else [])
    assert [u.excludes for u in updates] == (["n[1,7]"] if widened else []), "the user's own exclude stays"


def test_a_second_pass_without_news_changes_nothing():
    found = [job(i, nodes=9 if i == 3 else 2, reason="Priority", comment=marked(mode="avoid")) for i in range(1, 6)]
    state, changed = {}, found
    for step in range(2):
        made = plan(changed, state, there=nodes(8, "ALLOCATED"), lemons={"n3"}, now=NOW + step)
        by_id = {u.job.id: u for u in made.updates}
        state = {**made.tracked, **{i: u.tracked for i, u in by_id.items()}}
        changed = [j._replace(excludes=by_id[j.id].excludes) if j.id in by_id else j for j in changed]
        assert len(by_id) == (4 if step == 0 else 0)


@pytest.mark.parametrize(
    ("there", "nodes_asked", "excludes"),
    [
        (nodes(8, "ALLOCATED"), 2, "n3"),
        (nodes(4, "ALLOCATED"), 4, ""),  # all nodes are needed
        (nodes(4, "ALLOCATED", n1="DOWN"), 3, ""),  # since n1 went down the lemon is needed
        (nodes(4, "ALLOCATED", n1="DOWN"), 2, "n3"),
        (nodes(4, "ALLOCATED", n3="DOWN"), 2, ""),  # a down node needs no exclude
    ],
)
def test_excludes_that_a_job_can_not_spare_drop_out(there, nodes_asked, excludes):
    found = job(nodes=nodes_asked, excludes="n3", details=Details(NOW - 60, 0, nodes_asked, 8, 64000.0, 8))
    made = plan([found], there=there, lemons={"n3"})
    now_set = made.updates[0].excludes if made.updates else found.excludes
    assert now_set == excludes


def test_suspects_drop_out_when_their_hour_is_over():
    there = nodes(8, "ALLOCATED")
    suspect = {n: s._replace(suspect_until=NOW + 10) if n == "n5" else s for n, s in scores(there).nodes.items()}
    made = scores(there)._replace(nodes=suspect)
    (update,) = plan([job()], there=there, scores=made).updates
    assert update.excludes == "n5"
    (update,) = plan([job(excludes="n5")], {1: update.tracked}, there=there, scores=made, now=NOW + 11).updates
    assert update.excludes == ""


def test_without_usable_scores_nothing_of_ours_stays():
    old = scores(nodes(), lemons={"n3"})._replace(created=0.0)
    (update,) = plan([job(excludes="n3")], {1: Tracked(ours="n3")}, scores=old).updates
    assert update.excludes == ""


def test_a_node_that_killed_the_stage_is_excluded_after_slurm_requeued_it():
    running = job(state="RUNNING", node_list="n[1-2]", start=NOW - 50)
    known = plan([running], {1: Tracked()}).tracked
    assert known[1].ran_on == "n[1-2]"
    there = nodes(8, "ALLOCATED", n2="DOWN")
    (update,) = plan([job()], known, there=there).updates
    assert (update.why, update.excludes, update.tracked.restarts) == (CULPRIT, "n2", 1)
    back = plan([job(excludes="n2")], {1: update.tracked}, there=nodes(8, "ALLOCATED"))
    assert back.updates == (), "it stays excluded for this job when it answers again"
    few = nodes(2, "ALLOCATED")
    (dropped,) = plan([job(excludes="n2")], {1: update.tracked}, there=few).updates
    assert dropped.excludes == "", "but never so that the job has too few nodes"


def test_a_user_who_changed_the_excludes_is_left_alone():
    known = {1: Tracked(user="", ours="n3", before="n3")}
    made = plan([job(excludes="n4")], known, lemons={"n3"})
    assert made.updates == () and made.tracked[1].hands_off


@pytest.mark.parametrize(
    ("other", "confined"),
    [
        (job(2, comment="", priority=99), True), (job(2, comment="", priority=100), False),
        (job(2, comment="", priority=500), False),
        (job(2, comment="", priority=500, partition="cpu"), True), (job(2, comment="", priority=500, partition="cpu,llm"), False),
        (job(2, comment="", priority=500, reason="Dependency"), True), (job(2, comment="", priority=0), True),
        (job(2, comment="", priority=500, state="RUNNING"), True),
    ],
)  # fmt: skip
def test_nobody_is_confined_ahead_of_a_job_that_waits_for_nodes(other, confined):
    whys = {u.job.id: u.why for u in plan([job(), other]).updates}
    assert (whys.get(1) == STEER) is confined


def test_a_maintenance_ahead_is_kept_free():
    there = nodes(8)
    ahead = (Reservation("maint", NOW + 1800, NOW + 7200, ("n1", "n2", "n3", "n4", "n5")),)
    made = world([job()], there=there)
    (update,) = dispatch.plan(made._replace(live=made.live._replace(reservations=ahead)), {}).updates
    assert pool(update, there) <= {"n6", "n7", "n8"}


def test_pools_of_one_pass_do_not_overlap():
    there = nodes(8)
    found = [job(i, priority=100 - i) for i in range(1, 6)]
    made = plan(found, there=there)
    pools = [pool(u, there) for u in made.updates if u.why == STEER]
    assert len(pools) == 4 and len(set().union(*pools)) == 8


def test_longer_waits_and_more_invested_go_first():
    def waits(number, seconds):
        return job(number, details=Details(NOW - seconds, 0, 2, 8, 64000.0, 16))

    found = [waits(1, 100), waits(2, 1000), waits(3, 100), waits(4, 0)]
    made = world(found, invested={3: 36000.0})
    assert [j.id for j in dispatch.in_order(made, found)] == [3, 2, 1, 4]


def test_at_most_so_many_updates_a_pass_and_widening_comes_first():
    found = [job(i, reason="Priority") for i in range(1, 10)]
    known = {9: Tracked(ours="n[1-6]", before="n[1-6]", confined=NOW - 600)}
    found[8] = found[8]._replace(excludes="n[1-6]")
    few = Settings({"steer.mode": "avoid", "dispatch.max_updates": 4})
    made = plan(found, known, there=nodes(8, "ALLOCATED"), lemons={"n3"}, settings=few)
    assert len(made.updates) == 4 and made.left == 5
    assert (made.updates[0].job.id, made.updates[0].why) == (9, WIDEN)


def test_release_takes_ours_and_leaves_the_users():
    found = [
        job(1, excludes="n[1,3]", comment=marked(mode="avoid", excludes="n1")), job(2, excludes="n2", comment="own"),
        job(3, excludes="n[2-8]", priority=0, comment=marked(mode="steer")), job(4, excludes="n3", state="RUNNING"),
        job(5, excludes="n4"), job(6), job(7, label="7_[1-3]", excludes="n3"),
    ]  # fmt: skip
    known = {5: Tracked(user="n4"), 7: Tracked(ours="n3")}
    assert [(u.job.id, u.excludes) for u in dispatch.releases(found, known)] == [(3, ""), (1, "n1"), (7, "")]


@pytest.mark.parametrize(
    ("changes", "news"),
    [
        ({"priority": 90}, False), ({"reason": "Priority"}, False), ({"priority": 0}, True), ({"reason": "Dependency"}, True),
        ({"dependency": "afterok:3"}, True), ({"state": "RUNNING"}, True), ({"excludes": "n1"}, True), ({"submit": NOW}, True),
        ({"req_nodes": "n1"}, True), ({"label": "1_[2-3]"}, True),
    ],
)  # fmt: skip
def test_what_is_news_to_a_pass(changes, news):
    assert (passes.fingerprint([job()]) != passes.fingerprint([job(**changes)])) is news
    assert passes.fingerprint([job(), job(2)]) == passes.fingerprint([job(2), job()]) != passes.fingerprint([job()])


STATES = st.sampled_from(["IDLE", "ALLOCATED", "MIXED", "DOWN", "IDLE", "IDLE"])
NUMBERS = st.sets(st.integers(1, 6))
FLAGS = st.sampled_from([(), (), (), ("DRAIN",), ("PLANNED",), ("RESERVED",), ("COMPLETING",), ("NOT_RESPONDING",)])


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"priority": 0, "reason": "JobHeldUser"}, {}),
        ({"reservation": "mine"}, {}),
        ({"comment": "mine"}, {1: Tracked(user="n1", ours="n[2-6]", confined=NOW - 1)}),
        ({"comment": ""}, {1: Tracked(user="n1", ours="n[2-6]", confined=NOW - 1)}),
    ],
)
def test_a_confined_job_that_is_ours_no_more_is_widened_and_left_alone(changes, known):
    found = job(**{"excludes": "n[1-6]", "comment": marked(mode="steer", excludes="n1"), **changes})
    (update,) = plan([found], known, lemons={"n3"}).updates
    assert (update.excludes, update.why) == ("n1", WIDEN)
    assert not plan([found._replace(excludes="n1")], {1: update.tracked}, lemons={"n3"}).updates


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"comment": "mine"}, {}), ({"comment": "mine"}, {1: Tracked(user="n1", ours="n[2-6]")}),
        ({"comment": "mine"}, {1: Tracked(user="n1", ours="n[2-5]", confined=NOW)}),  # the user has changed the nodes, too
        ({"state": "RUNNING", "comment": "mine", "start": NOW}, {1: Tracked(user="n1", ours="n[2-6]", confined=NOW)}),
        ({"comment": marked(mode="control"), "excludes": ""}, {}),
    ],
)  # fmt: skip
def test_others_that_are_ours_no_more_stay_as_they_are(changes, known):
    found = job(**{"excludes": "n[1-6]", **changes})
    assert not plan([found], known, lemons={"n3"}).updates


@pytest.mark.parametrize(("count", "excluded"), [(4, ""), (5, "n3")])
def test_components_of_a_job_are_left_the_nodes_that_they_need_together(count, excluded):
    found = [job(number, label=f"1+{number - 1}") for number in (1, 2)]
    updates = plan(found, there=nodes(count), lemons={"n3"}).updates
    assert [update.excludes for update in updates] == [excluded] * 2 * bool(excluded)


@pytest.mark.parametrize(
    ("priority", "tier", "free", "drawn"),
    [
        (900, 1, {"n1", "n2"}, True), (10, 1, {"n3", "n4"}, True), (900, 1, {"n3", "n4"}, False), (10, 2, {"n3", "n4"}, False),
        (900, 0, {"n3", "n4"}, True),
    ],
)  # fmt: skip
def test_nodes_for_which_a_job_of_another_partition_waits_are_in_no_pool(priority, tier, free, drawn):
    """n3 and n4 are in both partitions; a job of less priority, or of a partition of a lower tier, is no matter."""
    there = {f"n{i}": node(f"n{i}", partitions=("llm", "other") if i > 2 else ("llm",)) for i in range(1, 5)}
    busy = {name: n._replace(state="ALLOCATED", cpus_used=32) for name, n in there.items() if name not in free}
    other = job(2, partition="other", nodes=2, comment="", priority=priority)
    made = world([job(), other], there={**there, **busy})
    parts = {
        **made.live.partitions,
        "other": {"nodes": "n[3-4]", "default": False, "max_time": None, "state": "UP", "tier": tier},
    }
    updates = dispatch.plan(made._replace(live=made.live._replace(partitions=parts)), {}).updates
    assert [pool(update, there) for update in updates if update.why == STEER] == [free] * drawn


def _typed(kinds):
    return {name: node(name, gpu_type=kind) for name, kind in kinds.items()}


@pytest.mark.parametrize("mode", ["avoid", "steer"])
def test_nodes_of_another_gpu_type_are_no_room_for_a_job(mode):
    """Two nodes have the type that is asked for, one of them a lemon: without it the job could never start."""
    there = _typed({"a1": "a100", "a2": "a100", **{f"v{i}": "v100" for i in range(8)}})
    asked = Details(eligible=NOW - 600, nodes_max=2, cpus=2, gpus=16, gpu_type="a100")
    made = plan([job(details=asked, sharing="OK")], there=there, lemons={"a1"}, mode=mode).updates
    assert all({"a1", "a2"} <= pool(update, there) for update in made)


@pytest.mark.parametrize(
    ("changes", "confined"),
    [({}, True), ({"inner": ("licenses",)}, False), ({"odd": ("contiguous",)}, False), ({"switches": 1}, True)],
)
def test_what_limits_the_choice_of_nodes_counts_for_waiting_jobs_too(changes, confined):
    asked = Details(eligible=NOW - 600, nodes_max=2, cpus=2, gpus=16)._replace(**changes)
    updates = plan([job(details=asked)], lemons={"n3"}).updates
    assert [update.why for update in updates if update.why == STEER] == [STEER] * confined
    assert bool(updates) == ("odd" not in changes)


@pytest.mark.parametrize(("sharing", "idle_only"), [("USER", False), ("MCS", False), ("OK", True)])
def test_a_job_that_takes_whole_nodes_is_confined_to_idle_ones(sharing, idle_only):
    """There is room on n1 and n2, but not for a job that shares with nobody."""
    busy = {"state": "MIXED", "cpus_used": 1, "mem_used": 1000.0, "gpus_used": 0}
    there = {
        f"n{i}": node(
            f"n{i}",
            **(busy if i < 3 else {}),
        )
        for i in range(1, 5)
    }
    made = world([job(sharing=sharing)], there=there)
    part = {**made.live.partitions["llm"], **({"idle_only": True} if idle_only else {})}
    (update,) = dispatch.plan(made._replace(live=made.live._replace(partitions={"llm": part})), {}).updates
    assert (update.why, pool(update, there)) == (STEER, {"n3", "n4"})


@pytest.mark.parametrize("reason", ["QOSMaxJobsPerUserLimit", "AssocGrpGRES", "Licenses", "Resources"])
def test_a_job_that_waits_for_a_limit_keeps_no_nodes_from_others(reason):
    """Slurm passes it by, too. It isn't confined either, as it can't start."""
    first, second = job(1, reason=reason, priority=900), job(2, reason="None", priority=100)
    limited = reason != "Resources"
    assert queue_heads.queue_head([first], queue_heads.Room({})) == ({} if limited else {"llm": 900})
    there = nodes(3)  # room for one
    updates = plan([first, second], there=there).updates
    assert [u.job.id for u in updates if u.why == STEER] == [2 if limited else 1]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(STATES, FLAGS), min_size=6, max_size=6),
    st.sets(st.integers(1, 6)),
    st.integers(1, 4),
    st.sets(st.integers(1, 6)),
)
def test_no_stage_is_ever_left_without_nodes_that_it_had(kinds, lemons, asked, user):
    """A confined stage can start in its pool now; any other can still run, if it could without us."""
    there = {n.name: n for n in (_made(i, *kind) for i, kind in enumerate(kinds, 1))}
    own = hostlist.fold(f"n{i}" for i in user)
    found = job(
        nodes=asked, excludes=own, comment=marked(mode="avoid", excludes=own), details=Details(NOW - 9, 0, asked, 8, 8.0, 8)
    )
    for update in plan([found], there=there, lemons={f"n{i}" for i in lemons}).updates:
        left = pool(update, there)
        assert left <= set(there) - {f"n{i}" for i in user}, "the user's excludes stay"
        could = [n for n in there if n not in nodes_of(own) and there[n].usable]
        if update.why == STEER:
            assert len([n for n in left if there[n].open and there[n].idle]) >= asked
        elif len(could) >= asked:
            assert len([n for n in left if there[n].usable]) >= asked


def _made(number, state, flags):
    return nodes(number, **{f"n{number}": state})[f"n{number}"]._replace(flags=frozenset(flags))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(STATES, FLAGS), min_size=6, max_size=6), NUMBERS,
    st.lists(st.tuples(st.integers(1, 4), NUMBERS), max_size=4), st.sampled_from(["avoid", "steer"]),
)  # fmt: skip
@example([("IDLE", ["DRAIN"])] * 5 + [("DOWN", [])], set(), [(2, set())], "avoid")
def test_what_a_pass_works_out_once_is_what_each_decision_would(kinds, lemons, asked, mode):
    """Decisions that share a memo are those that each would make alone."""
    there = {n.name: n for n in (_made(i, *kind) for i, kind in enumerate(kinds, 1))}
    made = world([], there=there, lemons={f"n{i}" for i in lemons})
    memo = {}
    for size, user in asked:
        own = tuple(f"n{i}" for i in sorted(user))
        request = dispatch.request_of(
            job(nodes=size, details=Details(NOW - 9, 0, size, 8, 8.0, 8)), Tracked(user=hostlist.fold(own))
        )
        alone = Case((request,), Directives(), made.scores, made.settings, there, made.live, NOW, 3, mode)
        together = decide.decide(alone._replace(memo=memo))
        assert together._replace(candidates=()) == decide.decide(alone)._replace(candidates=())


def test_a_job_confined_at_a_time_to_come_is_widened():
    """The clock was set back: nobody must wait until it gets there again."""
    waits = job(7, comment="wh=1;m=steer;s=a;r=1", excludes="gpu01", details=Details(eligible=NOW))
    assert dispatch.overdue(waits, Tracked(confined=NOW + 7200), world([waits]))


@pytest.mark.parametrize(
    ("reserved", "start", "widened"),
    [(("n7",), 600, True), (("n1",), 600, False), (("n7",), 7200, False), (("n7",), -600, True)],
)
def test_a_pool_that_has_been_reserved_since_is_let_go_of_at_once(reserved, start, widened):
    """A submission knows the reservations of the last pass."""
    found = job(comment=marked(mode="steer"), excludes="n[1-6]", submit=NOW - 1, details=Details(NOW - 1, 0, 2, 8, 64000.0, 16))
    made = world([found], nodes(8))
    ahead = Reservation("r", NOW + start, NOW + start + 3600, reserved)
    updates = dispatch.plan(made._replace(live=made.live._replace(reservations=(ahead,))), {}).updates
    assert [(u.why, u.excludes) for u in updates] == ([(WIDEN, "")] if widened else [])


def test_a_reservations_comment_can_not_pass_for_its_fields():
    line = "ReservationName=m StartTime=100 EndTime=200 Nodes=n[1-2] NodeCnt=2 Comment=move Nodes=n9 EndTime=later StartTime=0"
    assert passes.parse_reservations(line) == [{"name": "m", "nodes": ["n1", "n2"], "start": 100.0, "end": 200.0}]


def test_without_the_folder_of_its_state_the_mend_is_the_folder(tmp_path):
    path = tmp_path / "gone" / "dispatch.json"
    with (
        pytest.raises(SnapshotError, match=rf"there is no folder {path.parent}; make it, or .*\[dispatch\] state"),
        passes.lock(str(path)),
    ):
        pass


def tick(seconds):
    """A clock of a process to which each look at it is so much work."""
    now = [0.0]

    def clock():
        now[0] += seconds
        return now[0]

    return clock


@pytest.mark.parametrize("mallory", [0, 1000])
def test_one_users_jobs_take_no_more_of_a_pass_than_a_users_share(mallory):
    """The rest of them is left to the next passes, which begin with it; everybody else's are decided."""
    there, lemons = nodes(8, "ALLOCATED"), {"n3"}
    found = [job(i, user="mallory", priority=9000) for i in range(1, mallory + 1)]
    found += [job(2000 + i, user=f"user{i}") for i in range(20)]
    known, left, seen = {}, (), set()
    for number in range(1, 9):
        made = world(found, there=there, lemons=lemons, clock=tick(0.002))
        plan = dispatch.plan(made, known, left)
        updated = {update.job.id for update in plan.updates}
        assert all(job_id < 2000 for job_id in plan.unseen)
        if number == 1:
            assert {2000 + i for i in range(20)} <= updated, "others wait for mallory"
            assert bool(plan.unseen) is bool(mallory)
        seen |= {job.id for job in found} - set(plan.unseen)
        known, left = {**plan.tracked, **{u.job.id: u.tracked for u in plan.updates}}, plan.unseen
        found = [j._replace(excludes="n3") if j.id in updated else j for j in found]
    assert seen == {job.id for job in found}, "some job's turn never comes"


def test_a_confined_job_is_widened_before_others_of_its_user_are_looked_at():
    found = [job(i, priority=9000) for i in range(1, 400)] + [job(400, excludes="n[1-6]", submit=NOW - 900)]
    known = {400: Tracked(ours="n[1-6]", before="n[1-6]", confined=NOW - 120)}
    plan = dispatch.plan(world(found, clock=tick(0.05)), known)
    assert [(u.job.id, u.why) for u in plan.updates] == [(400, WIDEN)] and len(plan.unseen) > 300


def test_of_each_user_so_many_updates_go_before_anybodys_rest():
    def update(number, user, why):
        return dispatch.Update(job(number, user=user), "", why, Tracked())

    updates = [update(i, "mallory", WIDEN) for i in range(5)] + [update(8, "alice", REFRESH), update(9, "bob", WIDEN)]
    assert [u.job.id for u in dispatch.shared_out(updates, 2)] == [0, 1, 9, 8, 2, 3, 4]


POOLED = {"comment": marked(mode="steer"), "submit": NOW - 10, "nodes": 2, "excludes": "n[1-6]"}


@pytest.mark.parametrize(
    ("changes", "pools"),
    [
        ({}, ["n[7-8]"]), ({"state": "RUNNING", "start": NOW - 5, "node_list": "n[7-8]"}, ["n[7-8]"]),
        ({"priority": 0, "reason": "JobHeldUser"}, []), ({"priority": 0, "reason": "JobHeldUser", "excludes": ""}, []),
        ({"reason": "Dependency", "dependency": "afterok:7"}, []), ({"reason": "PartitionConfig"}, []), ({"nodes": 1}, []),
        ({"excludes": ""}, []), ({"excludes": "n" + "[0]" * 320 + "[0-65535]"}, []), ({"submit": NOW - 100}, []),
        ({"comment": marked(mode="avoid")}, []), ({"partition": "other"}, []),
    ],
)  # fmt: skip
def test_which_marks_keep_nodes_from_others(changes, pools):
    """Whoever likes can write m=steer into a Comment: it counts for a job that could start, and for no more than it asks for."""
    found = [job(**{**POOLED, **changes})]
    assert [folded for _, folded in dispatch.recent_pools(found, nodes(8), NOW, 60.0)] == pools


def test_one_users_pools_leave_half_of_the_nodes_to_others():
    pools = [{"excludes": hostlist.fold(set(nodes(8)) - {f"n{i}"}), "nodes": 1} for i in range(1, 9)]
    found = [job(i, **{**POOLED, **pool}) for i, pool in enumerate(pools, 1)]
    found.append(job(9, user="bob", **{**POOLED, "excludes": "n[1-6]"}))
    given = [folded for _, folded in dispatch.recent_pools(found, nodes(8), NOW, 60.0)]
    assert given == ["n1", "n2", "n3", "n4", "n[7-8]"]
