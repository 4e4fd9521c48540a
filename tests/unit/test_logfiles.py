"""The log as logrotate leaves it."""

import gzip
import os

import pytest

from accounting.evaluation import decisions
from slurm_hook.published import log_reader

NOW = 1_800_000_000


def write(folder, name, days, words):
    data = "".join(f"{word}\n" for word in words).encode()
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    os.utime(path, (NOW - days * 86400,) * 2)
    return str(path)


@pytest.fixture
def log(tmp_path):
    """Eight days, numbered and dated, and files beside them that are none of the log."""
    for name, days, words in (
        ("w.log-20270113.gz", 2, ["c"]), ("w.log.1", 1, ["d", "e"]), ("w.log.7.gz", 8, ["a", "b"]), ("w.log.old", 1, ["x"]),
        ("w.log.1.swp", 1, ["x"]), ("other.log.1", 1, ["x"]), ("w.log.2.xz", 1, ["x"]),
    ):  # fmt: skip
        write(tmp_path, name, days, words)
    os.mkfifo(tmp_path / "w.log.3")
    (tmp_path / "w.log.4").symlink_to(tmp_path / "w.log.old")
    return write(tmp_path, "w.log", 0, ["f", "g"])


@pytest.mark.parametrize(("days", "words"), [(90, "abcdefg"), (7, "cdefg"), (1, "defg"), (0.5, "fg")])
def test_lines_of_all_files_that_are_young_enough_oldest_first(log, days, words):
    since = NOW - days * 86400
    assert [line.strip() for line in log_reader.lines(log, since)] == list(words)
    assert [line.strip() for line in log_reader.last_lines(log, 100, since)] == list(words)


@pytest.mark.parametrize(("most", "words"), [(1, "g"), (2, "fg"), (3, "efg"), (6, "bcdefg"), (7, "abcdefg"), (8, "abcdefg")])
def test_of_many_lines_the_last_ones(log, most, words):
    assert [line.strip() for line in log_reader.last_lines(log, most)] == list(words)


def test_a_file_that_is_just_being_packed_is_read_as_far_as_it_goes(tmp_path):
    path = write(tmp_path, "w.log", 0, ["last"])
    packed = gzip.compress(b"first\n" * 100_000)
    (tmp_path / "w.log.1.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "w.log.2.gz").write_bytes(b"none at all")
    found = [line.strip() for line in log_reader.lines(path)]
    assert found[-1] == "last" and 0 < found.count("first") < 100_000


def test_without_the_log_itself_there_is_an_error(tmp_path):
    write(tmp_path, "w.log.1", 1, ["x"])
    for read in (log_reader.lines(str(tmp_path / "w.log")), log_reader.last_lines(str(tmp_path / "w.log"), 9)):
        with pytest.raises(FileNotFoundError):
            list(read)


def test_of_a_long_log_the_newest_decisions_count(tmp_path, monkeypatch):
    monkeypatch.setattr(decisions, "MAX_LINES", 3)
    stamp = "2027-01-15T07:00:00+00:00 h workhorse: "
    path = write(tmp_path, "w.log", 0, [f'{stamp}{{"by":"wrapper","job":{n}}}' for n in range(5)])
    assert [line["job"] for line in decisions.read(path, 0, NOW + 1e6)] == [2, 3, 4]
