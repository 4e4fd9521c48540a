"""A history made of a few rows, for tests: what each needs is said, the rest is ordinary."""

from accounting.history import collect, store
from accounting.sources import records

ORDINARY = {
    "Cluster": "c", "Submit": "900", "Eligible": "900", "Start": "1000", "End": "4600", "State": "COMPLETED", "ExitCode": "0:0",
    "AllocNodes": "1", "AllocCPUS": "8", "AllocTRES": "cpu=8,mem=8000M,node=1", "TimelimitRaw": "120", "Partition": "llm",
    "Account": "ml", "QOS": "normal", "User": "alice", "NodeList": "n1", "JobName": "train",
}  # fmt: skip


def row(job, **fields):
    """One row of text in the order of the field table. `job`: JobIDRaw; JobID follows unless given."""
    full = {**ORDINARY, "JobIDRaw": str(job), "JobID": str(job), **fields}
    if "." in str(job):
        full = {k: v for k, v in full.items() if k in ("JobIDRaw", "JobID", "Cluster", "Start", "End", "State", "NodeList")}
        full.update({k: v for k, v in fields.items()})
    return [full.get(name, "") for name in records.FIELD_NAMES]


def stores(path):
    """A new, empty database."""
    return collect.Stores(store.connect(str(path)), str(path), "c")


def put(into, *rows):
    """Collect rows as if a source had given them."""
    return collect.store_rows(into, records.FIELD_NAMES, [list(r) for r in rows], source="test")
