"""Opening a PostgreSQL ledger: what could lose a commit is refused, and what is not ours is left as it was."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hil.pgserver import Server, scratch_server
from hil.trials.pgcut import wire
from ledger import postgres_open
from ledger.errors import LedgerUnsafe, LedgerUnusable
from ledger.postgres import PostgresStore
from ledger.postgres_driver import PgConnection
from ledger.postgres_open import SETTINGS, why_unsafe
from ledger.testing import pulse
from tests.ledger.ledgerkit import CLOCK, fork, reap
from tests.ledger.placekit import InDatabase, new_database

OPEN = "ledger/postgres_open.py"
DRIVER = "ledger/postgres_driver.py"


@pytest.fixture
def place(server: Server) -> InDatabase:
    return new_database(server)


def refused(url: str, kind: type[Exception], match: str) -> str:
    """Opening raises in one line; what it says."""
    with pytest.raises(kind, match=match) as raised:
        PostgresStore.open(url).close()
    assert str(raised.value).isprintable()
    assert str(raised.value).startswith(("ledger postgresql://", "a ledger in PostgreSQL", "ledger: "))
    return str(raised.value)


def tables(place: InDatabase) -> list[tuple[Any, ...]]:
    return place.sql("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1")


# Settings -----------------------------------------------------------------------------------------------


def settings(**changed: str) -> dict[str, str]:
    values = ("on", "on", "on", "off", "")
    return {**dict(zip(SETTINGS, values, strict=True)), **changed}


@pytest.mark.mutation(OPEN, 'if commit not in ("on", "remote_apply", "remote_write", "local"):', "if False:")
@pytest.mark.mutation(OPEN, 'if standbys and commit not in ("on", "remote_apply"):', "if False:")
@pytest.mark.mutation(OPEN, 'if values["fsync"] != "on":', "if False:")
@pytest.mark.mutation(OPEN, 'if values["full_page_writes"] != "on":', "if False:")
@pytest.mark.mutation(OPEN, 'if values["data_sync_retry"] != "off":', "if False:")
@pytest.mark.parametrize(
    ("changed", "bad"),
    [
        ({}, None),
        ({"synchronous_commit": "remote_apply"}, None),
        ({"synchronous_commit": "remote_write"}, None),
        ({"synchronous_commit": "local"}, None),
        ({"synchronous_commit": "off"}, "synchronous_commit"),
        ({"synchronous_standby_names": "a"}, None),
        ({"synchronous_standby_names": "a", "synchronous_commit": "remote_apply"}, None),
        ({"synchronous_standby_names": "a", "synchronous_commit": "local"}, "synchronous_commit"),
        ({"synchronous_standby_names": "a", "synchronous_commit": "remote_write"}, "synchronous_commit"),
        ({"fsync": "off"}, "fsync"),
        ({"full_page_writes": "off"}, "full_page_writes"),
        ({"data_sync_retry": "on"}, "data_sync_retry"),
    ],
)
def test_only_what_keeps_an_acknowledged_commit_is_safe(changed: dict[str, str], bad: str | None) -> None:
    """With standbys, an acknowledged commit is on their disks too: anything less than that is refused."""
    problem = why_unsafe(settings(**changed))
    assert (problem and problem[0]) == bad


@pytest.mark.mutation(
    OPEN, "    if problem is not None:\n        name, why", "    if False:\n        name, why"
)
@pytest.mark.parametrize(
    ("where", "source", "remedy"),
    [
        ('ALTER DATABASE "{db}" SET synchronous_commit = off', "database", "ALTER DATABASE … RESET"),
        ("ALTER ROLE role_{n} SET synchronous_commit = off", "user", "ALTER ROLE … RESET"),
        (
            'ALTER ROLE role_{n} IN DATABASE "{db}" SET synchronous_commit = off',
            "database user",
            "ALTER ROLE … IN DATABASE … RESET",
        ),
        ("", "client", "take it out of the URL's options"),
    ],
)
def test_a_commit_that_is_not_waited_for_is_refused_wherever_it_comes_from(
    place: InDatabase, where: str, source: str, remedy: str
) -> None:
    """The error names the setting, its value, who set it and what to do; nothing was made."""
    number = place.database[-8:]
    place.sql(f"CREATE ROLE role_{number} LOGIN SUPERUSER")
    url = f"postgresql://role_{number}@/{place.database}?host={place.server.socket.parent}"
    if where:
        place.sql(where.format(db=place.database, n=number))
    else:
        url += "&options=-csynchronous_commit%3Doff"
    said = refused(url, LedgerUnsafe, "synchronous_commit = off")
    assert f"(from: {source})" in said
    assert remedy in said
    assert tables(place) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("synchronous_commit", "off"), ("fsync", "off"), ("full_page_writes", "off"), ("data_sync_retry", "on")],
)
def test_an_unsafe_server_is_refused(name: str, value: str) -> None:
    """By its own file, with the setting, its value and the remedy."""
    with scratch_server(**{name: value}) as server:
        said = refused(server.url(), LedgerUnsafe, f"{name} = {value} .from: configuration file")
        assert f"set {name} = {'off' if value == 'on' else 'on'} in postgresql.conf and reload" in said


@pytest.mark.mutation(OPEN, '{"synchronous_commit": commit, **_SESSION}', "_SESSION")
def test_what_was_found_safe_is_pinned_in_the_session(server: Server, place: InDatabase) -> None:
    """A reload that turns it off reaches new workers, who refuse it, and not one that is at work."""
    store = PostgresStore.open(place.url)
    try:
        server.configure(synchronous_commit="off")
        refused_or_not_yet(place.url)
        store.submit(pulse("a", 1), CLOCK)
        assert store._engine._db.execute("SHOW synchronous_commit") == [("on",)]  # type: ignore[attr-defined]
    finally:
        server.configure(synchronous_commit="on")
        store.close()


def refused_or_not_yet(url: str) -> None:
    """Until the server has taken the change over."""
    for _ in range(200):
        try:
            PostgresStore.open(url).close()
        except LedgerUnsafe:
            return
    pytest.fail("never refused")


@pytest.mark.mutation(OPEN, 'if refuse_unsafe(db)["synchronous_commit"] != commit:', "if False:")
def test_what_is_set_is_read_back(place: InDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that does not stick is noticed."""
    found = iter(("on", "local"))
    monkeypatch.setattr(postgres_open, "refuse_unsafe", lambda _: settings(synchronous_commit=next(found)))
    refused(place.url, LedgerUnsafe, "was set, and is not in force")


# Servers and databases that are not ours ------------------------------------------------------------------


@pytest.mark.mutation(OPEN, "    if db.version < VERSION_MIN:\n", "    if False:\n")
def test_a_server_that_is_too_old_is_refused(place: InDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """With both versions, and before anything is made."""
    monkeypatch.setattr(PgConnection, "version", 130_014)
    refused(place.url, LedgerUnusable, "the server is PostgreSQL 13, older than 14")
    assert tables(place) == []


@pytest.mark.mutation(OPEN, 'if db.execute("SELECT pg_backend_pid()") != [(db.pid_told,)]:', "if False:")
def test_a_pooler_is_refused(server: Server, place: InDatabase) -> None:
    """It tells another process number than the server's: a lock would belong to nobody in particular."""
    with tempfile.TemporaryDirectory(prefix="hil-") as folder, wire(Path(folder), server.socket) as line:
        line.shifted_pid = True
        refused(line.url(place.database), LedgerUnusable, "a connection pooler stands before the server")
    assert tables(place) == []


@pytest.mark.mutation(OPEN, 'if db.execute(SQL["relations_of_others"]) != [(0,)]:', "if False:")
def test_a_database_of_somebody_else_is_refused(place: InDatabase) -> None:
    """It has tables, and not the one that marks a ledger: nothing is added to it."""
    place.sql("CREATE TABLE customers (name TEXT)")
    refused(place.url, LedgerUnusable, "is a database with tables, but not a ledger; it was not changed")
    assert tables(place) == [("customers",)]


@pytest.mark.mutation(OPEN, "    if version > newest:\n", "    if False:\n")
def test_a_newer_schema_is_left_alone(place: InDatabase) -> None:
    """An older program does not touch what it does not understand."""
    PostgresStore.open(place.url).close()
    place.sql("UPDATE battery_hil SET version = 99")
    refused(place.url, LedgerUnusable, r"newer version \(schema 99, this one knows 1\)")


@pytest.mark.mutation(OPEN, "    if unlogged:\n", "    if False:\n")
def test_a_table_that_a_crash_would_empty_is_refused(place: InDatabase) -> None:
    """UNLOGGED is fast, and gone."""
    PostgresStore.open(place.url).close()
    place.sql("ALTER TABLE gaps SET UNLOGGED")
    refused(place.url, LedgerUnsafe, "the table gaps is not logged.*ALTER TABLE gaps SET LOGGED")


@pytest.mark.mutation(OPEN, "    if not found:\n", "    if False:\n")
def test_empty_tables_are_no_new_ledger(place: InDatabase) -> None:
    """A schema that was restored without its rows forgot what was sent."""
    PostgresStore.open(place.url).close()
    place.sql("DELETE FROM ledger")
    refused(place.url, LedgerUnusable, "its tables are empty")


def test_a_ledger_is_found_again(place: InDatabase) -> None:
    """Opening again changes nothing: it keeps its generation and its commands."""
    store = PostgresStore.open(place.url)
    store.submit(pulse("a", 1), CLOCK)
    store.close()
    before = place.sql("SELECT generation FROM ledger")
    again = PostgresStore.open(place.url)
    assert again.row("a") is not None
    again.close()
    assert place.sql("SELECT generation FROM ledger") == before


def test_eight_processes_make_one_ledger_at_once(place: InDatabase) -> None:
    """All of them open the same empty database together; each gets the whole ledger."""

    def work(seq: int) -> None:
        PostgresStore.open(place.url).submit(pulse(f"p{seq}", seq), CLOCK)

    pids = [fork(lambda seq=seq: work(seq)) for seq in range(1, 9)]  # type: ignore[misc]
    assert [reap(pid) for pid in pids] == [0] * 8
    assert place.sql("SELECT count(*) FROM commands") == [(8,)]
    assert place.sql("SELECT count(*) FROM ledger") == [(1,)]


# What cannot be reached -----------------------------------------------------------------------------------


def test_no_server_is_said_in_one_line() -> None:
    """With the place, without the password, and what to do."""
    said = refused(
        "postgresql://me:hush@/ledger?host=/nowhere", LedgerUnusable, "cannot be reached .*start the server"
    )
    assert "hush" not in said
    assert "/nowhere" in said


def test_what_is_no_url_is_said_in_one_line() -> None:
    """It is not tried."""
    refused("postgresql://me:hush@[", LedgerUnusable, "the URL cannot be read")


@pytest.mark.mutation(DRIVER, "    except ImportError as error:\n", "    except KeyError as error:\n")
def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is needed by nobody else, and so it is not installed with the rest."""

    def absent(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    refused("postgresql:///x", LedgerUnusable, r"pip install 'battery-hil\[postgres\]'")


@pytest.mark.mutation(DRIVER, "import importlib\n", "import importlib\n\nimport psycopg as _  # noqa: F401\n")
def test_psycopg_is_imported_only_with_a_ledger() -> None:
    """``import ledger.postgres`` works without it."""
    code = "import sys, ledger.postgres; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
