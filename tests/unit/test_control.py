"""The control group: a random share of our jobs, replayable by seed, untouched but marked."""

import pytest

from slurm_hook.common.config import Settings
from slurm_hook.decision import decide
from slurm_hook.decision.decide import Case
from slurm_hook.decision.directives import Directives
from slurm_hook.dispatch import updates
from slurm_hook.dispatch.tracking import Tracked
from slurm_hook.published import mark
from slurm_hook.slurm.request import Request
from slurm_hook.submit import wrapper
from tests.unit.jobs_made import NOW, job, nodes, scores, world


def case(seed=1, share=0.0, mode="steer", **request):
    there = nodes(8)
    settings = Settings({"steer.mode": mode, "steer.control_share": share})
    asked = Request(**{"nodes_min": 2, "nodes_max": 2, "partition": "llm", **request})
    return Case((asked,), Directives(), scores(there, lemons={"n3"}), settings, there, world([]).live, NOW, seed)


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0, 0), (0.2, 150, 250), (0.9, 860, 940)])
def test_the_share_is_kept_and_a_seed_decides_the_same_again(share, low, high):
    found = [decide.decide(case(seed, share)).action for seed in range(1000)]
    assert low <= found.count("control") <= high
    assert found == [decide.decide(case(seed, share)).action for seed in range(1000)]


def test_it_is_untouched_but_marked_where_the_comment_is_free():
    drawn = next(c for c in (case(seed, 0.5) for seed in range(50)) if decide.decide(c).action == "control")
    (added,) = wrapper.arguments(drawn, decide.decide(drawn))
    told = mark.parse(added.removeprefix("--comment="))
    assert (told.mode, told.seed, told.excludes) == ("control", drawn.seed, "")
    own = drawn._replace(requests=(drawn.requests[0]._replace(comment="mine"),))
    assert wrapper.arguments(own, decide.decide(own)) == ()


@pytest.mark.parametrize(
    "changes", [{"mode": "observe"}, {"nodes_min": 0, "nodes_max": 0, "comment": mark.text(mark.Mark(demand=9e5))}]
)
def test_who_is_never_drawn(changes):
    assert "control" not in {decide.decide(case(seed, 0.9, **changes)).action for seed in range(50)}


def test_dispatch_leaves_its_jobs_in_their_group():
    asked = job(comment=mark.text(mark.Mark(stage="a")))
    made = world([asked])._replace(settings=Settings({"steer.mode": "steer", "steer.control_share": 0.9}))
    whys = [updates.plan(made._replace(seed=lambda seed=seed: seed), {1: Tracked()}).updates[0].why for seed in range(30)]
    assert set(whys) == {"steer"}


def test_a_job_with_nothing_to_avoid_is_marked_for_later():
    """A node that turns bad while it waits can be avoided then."""
    waits = case(mode="avoid")._replace(scores=scores(nodes(8)))
    decision = decide.decide(waits)
    (added,) = wrapper.arguments(waits, decision)
    assert mark.parse(added.removeprefix("--comment=")).mode == "avoid"
