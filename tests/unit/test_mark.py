"""The mark in a job's Comment: what goes in comes out, and what users write there does no harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hook.published import mark
from slurm_hook.published.mark import Mark

NAMES = st.text(alphabet="abcXYZ019_.+-", max_size=20)


@given(
    st.sampled_from(mark.MODES), NAMES, st.integers(0, 2**63), st.sampled_from(["", "n1", "gpu[01-09,12],b7"]), NAMES,
    NAMES, st.integers(0, 10**12), st.floats(0, 1e6),
)  # fmt: skip
def test_round_trip(mode, snapshot, seed, excludes, pipeline, stage, demand, checkpoint):
    given_mark = Mark(mode, snapshot, seed, excludes, pipeline, stage, float(demand), checkpoint)
    got = mark.parse(mark.text(given_mark))
    assert got is not None
    assert got._replace(checkpoint=0.0) == given_mark._replace(checkpoint=0.0)
    assert got.checkpoint == pytest.approx(checkpoint, rel=1e-12)


@given(st.text(max_size=200))
def test_any_comment_is_read_without_an_error(comment):
    mark.parse(comment)
    mark.parse("wh=1;" + comment)


@given(st.text(max_size=100))
def test_hostile_names_cannot_add_fields(name):
    got = mark.parse(mark.text(Mark(mode="avoid", pipeline=name, stage=name)))
    assert got is not None
    assert (got.mode, got.excludes, got.seed) == ("avoid", "", 0)
    assert got.pipeline == mark.clean_name(name)


@pytest.mark.parametrize(
    "comment",
    [
        "", "mine", "WH=1;m=steer", " wh=1", "wh=2;m=steer", "wh=1;m=kill", "wh=1;m=steer;r=-1", "wh=1;m=steer;r=x",
        "wh=1;m=steer;x=n1 n2", "wh=1;m=steer;x=$(id)", "wh=1;d=nan", "wh=1;d=-5", "wh=1;d=1e99", "wh=1;p=a b",
        "wh=1;p=\x1b[2J", "wh=1;m=steer;" + "y=1;" * 4000, "wh=1;r=" + "9" * 5000, "wh=1;r=\u0663",
    ],
)  # fmt: skip
def test_what_is_no_mark(comment):
    assert mark.parse(comment) is None


def test_unknown_fields_of_a_newer_version_are_ignored():
    assert mark.parse("wh=1;m=avoid;zz=7;junk;x=n[1-2]") == Mark("avoid", excludes="n[1-2]")


def test_asking_is_not_deciding():
    asked = mark.parse(mark.text(Mark(pipeline="llama", stage="pretrain", demand=655360.0)))
    assert asked is not None
    assert not asked.decided
    assert mark.parse("wh=1;m=control").decided
