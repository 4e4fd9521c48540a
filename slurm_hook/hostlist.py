"""Slurm node lists for the submit path: expand and fold, standard library only.

The accounting half uses python-hostlist; login nodes have no packages, and Slurm's own `scontrol show hostnames`
would cost a process for each list. Checked against recorded `scontrol` output (tests/data/hostlist_vectors.jsonl).
"""

from __future__ import annotations

from .errors import HostlistError
from .light import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_HOSTS = 65536  # Slurm takes as many in one range and refuses more


def split(text: str) -> list[str]:
    """Items of a list, split at commas outside brackets: `a,b[1,3]` gives `a` and `b[1,3]`."""
    items, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            items.append(text[start:i])
            start = i + 1
        if depth not in (0, 1):
            raise HostlistError(f"node list {text[:80]!r}: brackets don't match; write it as host[1-3,7]")
    if depth:
        raise HostlistError(f"node list {text[:80]!r}: a bracket is not closed; write it as host[1-3,7]")
    items.append(text[start:])
    return [item for item in (part.strip() for part in items) if item]


def expand(text: str) -> list[str]:
    """All names of a list in order, duplicates kept. Raises HostlistError for what Slurm would not take."""
    hosts: list[str] = []
    for item in split(text):
        hosts.extend(_bounded(_expand_item(item, text), text, len(hosts)))
    return hosts


def _bounded(names: Iterable[str], text: str, before: int = 0) -> list[str]:
    """The names, as long as they are not too many: two brackets of a few signs multiply to billions."""
    found: list[str] = []
    for name in names:
        if before + len(found) >= MAX_HOSTS:
            raise HostlistError(f"node list {text[:80]!r}: over {MAX_HOSTS} hosts")
        found.append(name)
    return found


def _expand_item(item: str, text: str) -> Iterator[str]:
    head, bracket, rest = item.partition("[")
    if not bracket:
        yield head
        return
    ranges, _, tail = rest.partition("]")
    tails = _bounded(_expand_item(tail, text), text) if tail else [""]
    for number in _numbers(ranges, text):
        for end in tails:
            yield head + number + end


def _numbers(ranges: str, text: str) -> Iterator[str]:
    for part in ranges.split(","):
        low, dash, high = part.strip().partition("-")
        high = high if dash else low
        if not (low.isascii() and low.isdigit() and high.isascii() and high.isdigit()):
            raise HostlistError(f"node list {text[:80]!r}: {part!r} is not a number or a range; write it as host[1-3,7]")
        first, last = int(low), int(high)
        if last < first or last - first >= MAX_HOSTS:
            raise HostlistError(f"node list {text[:80]!r}: the range {part!r} is empty or over {MAX_HOSTS} hosts")
        for number in range(first, last + 1):
            yield str(number).zfill(len(low))


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
