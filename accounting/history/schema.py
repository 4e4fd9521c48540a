"""Schema of the history as named migrations. SQLite keeps the comments: `sqlite-utils schema history.db` shows them.

A migration is never changed once released: add another. Times are epoch seconds (UTC), memory is MiB.
"""

from __future__ import annotations

import time
from typing import Any

_TABLES = """
CREATE TABLE clusters (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  high_water INTEGER,            -- accounting is read up to here
  deep_read INTEGER,             -- when the last longer stretch was read again for rows that came late
  backfill_start INTEGER,        -- an interrupted `collect -S`: its start,
  backfill_end INTEGER,          -- its end,
  backfill_next INTEGER          -- and where it goes on
);
CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE states (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);  -- any word that Slurm ever printed
CREATE TABLE works (             -- kinds of work: a user's jobs of one name
  id INTEGER PRIMARY KEY,
  user_id INTEGER NOT NULL REFERENCES users(id),
  name TEXT NOT NULL,            -- job name; a BLOB where its bytes are not UTF-8
  UNIQUE (user_id, name)
);
CREATE TABLE nodes (
  id INTEGER PRIMARY KEY,
  cluster_id INTEGER NOT NULL REFERENCES clusters(id),
  name TEXT NOT NULL,
  first_seen INTEGER,            -- earliest task or inventory
  last_seen INTEGER,             -- latest task or inventory
  gone INTEGER,                  -- when it was no longer in the configuration; NULL: it is
  UNIQUE (cluster_id, name)
);
CREATE TABLE node_specs (        -- what a node had, with history: a row holds from valid_from to the next row
  node_id INTEGER NOT NULL REFERENCES nodes(id) ON DELETE CASCADE,
  valid_from INTEGER NOT NULL,
  memory_mib INTEGER,            -- RealMemory
  cpus INTEGER,
  gpus INTEGER,
  gpu_type TEXT,                 -- type most of its GPUs have
  gres TEXT,                     -- Gres as Slurm shows it
  features TEXT,
  partitions TEXT,
  switch TEXT,                   -- leaf switch
  source TEXT NOT NULL,          -- scontrol, file or inferred (largest concurrent allocation seen)
  PRIMARY KEY (node_id, valid_from)
) WITHOUT ROWID;
CREATE TABLE attempts (          -- one attempt of one job; a requeue or resize is another
  id INTEGER PRIMARY KEY,
  cluster_id INTEGER NOT NULL REFERENCES clusters(id),
  job_id INTEGER NOT NULL,       -- Slurm's own number (JobIDRaw); below 0 where a dump had JobID only
  submit INTEGER NOT NULL,
  digest BLOB NOT NULL,          -- of the text it was read from: unchanged rows aren't written again
  is_open INTEGER NOT NULL,      -- 1: can still change and is read again
  label TEXT NOT NULL,           -- JobID as people see it: 123, 123_4, 123+1
  array_job INTEGER,
  array_task INTEGER,
  het_job INTEGER,
  het_offset INTEGER,
  work_id INTEGER NOT NULL REFERENCES works(id),
  account TEXT,
  partition TEXT,
  qos TEXT,
  state_id INTEGER NOT NULL REFERENCES states(id),
  cancelled_by INTEGER,          -- uid
  exit_code INTEGER,
  exit_signal INTEGER,
  derived_code INTEGER,          -- highest exit code of its steps
  derived_signal INTEGER,
  eligible INTEGER,
  start INTEGER,                 -- NULL: never ran, charges no node
  end INTEGER,                   -- NULL: not ended
  elapsed INTEGER,               -- seconds without suspensions
  limit_minutes INTEGER,         -- NULL: none
  nnodes INTEGER NOT NULL,
  cpus INTEGER,
  mem_mib REAL,                  -- of the whole job
  gpus INTEGER,
  gpu_type TEXT,
  node_list TEXT NOT NULL,       -- folded
  failed_node TEXT,              -- the node that failed under it, where Slurm says so
  restarts INTEGER,
  nsteps INTEGER NOT NULL,
  flags INTEGER NOT NULL,        -- 1 end was before start, 2 end from run time, 4 no raw id, 8 bad node list, 16 DST hour
  UNIQUE (cluster_id, job_id, submit)
);
CREATE INDEX attempts_open ON attempts (cluster_id) WHERE is_open = 1;
CREATE TABLE tasks (             -- one attempt on one node
  attempt_id INTEGER NOT NULL REFERENCES attempts(id) ON DELETE CASCADE,
  node_id INTEGER NOT NULL REFERENCES nodes(id),
  start INTEGER NOT NULL,
  end INTEGER,                   -- NULL: runs
  cpus REAL,
  mem_mib REAL,
  gpus REAL,
  max_rss_mib REAL,              -- largest resident memory that accounting tells for this node
  exact INTEGER NOT NULL,        -- 1: told by a step or the only node; 0: divided evenly
  PRIMARY KEY (attempt_id, node_id)
) WITHOUT ROWID;
CREATE TABLE steps (             -- steps that did not complete; what the others tell is in tasks
  attempt_id INTEGER NOT NULL REFERENCES attempts(id) ON DELETE CASCADE,
  step TEXT NOT NULL,            -- batch, extern, interactive, 0, 1, …
  name TEXT NOT NULL,
  state_id INTEGER NOT NULL REFERENCES states(id),
  exit_code INTEGER,
  exit_signal INTEGER,
  start INTEGER,
  end INTEGER,
  ntasks INTEGER,
  cpus INTEGER,
  mem_mib REAL,
  gpus INTEGER,
  max_rss_mib REAL,
  max_rss_node TEXT,
  node_list TEXT NOT NULL,
  PRIMARY KEY (attempt_id, step)
) WITHOUT ROWID;
CREATE TABLE node_events (       -- what Slurm, health checks or people say of a node
  id INTEGER PRIMARY KEY,
  node_id INTEGER NOT NULL REFERENCES nodes(id) ON DELETE CASCADE,
  kind TEXT NOT NULL,            -- down, drain, repaired, bad, ignore, report
  start INTEGER NOT NULL,
  end INTEGER,                   -- NULL: still so
  state TEXT,                    -- Slurm's word
  reason TEXT,
  reason_class TEXT NOT NULL,    -- hardware, user, planned, repaired, unknown: by [events.reasons]
  who TEXT,
  source TEXT NOT NULL,          -- slurmdbd, mark, or what an import says
  UNIQUE (node_id, start, kind, source)
);
CREATE TABLE job_marks (         -- `workhorse mark --job`
  cluster_id INTEGER NOT NULL REFERENCES clusters(id),
  job_id INTEGER NOT NULL,
  submit INTEGER NOT NULL,
  mark TEXT NOT NULL,            -- wrong
  note TEXT,
  who TEXT,
  made INTEGER NOT NULL,
  PRIMARY KEY (cluster_id, job_id, submit)
) WITHOUT ROWID;
CREATE TABLE rejects (           -- rows that could not be understood
  id INTEGER PRIMARY KEY,
  cluster_id INTEGER NOT NULL REFERENCES clusters(id),
  seen INTEGER NOT NULL,
  source TEXT NOT NULL,
  reason TEXT NOT NULL,
  text TEXT NOT NULL,            -- kept fields only
  digest BLOB NOT NULL,
  UNIQUE (cluster_id, digest)
);
"""

# made after the first rows are there: sorting them once costs a fraction of keeping an index through a large import
INDICES = (
    "CREATE INDEX IF NOT EXISTS attempts_end ON attempts (cluster_id, end)",
    "CREATE INDEX IF NOT EXISTS tasks_node ON tasks (node_id, start)",
)

_VIEWS = """
CREATE VIEW job_history AS
SELECT a.id AS attempt_id, c.name AS cluster, a.label AS job, a.job_id, u.name AS user, w.name AS job_name,
  a.account, a.partition,
  a.qos, s.name AS state, a.exit_code, a.exit_signal, a.nnodes, a.node_list, a.cpus, a.mem_mib, a.gpus, a.gpu_type,
  datetime(a.submit, 'unixepoch') AS submit_utc, datetime(a.start, 'unixepoch') AS start_utc,
  datetime(a.end, 'unixepoch') AS end_utc,
  (a.end - a.start) / 3600.0 AS hours, a.failed_node, a.restarts
FROM attempts a JOIN clusters c ON c.id = a.cluster_id JOIN works w ON w.id = a.work_id JOIN users u ON u.id = w.user_id
  JOIN states s ON s.id = a.state_id;
CREATE VIEW task_history AS
SELECT t.attempt_id, n.name AS node, c.name AS cluster, a.label AS job, u.name AS user, w.name AS job_name, s.name AS state,
  datetime(t.start, 'unixepoch') AS start_utc, datetime(t.end, 'unixepoch') AS end_utc, (t.end - t.start) / 3600.0 AS hours,
  t.cpus, t.mem_mib, t.gpus, t.max_rss_mib, t.exact, a.nnodes
FROM tasks t JOIN attempts a ON a.id = t.attempt_id JOIN nodes n ON n.id = t.node_id JOIN clusters c ON c.id = a.cluster_id
  JOIN works w ON w.id = a.work_id JOIN users u ON u.id = w.user_id JOIN states s ON s.id = a.state_id;
CREATE VIEW node_current AS
SELECT n.id AS node_id, c.name AS cluster, n.name AS node, p.memory_mib, p.cpus, p.gpus, p.gpu_type, p.features, p.partitions,
  p.switch,
  p.source, datetime(n.first_seen, 'unixepoch') AS first_seen_utc, datetime(n.last_seen, 'unixepoch') AS last_seen_utc,
  datetime(n.gone, 'unixepoch') AS gone_utc
FROM nodes n JOIN clusters c ON c.id = n.cluster_id
  LEFT JOIN node_specs p ON p.node_id = n.id
    AND p.valid_from = (SELECT max(valid_from) FROM node_specs WHERE node_id = n.id);
"""


def _script(db: Any, text: str) -> None:
    """Run the statements of a script one by one: executescript would end the transaction that holds the migration."""
    import sqlite3  # noqa: PLC0415

    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement) and not line.lstrip().startswith("--"):
            db.execute(statement.strip())
            statement = ""


def m001_tables(db: Any) -> None:
    _script(db, _TABLES)


def m002_views(db: Any) -> None:
    _script(db, _VIEWS)


def m003_carried(db: Any) -> None:
    """What one nightly run leaves to the next because it changes slowly."""
    db.execute(
        "CREATE TABLE carried (cluster_id INTEGER NOT NULL REFERENCES clusters(id), name TEXT NOT NULL, value REAL NOT NULL,"
        " made INTEGER NOT NULL, PRIMARY KEY (cluster_id, name)) WITHOUT ROWID"
    )


BLOCK_BITS = 12  # attempts of a settled block: 4096 ids


def m004_settled(db: Any) -> None:
    """Blocks of attempts and their tasks as columns, gone with the first change of one of their rows. An insert too can hit
    one: when the newest attempts were pruned, their ids are given out again."""
    db.execute(
        "CREATE TABLE settled (cluster_id INTEGER NOT NULL REFERENCES clusters(id), block INTEGER NOT NULL, data BLOB NOT NULL,"
        " PRIMARY KEY (cluster_id, block))"
    )
    for what, row in (("update", "OLD"), ("delete", "OLD"), ("insert", "NEW")):
        drop = f"DELETE FROM settled WHERE cluster_id = {row}.cluster_id AND block = {row}.id >> 12"  # noqa: S608
        db.execute(f"CREATE TRIGGER settled_{what} AFTER {what} ON attempts BEGIN {drop}; END")


def m005_stretches(db: Any) -> None:
    """Sums of settled stretches of nodes' pasts, as one run leaves them to the next; and a way to the few attempts of which
    Slurm names the node that failed."""
    db.execute("CREATE TABLE stretches (cluster_id INTEGER PRIMARY KEY REFERENCES clusters(id), data BLOB NOT NULL)")
    db.execute("CREATE INDEX attempts_failed ON attempts (id) WHERE failed_node IS NOT NULL")


def m006_members(db: Any) -> None:
    """Members of arrays and het jobs that are there twice, under Slurm's own number and under one made of their JobID: once.

    What ended stays rather than what may still run, else what has Slurm's number.
    """
    twice = db.execute(
        "SELECT n.id, n.is_open, p.id, p.is_open, p.job_id, c.id, n.job_id, n.submit FROM clusters c JOIN attempts n"
        " ON n.cluster_id = c.id AND n.job_id < 0 JOIN attempts p ON p.cluster_id = c.id AND p.label = n.label"
        " AND p.submit = n.submit AND p.job_id > 0"
    ).fetchall()
    for unnumbered, may_run, numbered, may_run_too, number, *key in twice:
        better = may_run_too and not may_run
        gone = numbered if better else unnumbered
        for table, column in (("tasks", "attempt_id"), ("steps", "attempt_id"), ("attempts", "id")):
            db.execute(f"DELETE FROM {table} WHERE {column} = ?", (gone,))  # noqa: S608
        if better:
            db.execute("UPDATE attempts SET job_id = ?, flags = flags & ~4 WHERE id = ?", (number, unnumbered))
        db.execute(
            "UPDATE OR REPLACE job_marks SET job_id = ? WHERE cluster_id = ? AND job_id = ? AND submit = ?", (number, *key)
        )


MIGRATIONS = (m001_tables, m002_views, m003_carried, m004_settled, m005_stretches, m006_members)


def migrate(db: Any) -> list[str]:
    """Bring a sqlite-utils Database to this version's schema, inside the caller's transaction. Returns what was applied.

    A database of a newer version is refused by the caller (see `unknown`).
    """
    if "_migrations" not in db.table_names():
        db.execute("CREATE TABLE _migrations (name TEXT PRIMARY KEY, applied INTEGER NOT NULL)")
    done = {row[0] for row in db.execute("SELECT name FROM _migrations").fetchall()}
    applied = []
    for step in MIGRATIONS:
        if step.__name__ not in done:
            step(db)
            db.execute("INSERT INTO _migrations VALUES (?, ?)", (step.__name__, int(time.time())))
            applied.append(step.__name__)
    return applied


def unknown(db: Any) -> list[str]:
    """Migrations that the database has and this version doesn't know: it was written by a newer one."""
    if "_migrations" not in db.table_names():
        return []
    ours = {step.__name__ for step in MIGRATIONS}
    return [row[0] for row in db.execute("SELECT name FROM _migrations").fetchall() if row[0] not in ours]
