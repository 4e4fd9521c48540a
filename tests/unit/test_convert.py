"""Converters: every notation that some Slurm printed for a field."""

from zoneinfo import ZoneInfo

import pytest

from accounting.sources import converters


@pytest.mark.parametrize(
    ("text", "mib", "per"),
    [
        ("4000Mn", 4000, "n"),
        ("1Mc", 1, "c"),
        ("0c", 0, "c"),
        ("0n", 0, "n"),
        ("0?", 0, ""),
        ("1.5G", 1536, ""),
        ("62.50G", 64000, ""),
        ("125G", 128000, ""),
        ("3080K", 3080 / 1024, ""),
        ("1T", 1048576, ""),
        ("2Gc", 2048, "c"),
        ("1048576", 1, ""),
        ("0", 0, ""),
        ("100Mib", 100, ""),
    ],
)
def test_memory(text, mib, per):
    assert converters.memory(text) == (pytest.approx(mib), per)


@pytest.mark.parametrize("text", ["", "Unknown", "None", "UNLIMITED", "Partition_Limit", "None assigned", " none "])
def test_words_are_no_value(text):
    assert converters.memory(text) is None
    assert converters.elapsed(text) is None
    assert converters.integer(text) is None
    assert converters.limit_minutes(text) is None
    assert converters.Times()[text] is None
    assert converters.exit_code(text) == (None, None)


@pytest.mark.parametrize("text", ["12Q", "abc", "1.2.3M", "--5M", "M", "9" * 40])
def test_not_memory(text):
    with pytest.raises(ValueError, match="memory"):
        converters.memory(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:00", 0),
        ("00:00.001", 0.001),
        ("01:02.500", 62.5),
        ("1:00:00", 3600),
        ("2-03:04:05", 2 * 86400 + 3 * 3600 + 4 * 60 + 5),
        ("365-00:00:00", 365 * 86400),
        ("00:59:59", 3599),
        ("17", 17),
        ("0", 0),
    ],
)
def test_elapsed(text, seconds):
    assert converters.elapsed(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "minutes"), [("525600", 525600), ("1-00:00:00", 1440), ("00:01:30", 1)])
def test_limit(text, minutes):
    assert converters.limit_minutes(text) == minutes


@pytest.mark.parametrize(
    ("text", "state", "uid"),
    [
        ("CANCELLED by 1234", "CANCELLED", 1234),
        ("CANCELLED", "CANCELLED", None),
        ("CANCELLED+", "CANCELLED", None),
        ("COMPLETED", "COMPLETED", None),
        ("SOMETHING_NEW", "SOMETHING_NEW", None),
        ("node_fail", "NODE_FAIL", None),
        ("CANCELLED by alice", "CANCELLED", None),
    ],
)
def test_state(text, state, uid):
    assert converters.state(text) == (state, uid)


@pytest.mark.parametrize(("text", "pair"), [("3:0", (3, 0)), ("0:9", (0, 9)), ("137", (137, 0)), ("", (None, None))])
def test_exit_code(text, pair):
    assert converters.exit_code(text) == pair


@pytest.mark.parametrize(
    ("text", "tres"),
    [
        ("", (None, None, None, None, None)),
        ("billing=32,cpu=32,gres/gpu=16,mem=125G,node=2", (32, 128000, 2, 16, None)),
        ("cpu=1,gres/gpu:a100=16,gres/gpu=16,mem=4000M,node=4", (1, 4000, 4, 16, "a100")),
        ("gres/gpu:a100=4,gres/gpu:h100=8", (None, None, None, 12, "h100")),
        ("cpu=8,gres/gpumem=4G,gres/gpuutil=3", (8, None, None, None, None)),
        ("cpu=0,node=0", (0, None, 0, None, None)),
    ],
)
def test_tres(text, tres):
    assert converters.parse_tres(text) == tres


@pytest.mark.parametrize("text", ["cpu", "cpu=x", "cpu=-1", "mem=12Q", "cpu=1e300", "cpu=nan", "größe=1"])
def test_not_tres(text):
    with pytest.raises(ValueError):
        converters.parse_tres(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("123", (123, None, False, None, None)),
        ("123_4", (123, 4, True, None, None)),
        ("123456_[9201-10000%500]", (123456, None, True, None, None)),
        ("56502501_[1%1]", (56502501, None, True, None, None)),
        ("9_[1,3,5-9:2%1]", (9, None, True, None, None)),
        ("9_[1,3,5...]", (9, None, True, None, None)),
        ("67767+1", (67767, None, False, 1, None)),
        ("67767+0.batch", (67767, None, False, 0, "batch")),
        ("25.0", (25, None, False, None, "0")),
        ("25.ext.ern", (25, None, False, None, "ext.ern")),
    ],
)
def test_job_id(text, parts):
    assert converters.job_id(text) == parts


@pytest.mark.parametrize("text", ["", "abc", "12_", "12+x", "-3", "12_[a]", "9" * 30])
def test_not_a_job_id(text):
    with pytest.raises(ValueError):
        converters.job_id(text)


def test_times_in_a_zone_and_in_the_repeated_hour():
    berlin = converters.Times(ZoneInfo("Europe/Berlin"))
    assert berlin["2026-01-31T12:00:07"] == 1769857207
    assert berlin["2026-01-31T12:00:08"] == 1769857208  # from the remembered minute
    assert berlin["1769857207"] == 1769857207
    assert berlin["2026-01-31T12:00:07+01:00"] == 1769857207
    first = berlin["2026-10-25T02:30:00"]
    assert berlin.later_reading("2026-10-25T02:30:00") == first + 3600
    assert berlin.later_reading("2026-10-25T04:30:00") is None


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01T00:00:00", "12:00", "-1", "9" * 40, "2026-01-31T12:00:0x"])
def test_not_a_time(text):
    with pytest.raises(ValueError):
        converters.Times()[text]
