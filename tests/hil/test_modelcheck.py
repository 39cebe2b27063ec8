"""The model check: what it finds when a rule is dropped, and what it says of the logs of really killed workers."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hil import modelcheck
from hil.modelcheck import Entry, Report, Search, replay
from hil.modelcheck_world import INVARIANTS, Rules
from ledger.errors import IllegalEvent
from ledger.machine import TABLE, Event, State
from tests.readmekit import block

pytestmark = pytest.mark.timeout(400)
"""The whole search is most of a minute of one core where that is slow, and cores are shared."""

MODEL = "hil/modelcheck_model.py"
WORLD = "hil/modelcheck_world.py"
CHECK = "hil/modelcheck.py"

BREAKS = {
    "flight_time": {"applied_once", "closed_is_over", "energy_on_books"},
    "doubt_sent_flag": {"applied_once", "closed_is_over", "energy_on_books"},
    "supersession_waits": {"closed_is_over"},
    "stop_at_once": {"stops_never_wait"},
    "absent_is_unknown": {"energy_on_books"},
    "fence_check": {"no_stale_dispatch"},
    "late_check": {"no_stale_dispatch"},
    "kill_before_takeover": {"no_stale_dispatch"},
    "conclusive_only": {"applied_once"},
    "clock_doubted": {"no_stale_dispatch"},
    "earlier_energy_kept": {"energy_on_books"},
}
"""What may be the first thing to break when a rule is dropped."""


@pytest.fixture(scope="module")
def report() -> Report:
    """The whole search, once."""
    return modelcheck.look()


@pytest.mark.slow
def test_the_rules_as_built_hold_everywhere(report: Report) -> None:
    """No order of deaths, stalls, lost, late and foreign frames, reboots and clock steps breaks an invariant."""
    assert [(found.scope.name, found.broken, found.trace) for found in report.as_built if found.broken] == []
    assert report.problems() == ()


@pytest.mark.parametrize("rule", BREAKS)
@pytest.mark.mutation(WORLD, "return row.air == 0 or not self.rules.flight_time", "return row.air == 0")
@pytest.mark.mutation(MODEL, 'return "stops_never_wait" if self._due(world) else None', "return None")
@pytest.mark.mutation(WORLD, "waits, row = self.rules.supersession_waits,", "waits, row = True,")
def test_each_rule_is_needed(rule: str) -> None:
    """A dropped rule breaks what it guards, and the way there is told step by step."""
    found = modelcheck.without(rule)
    assert found.broken in BREAKS[rule], found.trace
    assert found.broken in INVARIANTS
    assert 3 <= len(found.trace) <= 25
    assert any("guards ok" in line for line in found.trace)


def test_every_rule_has_its_counterexample() -> None:
    """A switch that the test above does not know is not tested."""
    assert set(BREAKS) == set(modelcheck.switches())


@pytest.mark.slow
def test_a_pair_that_is_never_reached_needs_a_reason(report: Report) -> None:
    """Whoever adds an event to the table adds it to the model, or says why not."""
    bare = Report([found for found in report.as_built if not found.scope.cancel], {})
    assert any("never reached" in line and "release or cancel" in line for line in bare.problems())
    assert {pair for pair in TABLE if not report.pairs[pair]} == set(modelcheck.UNREACHED)


@pytest.mark.mutation(CHECK, 'raise _Broken("legal_events", at, None, str(error)) from None', "raise")
def test_an_event_that_the_table_does_not_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search asks the table itself: where it lost a rule, somebody states what is illegal."""

    def poorer(state: State, event: Event, facts: frozenset[object]) -> object:
        raise IllegalEvent(state, event, ())

    monkeypatch.setattr("hil.modelcheck_world._table", poorer)
    found = Search(modelcheck.SCOPES[0]).run()
    assert found.broken == "legal_events"


@pytest.mark.mutation(CHECK, "if stuck >= 0:", "if False:")
def test_a_row_that_cannot_settle_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time stands still, no flight time passes, and what is uncertain stays so."""
    monkeypatch.setattr("hil.modelcheck_model.Model._may_tick", lambda *_: False)
    found = Search(modelcheck.SCOPES[0], Rules()).run()
    assert found.broken == "rows_settled"


@pytest.mark.slow
def test_equal_searches_say_equal_things(report: Report) -> None:
    """The README shows what the search says, to the letter."""
    assert block(Path("README.md").read_text(encoding="utf-8"), "model") == modelcheck.summary(report)


# -- real ledgers --------------------------------------------------------------------------------------

ROWS = ("before_intent", "intent_saved", "action_sent", "receipt_saved", "action_sent.sigkill")


def entries(path: Path) -> list[Entry]:
    """The event log of a ledger."""
    columns = ", ".join(Entry._fields)
    db = sqlite3.connect(path)
    try:
        return [Entry(*row) for row in db.execute(f"SELECT {columns} FROM events ORDER BY n")]
    finally:
        db.close()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Entry]]:
    """The logs of workers that were really killed, and of those that came after them."""
    out = tmp_path_factory.mktemp("model") / "out"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hil", "run", "configs/fake.toml", "--worker", "durable"),
            *("--out", str(out)),
            *(part for name in ROWS for part in ("--scenario", name)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: entries(out / "rows" / f"{name}.durable" / "ledger.sqlite") for name in ROWS}


@pytest.mark.parametrize("name", ROWS)
def test_what_killed_workers_wrote_is_what_the_model_allows(name: str, logs: dict[str, list[Entry]]) -> None:
    """The log of a row with a death in it holds to the table, entry by entry."""
    assert len(logs[name]) >= 3
    assert replay(logs[name]) == []


def tampered(log: list[Entry], place: int, **changes: Any) -> list[str]:
    """What is said of a log in which one entry reads otherwise; negative places count from the end."""
    changed = log[place]._replace(**changes)
    return replay([changed if entry is log[place] else entry for entry in log])


@pytest.mark.mutation(CHECK, "if command.state == State.CLOSED:", "if False:")
@pytest.mark.mutation(CHECK, "if step.to != entry.state_to:", "if False:")
@pytest.mark.mutation(CHECK, "if entry.state_from != command.state:", "if False:")
@pytest.mark.mutation(CHECK, "if takes and entry.fence <= newest:", "if False:")
@pytest.mark.mutation(CHECK, "if not takes and entry.fence != command.fence:", "if False:")
@pytest.mark.mutation(CHECK, "entry.incarnation not in (None, command.incarnation):", "False:")
@pytest.mark.mutation(CHECK, "if not command.claim or command.claim != entry.fence:", "if False:")
@pytest.mark.mutation(CHECK, "if entry.version < command.version:", "if False:")
def test_a_log_that_was_tampered_with_is_reported(logs: dict[str, list[Entry]]) -> None:
    """Each way in which a log can leave the model has a line of its own."""
    log = logs["receipt_saved"]
    names = [entry.event for entry in log]
    intent, claim = names.index(Event.GUARDS_OK), names.index("claimed")
    taken = names.index(Event.OWNER_LOST)
    last = log[-1]
    assert last.state_to == State.CLOSED

    def told(words: str, lines: list[str]) -> None:
        assert any(words in line for line in lines), lines

    told("after it was closed", replay([*log, last._replace(n=last.n + 1, state_from="CLOSED")]))
    told("makes CLOSED of ACTIVE, not RELEASING", tampered(log, -1, state_to="RELEASING"))
    told("it was PENDING, and the entry begins at ACTIVE", tampered(log, intent, state_from="ACTIVE"))
    told("when 1 was given out already", tampered(log, taken, fence=1))
    told("under fence 1, when 2 holds it", tampered(log, -1, fence=1))
    told("by worker nobody-knows", tampered(log, -1, incarnation="nobody-knows"))
    told("version 1 after", tampered(log, -1, version=1))
    told("the table does not know this", tampered(log, -1, event="start_by passed", facts=""))
    told("the table does not know this", tampered(log, -1, event="made up"))
    told("not counted first", replay([entry for entry in log if entry is not log[claim]]))


@pytest.mark.mutation(CHECK, "if command.doubted:", "if False:")
def test_a_second_intent_without_a_verdict_is_reported(logs: dict[str, list[Entry]]) -> None:
    """Back to PENDING leads one way from UNCERTAIN, and a log without it does not hold."""
    log = logs["action_sent"]
    last = log[-1]
    assert last.state_to == State.UNCERTAIN
    forged = [
        last._replace(
            n=last.n + 1, event="claimed", facts="", state_from="UNCERTAIN", state_to="PENDING", fence=9
        ),
        last._replace(
            n=last.n + 2, event=Event.GUARDS_OK, facts="", state_from="PENDING", state_to="INTENT", fence=9
        ),
    ]
    lines = replay([*log, *forged])
    assert any("without a verdict between" in line for line in lines), lines
