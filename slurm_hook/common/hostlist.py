"""Slurm node lists for the submit path: expand and fold, standard library only.

The accounting half uses python-hostlist; login nodes have no packages, and Slurm's own `scontrol show hostnames`
would cost a process for each list. Checked against recorded `scontrol` output (tests/data/hostlist_vectors.jsonl).
"""

from __future__ import annotations

from .errors import HostlistError
from .record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_HOSTS = 65536  # Slurm takes as many in one range and refuses more
MAX_NAME = 255  # characters: no host has a longer one, and 65,536 long ones would be gigabytes
MAX_BRACKETS = 8  # in one name; Slurm itself takes no more than five dimensions


def split(text: str) -> list[str]:
    """Items of a list, split as Slurm does at commas and blanks outside brackets: `a,b[1,3] c` gives `a`, `b[1,3]` and `c`."""
    items: list[str] = []
    open_item: list[str] = []  # parts of an item between whose brackets commas stand
    depth = 0
    for part in text.split(","):
        open_item.append(part)
        depth += part.count("[") - part.count("]")
        if depth <= 0:
            items += _at_blanks(",".join(open_item))
            open_item = []
            if depth < 0:
                raise HostlistError(f"node list {text[:80]!r}: brackets don't match; write it as host[1-3,7]")
    if open_item:
        raise HostlistError(f"node list {text[:80]!r}: a bracket is not closed; write it as host[1-3,7]")
    return items


def _at_blanks(text: str) -> list[str]:
    """The text's words; what stands between brackets stays one."""
    words = text.split()
    if "[" not in text or len(words) == 1:
        return words
    found: list[str] = []
    depth = 0
    for word in words:
        if depth > 0:
            found[-1] += f" {word}"
        else:
            found.append(word)
        depth += word.count("[") - word.count("]")
    return found


def expand(text: str, most: int = MAX_HOSTS) -> list[str]:
    """All names of a list in order, duplicates kept. Raises HostlistError for what Slurm would not take, and for over `most`
    names: those are counted before any is made, as two brackets of a few signs multiply to billions."""
    hosts: list[str] = []
    for item in split(text):
        if "[" not in item:
            hosts.append(item)
        else:
            hosts += _names(item, text, most - len(hosts))
        if len(hosts) > most:
            raise _too_many(text, most)
    return hosts


def _too_many(text: str, most: int) -> HostlistError:
    return HostlistError(f"node list {text[:80]!r}: over {most} hosts")


def _names(item: str, text: str, most: int) -> list[str]:
    """The names of one item: the product of all its brackets."""
    words, ranges = _parts(item, text)
    count, length = 1, sum(map(len, words))
    for pairs in ranges:
        count *= sum(last - first + 1 for first, last, _ in pairs)
        length += max(max(width, len(str(last))) for _, last, width in pairs)
        if count > most:
            raise _too_many(text, most)
    if length > MAX_NAME:
        raise HostlistError(f"node list {text[:80]!r}: a name of over {MAX_NAME} characters")
    names = [words[0]]
    for pairs, word in zip(ranges, words[1:]):
        numbers = [str(n).zfill(width) + word for first, last, width in pairs for n in range(first, last + 1)]
        names = [name + number for name in names for number in numbers]
    return names


def _parts(item: str, text: str) -> tuple[list[str], list[list[tuple[int, int, int]]]]:
    """`a[1-2]b[3]` as its words (`a`, `b`, ``) and, between them, ranges of (first, last, width)."""
    word, *rest = item.split("[")
    words, ranges = [word], []
    if len(rest) > MAX_BRACKETS:
        raise HostlistError(f"node list {text[:80]!r}: over {MAX_BRACKETS} brackets in one name")
    for inside in rest:
        numbers, closed, word = inside.partition("]")
        if not closed or "]" in word:
            raise HostlistError(f"node list {text[:80]!r}: brackets don't match; write it as host[1-3,7]")
        words.append(word)
        ranges.append([_range(part, text) for part in numbers.split(",")])
    return words, ranges


def _range(part: str, text: str) -> tuple[int, int, int]:
    low, dash, high = part.strip().partition("-")
    high = high if dash else low
    if not (low.isascii() and low.isdigit() and high.isascii() and high.isdigit() and len(low) + len(high) <= MAX_NAME):
        raise HostlistError(f"node list {text[:80]!r}: {part[:80]!r} is not a number or a range; write it as host[1-3,7]")
    first, last = int(low), int(high)
    if last < first or last - first >= MAX_HOSTS:
        raise HostlistError(f"node list {text[:80]!r}: the range {part[:80]!r} is empty or over {MAX_HOSTS} hosts")
    return first, last, len(low)


def fold(names: Iterable[str]) -> str:
    """The shortest plain list of the names: sorted, without duplicates, ranges only within one prefix and width.

    Only the last run of digits is folded and only at the end of a name, as 22.05 refuses text after a bracket.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        prefix = name.rstrip("0123456789")
        digits = name[len(prefix) :]
        if not digits or len(digits) > 15 or not prefix:
            plain.append(name)
            continue
        # `n9` and `n10` share a list, `n09` does not join `n9`: a width counts only where a zero leads
        groups.setdefault((prefix, len(digits) if digits[0] == "0" and len(digits) > 1 else 0), []).append(int(digits))
    items = plain + [_fold_group(prefix, width, numbers) for (prefix, width), numbers in _joined(groups).items()]
    return ",".join(sorted(items))


def _joined(groups: dict[tuple[str, int], list[int]]) -> dict[tuple[str, int], list[int]]:
    """Unpadded numbers whose width equals a padded group's join it: 01..12 is one range."""
    out: dict[tuple[str, int], list[int]] = {key: list(numbers) for key, numbers in groups.items() if key[1]}
    for (prefix, width), numbers in groups.items():
        if width:
            continue
        for number in numbers:
            same = (prefix, len(str(number)))
            out.setdefault(same if same in groups else (prefix, 0), []).append(number)
    return out


def _fold_group(prefix: str, width: int, numbers: list[int]) -> str:
    ordered = sorted(set(numbers))
    ranges: list[list[int]] = []
    for number in ordered:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    if len(ordered) == 1:
        return f"{prefix}{ordered[0]:0{width}d}"
    inner = ",".join(f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in ranges)
    return f"{prefix}[{inner}]"
