"""Opening a PostgreSQL ledger without trusting it: which server, which settings, whose database.

Measured with a real power cut: with ``fsync`` and ``synchronous_commit`` on, 50 of 50 acknowledged commits are
there afterwards; with ``synchronous_commit = off`` none of them, and with ``fsync = off`` not even the table.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

from ledger.engine import named_statements
from ledger.errors import LedgerError, LedgerUnsafe, LedgerUnusable, one_line
from ledger.postgres_driver import PgConnection

SQL: Final = named_statements(
    (resources.files("ledger") / "sql" / "postgres" / "session.sql").read_text(encoding="utf-8")
)
"""What only this engine asks for, by name."""

VERSION_MIN: Final = 140_000
"""PostgreSQL 14: the oldest one that notices while it waits that its client is gone."""
BUSY_S: Final = 5.0
"""How long to wait for another writer; a transaction here takes a few milliseconds."""
SETTINGS: Final = (
    "synchronous_commit",
    "fsync",
    "full_page_writes",
    "data_sync_retry",
    "synchronous_standby_names",
)
"""What decides whether an acknowledged commit is kept; looked at again in every transaction."""

_SESSION: Final = {
    "lock_timeout": f"{BUSY_S:g}s",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "client_connection_check_interval": "1s",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
"""A session is a worker's sign of life: it is not ended for being idle, nor kept once its host is gone."""

_REMEDIES: Final = {
    "database": "ALTER DATABASE … RESET {name}",
    "user": "ALTER ROLE … RESET {name}",
    "database user": "ALTER ROLE … IN DATABASE … RESET {name}",
    "client": "take it out of the URL's options, or out of PGOPTIONS",
    "command line": "start the server without -c {name}",
}


def why_unsafe(values: Mapping[str, str]) -> tuple[str, str] | None:
    """The setting (of :data:`SETTINGS`) that could lose an acknowledged commit, and how; None if none could."""
    commit, standbys = values["synchronous_commit"], values["synchronous_standby_names"]
    if commit not in ("on", "remote_apply", "remote_write", "local"):
        return "synchronous_commit", "a crash of the server could take back an acknowledged commit"
    if standbys and commit not in ("on", "remote_apply"):
        return (
            "synchronous_commit",
            f"synchronous_standby_names = {one_line(standbys)}, but a commit would be acknowledged before it is on"
            " the standby's disk, so the loss of the primary could take it back",
        )
    if values["fsync"] != "on":
        return "fsync", "a power cut could destroy the whole ledger"
    if values["full_page_writes"] != "on":
        return "full_page_writes", "a power cut could leave half-written pages behind"
    if values["data_sync_retry"] != "off":
        return "data_sync_retry", "after a disk error a write that was lost would count as written"
    return None


def refuse_unsafe(db: PgConnection) -> Mapping[str, str]:
    """The settings in force, or :class:`~ledger.errors.LedgerUnsafe` with where the bad one comes from."""
    found = {name: (value, source) for name, value, source in db.execute(SQL["settings"])}
    values = {name: value for name, (value, _) in found.items()}
    problem = why_unsafe(values)
    if problem is not None:
        name, why = problem
        value, source = found[name]
        safe = "off" if name == "data_sync_retry" else "on"
        how = _REMEDIES.get(source, "set {name} = {safe} in postgresql.conf and reload").format(
            name=name, safe=safe
        )
        raise LedgerUnsafe(
            f"ledger {db.place}: {name} = {value} (from: {source}): {why}; nothing is dispatched from it: {how}"
        )
    return values


def check_server(db: PgConnection) -> None:
    """Refuse a server that is too old, a pooler, and unsafe settings; then set up the session and read it back."""
    if db.version < VERSION_MIN:
        raise LedgerUnusable(
            f"ledger {db.place}: the server is PostgreSQL {db.version // 10_000}, older than"
            f" {VERSION_MIN // 10_000}; nothing was changed: upgrade it"
        )
    if db.execute("SELECT pg_backend_pid()") != [(db.pid_told,)]:
        raise LedgerUnusable(
            f"ledger {db.place}: a connection pooler stands before the server, and a worker's locks would belong to"
            " whoever gets its session next; nothing was changed: connect to the server itself"
        )
    commit = refuse_unsafe(db)["synchronous_commit"]
    # Set in the session, what was found stays in force when the server's files are read again.
    for name, value in {"synchronous_commit": commit, **_SESSION}.items():
        db.execute("SELECT set_config(?, ?, false)", (name, value))
    if refuse_unsafe(db)["synchronous_commit"] != commit:
        raise LedgerUnsafe(f"ledger {db.place}: synchronous_commit = {commit} was set, and is not in force")


def check_ledger(db: PgConnection) -> str:
    """Make the ledger if the database is empty, refuse what is none of this version; its generation.

    In a transaction, under a lock that all who open it take.
    """
    if db.execute("SELECT to_regclass('battery_hil')")[0][0] is None:
        _create(db)
    ((version,),) = db.execute("SELECT version FROM battery_hil") or [(0,)]
    newest = len(_migrations())
    if version > newest:
        raise LedgerUnusable(
            f"ledger {db.place}: was written by a newer version (schema {version}, this one knows {newest});"
            " it was not changed: use that version"
        )
    unlogged = db.execute(SQL["unlogged"])
    if unlogged:
        raise LedgerUnsafe(
            f"ledger {db.place}: the table {unlogged[0][0]} is not logged, so a crash of the server would empty it;"
            f" nothing is dispatched from it: ALTER TABLE {unlogged[0][0]} SET LOGGED"
        )
    found = db.execute("SELECT generation FROM ledger")
    if not found:
        raise LedgerUnusable(
            f"ledger {db.place}: its tables are empty; it was not changed: restore all of it"
        )
    return str(found[0][0])


def _create(db: PgConnection) -> None:
    if db.execute("SELECT current_schema()") == [(None,)]:
        raise LedgerUnusable(f"ledger {db.place}: the role has no schema in its search_path; give it one")
    if db.execute(SQL["relations_of_others"]) != [(0,)]:
        raise LedgerUnusable(
            f"ledger {db.place}: is a database with tables, but not a ledger; it was not changed: give an empty one"
        )
    try:
        for script in _migrations():
            db.script(script)
    except LedgerError as error:
        raise LedgerUnusable(f"{error}; nothing was made: let the role create tables in its schema") from None
    db.execute("INSERT INTO battery_hil (one, version) VALUES (1, ?)", (len(_migrations()),))
    db.execute("INSERT INTO ledger (one, generation, fence) VALUES (1, ?, 0)", (uuid.uuid4().hex,))


def _migrations() -> Sequence[str]:
    folder = resources.files("ledger") / "migrations" / "postgres"
    files: list[Any] = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [file.read_text(encoding="utf-8") for file in files]
