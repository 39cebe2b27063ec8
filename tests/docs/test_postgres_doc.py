"""``docs/postgres.md`` says what the code does: its numbers, its settings, its URL."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hil import worker
from ledger import books, postgres, postgres_driver, postgres_open
from ledger.errors import LedgerUnusable
from ledger.postgres_open import SETTINGS

TEXT = Path(__file__).parents[2].joinpath("docs", "postgres.md").read_text(encoding="utf-8")
PLAIN = " ".join(TEXT.split())


@pytest.mark.mutation("ledger/postgres.py", "RECONNECT_S_MAX: Final = 25.0", "RECONNECT_S_MAX: Final = 26.0")
@pytest.mark.mutation("ledger/postgres.py", "STANDBY_S_MAX: Final = 15.0", "STANDBY_S_MAX: Final = 16.0")
@pytest.mark.mutation("ledger/postgres_driver.py", "VANISHED_S: Final = 11", "VANISHED_S: Final = 12")
@pytest.mark.mutation(
    "ledger/postgres_open.py", "VERSION_MIN: Final = 140_000", "VERSION_MIN: Final = 150_000"
)
@pytest.mark.parametrize(
    "sentence",
    [
        f"takes writes for {postgres.RECONNECT_S_MAX:g} s",
        f"does not confirm within {postgres.STANDBY_S_MAX + postgres.RECONNECT_S_MAX:g} s",
        f"noticed by its server after {postgres_driver.VANISHED_S} s",
        f"another host has {books.LEASE_S:g} s to come back",
        f"PostgreSQL {postgres_open.VERSION_MIN // 10_000} or newer",
    ],
)
def test_its_numbers_are_the_codes(sentence: str) -> None:
    """What the prose says of a limit is what the constant says."""
    assert sentence in PLAIN


def test_every_setting_that_is_refused_is_in_the_table() -> None:
    """And no other; which standbys there are is a matter of the next section."""
    table = re.findall(r"^\| `(\w+)` \|", TEXT, flags=re.MULTILINE)
    assert {*table, "synchronous_standby_names"} == set(SETTINGS)


def test_its_example_is_what_a_worker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets as far as looking for the servers that it names."""
    (example,) = re.findall(r"<!-- worker: .*-->\n```json\n(.*?)\n```", TEXT, flags=re.DOTALL)
    assert json.loads(example)["url"].startswith("postgresql://")
    monkeypatch.setattr("ledger.postgres_driver.CONNECT_S_MAX", 2)
    with pytest.raises(LedgerUnusable, match="db-a,db-b/ledger: cannot be reached"):
        worker._store("durable", {"HIL_LEDGER": example})


def test_its_steps_are_those_of_the_test() -> None:
    """The names that the two servers are set up by are the same in both."""
    steps = (
        Path(__file__).parents[1].joinpath("ledger", "test_postgres_standby.py").read_text(encoding="utf-8")
    )
    for name in ("site_b", "synchronous_standby_names", "sync_state FROM pg_stat_replication"):
        assert name in TEXT
        assert name in steps
