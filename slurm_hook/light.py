"""Frozen records without the start-up cost of `typing` and `dataclasses`.

Every millisecond of import is paid on each submission: `dataclasses` alone costs more than Python's own start. `Record`
gives what `typing.NamedTuple` gives (fields in order, types, defaults, methods) from `collections.namedtuple`; type
checkers are shown the real NamedTuple.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as Record
else:
    from collections import namedtuple

    class _RecordType(type):
        def __new__(mcs, name, bases, namespace):
            if not bases:
                return super().__new__(mcs, name, bases, namespace)
            fields = list(namespace.get("__annotations__", ()))
            defaults = [namespace.pop(field) for field in fields if field in namespace]
            base = namedtuple(name, fields, defaults=defaults, module=namespace.get("__module__"))
            body = {k: v for k, v in namespace.items() if k not in ("__classcell__", "__dict__", "__weakref__")}
            body["__slots__"] = ()
            return type(name, (base,), body)

    class Record(metaclass=_RecordType):
        """Base class of frozen records."""
