"""Frozen records and JSON without the start-up cost of `typing`, `dataclasses`, `collections` and `json`.

Every millisecond of import is paid on each submission: `dataclasses` alone costs more than Python's own start, and
`json` brings in `re` and `enum`. For the same reason the modules of the submit path use `posix`, which is built in, where
others use `os`: that one costs a millisecond. `Record` gives what `typing.NamedTuple` gives (fields in order, types,
defaults, methods, `_replace`, `_asdict`); type checkers are shown the real NamedTuple.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as Record
else:
    try:
        from _collections import _tuplegetter as _getter
    except ImportError:  # another Python than CPython
        from operator import itemgetter

        def _getter(index, doc):
            return property(itemgetter(index), doc=doc)

    def _new(name, fields, defaults):
        """A `__new__` as a NamedTuple's; positional arguments for all fields are the fast way."""
        known = dict(zip(fields[len(fields) - len(defaults) :], defaults))
        count, make = len(fields), tuple.__new__

        def new(_cls, /, *given, **named):
            if len(given) == count and not named:
                return make(_cls, given)
            rest = fields[len(given) :]
            missing = [field for field in rest if field not in named and field not in known]
            unknown = [field for field in named if field not in rest]
            if missing or unknown or len(given) > count:
                raise TypeError(f"{name}({', '.join(fields)}): missing {missing}, unknown or twice {unknown}, {len(given)} given")
            return make(_cls, (*given, *[named[field] if field in named else known[field] for field in rest]))

        new.__name__, new.__qualname__ = "__new__", f"{name}.__new__"
        return new

    def _replace(self, /, **changes):
        values = [changes.pop(field, value) for field, value in zip(self._fields, self)]
        if changes:
            raise ValueError(f"{type(self).__name__} has no fields {sorted(changes)}")
        return tuple.__new__(type(self), values)

    def _asdict(self):
        return dict(zip(self._fields, self))

    def _repr(self):
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in zip(self._fields, self))})"

    class _RecordType(type):
        def __new__(mcs, name, bases, namespace):
            if not bases:
                return super().__new__(mcs, name, bases, namespace)
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = [namespace.pop(field) for field in fields if field in namespace]
            body = {k: v for k, v in namespace.items() if k not in ("__classcell__", "__dict__", "__weakref__")}
            body.update({field: _getter(i, "") for i, field in enumerate(fields)})
            body.update(
                __slots__=(), _fields=fields, __new__=_new(name, fields, defaults), _replace=_replace, _asdict=_asdict,
                __repr__=_repr, __getnewargs__=tuple,
            )  # fmt: skip
            return type(name, (tuple,), body)

    class Record(metaclass=_RecordType):
        """Base class of frozen records."""


class _Context:
    """What the C scanner of the json module asks for: plain JSON into plain objects."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float
    memo: dict[str, str] = {}  # noqa: RUF012


def json_loads(text: str) -> object:
    """What json.loads gives, without importing json: that brings in re and enum, twice the cost of Python's own start.

    Raises ValueError for what isn't JSON.
    """
    try:
        from _json import make_scanner  # noqa: PLC0415
    except ImportError:  # another Python than CPython
        import json  # noqa: PLC0415

        return json.loads(text)
    start = len(text) - len(text.lstrip(" \t\n\r"))
    try:
        found, end = make_scanner(_Context())(text, start)  # type: ignore[arg-type]
    except StopIteration:
        raise ValueError("not JSON") from None
    if text[end:].strip(" \t\n\r"):
        raise ValueError("more than one JSON value")
    return found


def json_dumps(value: object) -> str:
    """What json.dumps gives without blanks, for plain objects and without importing json. Raises TypeError for others."""
    try:
        from _json import encode_basestring_ascii as quoted  # noqa: PLC0415
    except ImportError:  # another Python than CPython
        import json  # noqa: PLC0415

        return json.dumps(value, separators=(",", ":"))
    if value is None or isinstance(value, (str, bool)):
        return "null" if value is None else quoted(value) if isinstance(value, str) else str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value) if -1e309 < value < 1e309 else "null"  # JSON has no word for infinity
    if isinstance(value, dict):
        return "{" + ",".join(f"{quoted(str(key))}:{json_dumps(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(json_dumps, value)) + "]"
    raise TypeError(f"{type(value).__name__} is no JSON")
