"""``hil ledger``: a person looks at the books and decides; nothing is made by looking, nothing is ever sent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hil import cli, ledgerdesk
from hil.clock import RealClock
from hil.exits import BAD_INPUT, OK
from hil.ledgeropen import opened
from hil.ledgershow import without_password
from ledger.audit import verify
from ledger.clocks import MARK, ClockMark, Moment
from ledger.machine import Event, Fact, State
from ledger.model import Release, Setpoint
from ledger.ports import Row
from ledger.processes import machine
from ledger.sqlite import SqliteStore
from ledger.testing import pulse
from tests.ledger.ledgerkit import CLOCK, closed, intended, sql


@dataclass(frozen=True)
class Said:
    """What a command line came to."""

    code: int
    out: str
    err: str


Hil = Callable[..., Said]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """One closed, one uncertain, one pending command of unit-1."""
    place = tmp_path / "ledger.sqlite"
    store = SqliteStore.open(place)
    closed(store, "morning", 1)
    fence = intended(store, "noon", 2)
    store.evidence(fence, Event.OUTCOME_UNKNOWN, (Fact.PULSE,), CLOCK, "frame 0: unknown(no reply)")
    store.submit(pulse("evening", 3), CLOCK)
    store.close()
    return place


@pytest.fixture
def hil(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hil:
    """``hil ledger`` with the ledger of this test, as a person types it."""

    def run(*arguments: object, ledger: object = path) -> Said:
        where = () if ledger is None else ("--ledger", ledger)
        monkeypatch.setattr(sys, "argv", ["hil", "ledger", *map(str, (*arguments, *where))])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            cli.main()
        said = capsys.readouterr()
        return Said(int(exit.value.code or 0), said.out, said.err)

    return run


def row(path: Path, id: str) -> Row:
    store = SqliteStore.open(path)
    found = store.row(id)
    store.close()
    assert found is not None
    return found


def decide(hil: Hil, path: Path, verdict: str, *more: object, id: str = "noon") -> Said:
    """The decision as ``held`` offers it."""
    held = row(path, id)
    pinned = ("--version", held.version, "--evidence", held.evidence_digest[:8])
    return hil("resolve", id, verdict, *pinned, "--who", "Ada", "--why", "read the meter", *more)


# Looking ------------------------------------------------------------------------------------------------


def test_a_list_fits_into_100_columns(hil: Hil) -> None:
    """One line for each command, and how many are held."""
    said = hil("list")
    lines = [line.rstrip() for line in said.out.splitlines()]
    assert said.code == OK
    assert max(map(len, lines)) <= 100
    assert [line.split()[0] for line in lines] == ["id", "morning", "noon", "evening", "3"]
    assert lines[-1] == "3 commands: 2 open, 1 of them held for a decision"
    assert "CLOSED completed" in lines[1]
    assert "1,999..2,000" in lines[1]


def test_a_list_can_be_narrowed(hil: Hil, monkeypatch: pytest.MonkeyPatch) -> None:
    """By device, to what is open, and to what changed last; it says what it leaves out."""
    assert "2 commands: 2 open" in hil("list", "--open").out
    assert "0 commands: 0 open" in hil("list", "--device", "unit-9").out
    monkeypatch.setattr(ledgerdesk, "ROWS_SHOWN", 1)
    said = hil("list").out
    assert "of which the 1 that changed last are shown" in said
    assert "morning" not in said
    assert "morning" in hil("list", "--all").out


def test_json_says_everything(hil: Hil, path: Path) -> None:
    """``--json`` of list, held and show: state, interval, evidence, codes, log."""
    listed = json.loads(hil("list", "--json").out)
    assert [each["id"] for each in listed] == ["morning", "noon", "evening"]
    assert listed[0]["codes"]["ieee_2030_5"]["number"] == 3
    (held,) = json.loads(hil("held", "--json").out)
    assert (held["id"], held["receipt"]["wh_max"]) == ("noon", 2_000.0)
    assert held["evidence"] == row(path, "noon").evidence_digest
    shown = json.loads(hil("show", "noon", "--json").out)
    assert [entry["event"] for entry in shown["log"]][:2] == ["submitted", "claimed"]


def test_show_has_receipt_codes_and_log(hil: Hil) -> None:
    """What a command is called elsewhere stands beside its receipt."""
    out = hil("show", "morning").out
    assert "codes     IEEE 2030.5 3 (event completed), AddCause 25 (none), DNP3 0 (success)" in out
    assert "delivered between 1,999 and 2,000 Wh" in out
    assert "ACTIVE → CLOSED: end reached" in out


def test_held_shows_what_is_known_and_how_to_decide(hil: Hil, path: Path) -> None:
    """Interval, baseline, since when, which worker; and the command lines that it offers work as they stand."""
    out = hil("held").out
    assert "state     UNCERTAIN, since 2026-01-01 00:00:00 UTC, version 4" in out
    assert "delivered between 0 and 2,000 Wh" in out
    assert "nothing in force, 0 W, 80 % charged; counters 0 Wh out, 0 Wh in" in out
    assert "is gone" in out
    digest = row(path, "noon").evidence_digest
    assert f"evidence  {digest}" in out
    line = next(line for line in out.splitlines() if "resolve noon not_applied" in line)
    assert f"--version 4 --evidence {digest[:12]}" in line
    assert hil(*line.split()[2:], ledger=None).code == OK
    assert row(path, "noon").state is State.CLOSED


@pytest.mark.mutation("hil/ledgershow.py", "if age_s < FLIGHT_S_MAX:", "if False:")
def test_what_may_still_arrive_is_not_to_be_decided_yet(hil: Hil, path: Path) -> None:
    """A frame that a gateway holds back is delivered a minute later."""
    store = SqliteStore.open(path)
    now = RealClock()
    claimed_at = intended(store, "late", 4)
    store.evidence(claimed_at, Event.OUTCOME_UNKNOWN, (Fact.PULSE,), now, "no reply")
    store.close()
    parts = hil("held").out.split("late on")
    assert "WAIT" not in parts[0]
    assert "what was sent may arrive until 120 s have passed" in parts[1]


def test_nothing_held_is_said(hil: Hil, path: Path) -> None:
    """And is no error."""
    decide(hil, path, "abandon")
    assert hil("held") == Said(OK, "0 commands held for a decision\n", "")


@pytest.mark.mutation(
    "hil/ledgerdesk.py", "for row in books.orphans() if row.state not in HELD", "for row in ()"
)
@pytest.mark.mutation("hil/ledgerdesk.py", "books.orphans() if row.state not in HELD", "books.orphans()")
def test_what_a_dead_worker_has_left_is_named(hil: Hil, path: Path) -> None:
    """It was sent, perhaps, and nobody has it: not held yet, and nothing that a script would decide."""
    store = SqliteStore.open(path)
    intended(store, "night", 4)
    store.close()
    said = hil("held").out
    assert "night on unit-1, seq 4: pulse +2000 W 3600 s" in said
    assert said.count("no living worker has it") == 1
    assert said.endswith("1 command held for a decision\n")
    assert len(json.loads(hil("held", "--json").out)) == 1


@pytest.mark.mutation(
    "hil/ledgeropen.py", "    except FileNotFoundError:\n", "    except ZeroDivisionError:\n"
)
@pytest.mark.parametrize(
    "command",
    [("list",), ("held",), ("show", "x"), ("verify",), ("prune",), ("cancel", "x"), ("export", "--out", "o")],
)
def test_no_ledger_is_made_by_asking_for_it(hil: Hil, tmp_path: Path, command: tuple[str, ...]) -> None:
    """A wrong path is one line and 2, and nothing stands there afterwards."""
    wrong = tmp_path / "wrong" / "ledger.sqlite"
    wrong.parent.mkdir()
    said = hil(*command, ledger=wrong)
    assert (said.code, said.out) == (BAD_INPUT, "")
    assert said.err == f"hil: ledger {wrong}: there is no such file, and none was made; give another path\n"
    assert list(wrong.parent.iterdir()) == []


@pytest.mark.mutation("hil/ledgeropen.py", "    if not header or (", "    if False and (")
def test_an_empty_file_stays_empty(hil: Hil, tmp_path: Path) -> None:
    """A worker would make a ledger of it; looking does not."""
    empty = tmp_path / "empty"
    empty.touch()
    assert "is empty, and nothing was made of it" in hil("list", ledger=empty).err
    assert empty.read_bytes() == b""
    assert not Path(f"{empty}.locks").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not a database" * 10, "is not a SQLite file"),
        (b"SQLite format 3\0" + bytes(range(84)), "not a ledger"),
    ],
)
def test_what_is_no_ledger_is_one_line(hil: Hil, tmp_path: Path, content: bytes, said: str) -> None:
    """The reason why it may not be opened, and 2."""
    other = tmp_path / "other"
    other.write_bytes(content)
    found = hil("list", ledger=other)
    assert (found.code, found.err.count("\n")) == (BAD_INPUT, 1)
    assert said in found.err
    assert other.read_bytes() == content


@pytest.mark.mutation("hil/ledgeropen.py", "        if 0 < version < newest:\n", "        if False:\n")
def test_looking_does_not_bring_an_old_ledger_up_to_date(hil: Hil, path: Path) -> None:
    """Its worker, of an older version, may still be running."""
    sql(path, "PRAGMA user_version = 1")
    said = hil("list")
    assert said.code == BAD_INPUT
    assert "was written by an older version (schema 1" in said.err
    assert sql(path, "PRAGMA user_version") == [(1,)]


@pytest.mark.mutation("hil/ledgeropen.py", '    db.execute("PRAGMA query_only = ON")\n', "    pass\n")
def test_what_only_looks_cannot_write(path: Path) -> None:
    """Not by mistake either."""
    with opened(str(path)) as books, pytest.raises(Exception, match="readonly"):
        books.submit(pulse("x", 9), CLOCK)


@pytest.mark.parametrize("mode", [("TRUNCATE", "FULL"), ("PERSIST", "FULL"), ("DELETE", "EXTRA")])
def test_a_ledger_in_another_safe_mode_opens(hil: Hil, tmp_path: Path, mode: tuple[str, str]) -> None:
    """Nobody has to say how it was made."""
    place = tmp_path / "other.sqlite"
    store = SqliteStore.open(place, journal_mode=mode[0], synchronous=mode[1])
    store.submit(pulse("p", 1), CLOCK)
    store.close()
    assert "1 command: 1 open" in hil("list", ledger=place).out
    assert hil("cancel", "p", ledger=place).code == OK
    assert row_count(place) == 2


def row_count(path: Path) -> int:
    count: int = sql(path, "SELECT count(*) FROM commands")[0][0]
    return count


def test_a_url_that_is_none_is_refused_without_its_password(hil: Hil) -> None:
    """Passwords are not for terminals."""
    said = hil("list", ledger="mysql://ada:secret@host/db")
    assert said.code == BAD_INPUT
    assert "mysql://ada@host/db: is neither a path nor a PostgreSQL URL" in said.err


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("ledger.sqlite", "ledger.sqlite"),
        ("postgresql://h/db", "postgresql://h/db"),
        ("postgresql://u:p@h:5432/db?sslmode=require", "postgresql://u@h:5432/db?sslmode=require"),
        ("postgresql://h/db?password=p&user=u", "postgresql://h/db?user=u"),
    ],
)
def test_a_password_is_never_shown(place: str, shown: str) -> None:
    """Wherever it stands in the address."""
    assert without_password(place) == shown


# Deciding -----------------------------------------------------------------------------------------------


def test_applied_closes_it_as_completed(hil: Hil, path: Path) -> None:
    """Who and why stay in the log, and nothing was sent."""
    said = decide(hil, path, "applied")
    assert said.code == OK
    assert "noon: UNCERTAIN → CLOSED (completed)" in said.out
    assert "Nothing was sent." in said.out
    assert "noon is never sent again: if it is still wanted, submit a new command" in said.out
    assert "operator: applied [pulse]: Ada: read the meter" in hil("show", "noon").out


def test_not_applied_puts_nothing_on_the_books(hil: Hil, path: Path) -> None:
    """0..0 Wh."""
    said = decide(hil, path, "not_applied")
    assert "CLOSED (not_delivered); 0..2,000 Wh on the books became 0 Wh" in said.out
    found = row(path, "noon").receipt
    assert found is not None
    assert (found.wh_min, found.wh_max) == (0.0, 0.0)


def test_abandon_keeps_the_interval(hil: Hil, path: Path) -> None:
    """Nobody knows, and the books go on saying so."""
    said = decide(hil, path, "abandon")
    assert "CLOSED (aborted); 0..2,000 Wh on the books became 0..2,000 Wh" in said.out


@pytest.mark.mutation("hil/ledgerdesk.py", "facts |= {Fact.OURS_LIVE} if live else set()", "facts |= set()")
def test_live_leaves_the_stop_to_a_worker(hil: Hil, path: Path) -> None:
    """What is still running is released, not closed over."""
    said = decide(hil, path, "abandon", "--live")
    assert "noon: UNCERTAIN → RELEASING" in said.out
    assert "The next worker of unit-1 stops it" in said.out
    assert row(path, "noon").state is State.RELEASING


@pytest.mark.mutation("hil/ledgerdesk.py", "if live and verdict is Verdict.NOT_APPLIED:", "if False:")
def test_what_is_not_applied_is_not_live(hil: Hil, path: Path) -> None:
    """The two contradict each other, and a contradiction decides nothing."""
    assert "--live: what is not applied is not live" in decide(hil, path, "not_applied", "--live").err
    assert row(path, "noon").state is State.UNCERTAIN


def test_a_decision_on_another_version_changes_nothing(hil: Hil, path: Path) -> None:
    """Between looking and deciding somebody else was here."""
    digest = row(path, "noon").evidence_digest
    said = hil("resolve", "noon", "applied", "--version", 3, "--evidence", digest, "--who", "A", "--why", "w")
    assert said.code == BAD_INPUT
    assert "decided on version 3 of its row, which is at version 4 now" in said.err
    assert row(path, "noon").state is State.UNCERTAIN


@pytest.mark.mutation("hil/ledgerdesk.py", "if not row.evidence_digest.startswith(evidence):", "if False:")
def test_a_decision_on_other_evidence_changes_nothing(hil: Hil, path: Path) -> None:
    """The version alone is easily guessed."""
    said = hil(
        "resolve", "noon", "applied", "--version", 4, "--evidence", "0" * 8, "--who", "A", "--why", "w"
    )
    assert said.code == BAD_INPUT
    assert "or the evidence differs; nothing was changed" in said.err
    assert row(path, "noon").state is State.UNCERTAIN


@pytest.mark.mutation("hil/ledgerdesk.py", "if len(evidence) < EVIDENCE_MIN or", "if")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--evidence": ""}, "--evidence : give 8 hex digits"),
        ({"--evidence": "abc"}, "--evidence abc: give 8 hex digits"),
        ({"--evidence": "not-a-digest"}, "give 8 hex digits"),
        ({"--who": " "}, "--who: is empty"),
        ({"--why": ""}, "--why: is empty"),
    ],
)
def test_a_decision_says_enough(hil: Hil, path: Path, changes: dict[str, str], said: str) -> None:
    """Evidence that names the row, a name, and a reason."""
    digest = row(path, "noon").evidence_digest
    options = {"--version": "4", "--evidence": digest, "--who": "Ada", "--why": "saw it", **changes}
    found = hil("resolve", "noon", "applied", *(part for pair in options.items() for part in pair))
    assert found.code == BAD_INPUT
    assert said in found.err
    assert row(path, "noon").state is State.UNCERTAIN


@pytest.mark.mutation("hil/ledgerdesk.py", "        if row.state not in HELD:\n", "        if False:\n")
@pytest.mark.parametrize("id", ["morning", "evening"])
def test_only_what_is_held_is_decided(hil: Hil, path: Path, id: str) -> None:
    """A person does not overrule the books."""
    said = decide(hil, path, "applied", id=id)
    assert said.code == BAD_INPUT
    assert "only what is UNCERTAIN or with an OPERATOR is decided by a person" in said.err


def test_an_unknown_command_is_one_line(hil: Hil) -> None:
    """And where to look."""
    said = hil("show", "nobody")
    assert (said.code, said.err.count("\n")) == (BAD_INPUT, 1)
    assert "command nobody is not on the books; 'hil ledger list' shows what is" in said.err


# Cancelling ---------------------------------------------------------------------------------------------


def test_a_cancel_is_a_release_with_a_row_of_its_own(hil: Hil, path: Path) -> None:
    """The newest seq of its device; what was only waiting is closed at once."""
    said = hil("cancel", "evening")
    assert "evening.cancel is on the books, seq 4 of unit-1, PENDING. Nothing was sent." in said.out
    assert "evening: PENDING → CLOSED (cancelled), 0 Wh" in said.out
    command = row(path, "evening.cancel").command
    assert isinstance(command, Release)
    assert (command.seq, command.cancels) == (4, "evening")
    assert row(path, "noon").state is State.UNCERTAIN, "and no other command is touched"


def test_what_may_be_running_is_left_to_the_next_worker(hil: Hil, path: Path) -> None:
    """An uncertain command goes on to RELEASING, its interval kept."""
    said = hil("cancel", "noon", "--id", "stop-it").out
    assert "noon: UNCERTAIN → RELEASING (cancelled), 0..2,000 Wh" in said
    assert "The next worker of unit-1 stops it, and closes it once that is verified." in said
    assert row(path, "stop-it").command.seq == 4


@pytest.mark.mutation("hil/ledgerdesk.py", "known.command.cancels == id:", "True:")
def test_a_cancel_asked_for_twice_is_one(hil: Hil, path: Path) -> None:
    """The second answers what the first has come to; another command's id is not taken for it."""
    hil("cancel", "evening")
    assert "evening.cancel is already on the books" in hil("cancel", "evening").out
    assert row_count(path) == 4
    said = hil("cancel", "noon", "--id", "evening.cancel")
    assert "is on the books already, and is no cancel of noon" in said.err


def test_what_is_closed_cannot_be_cancelled(hil: Hil, path: Path) -> None:
    """It is said, and nothing is recorded."""
    assert "command morning is closed already (completed)" in hil("cancel", "morning").err
    assert row_count(path) == 3


def test_a_cancel_comes_after_what_is_forgotten(hil: Hil, path: Path) -> None:
    """Its seq is above the horizon, or it would be refused as too old."""
    hil("prune", "--clock-confirmed")
    sql(path, "UPDATE horizon SET seq = 50")
    assert "seq 51 of unit-1" in hil("cancel", "evening").out


@pytest.mark.parametrize("id", ["no good", "x" * 200])
def test_an_id_that_is_none_is_one_line(hil: Hil, id: str) -> None:
    """What is wrong with it, and what an id looks like."""
    said = hil("cancel", "evening", "--id", id)
    assert said.code == BAD_INPUT
    assert "is no id; give one of 1 to 128 letters" in said.err


# Keeping ------------------------------------------------------------------------------------------------


def test_export_and_verify(hil: Hil, path: Path, tmp_path: Path) -> None:
    """The file verifies without the ledger, and leads to the same head."""
    out = tmp_path / "books.jsonl"
    assert hil("export", "--out", out).code == OK
    store = SqliteStore.open(path)
    head = verify(store).head_hash
    store.close()
    assert f"head {head}" in hil("verify", "--export", out, ledger=None).out
    assert f"head {head}" in hil("verify", "--head", head).out
    said = hil("verify", "--head", "00")
    assert (said.code, said.out) == (BAD_INPUT, "")
    assert "no entry has the hash 00" in said.err


@pytest.mark.mutation(
    "hil/ledgerdesk.py", 'out.open("x", encoding="utf-8")', 'out.open("w", encoding="utf-8")'
)
def test_an_export_overwrites_nothing(hil: Hil, tmp_path: Path) -> None:
    """An earlier one is evidence."""
    out = tmp_path / "books.jsonl"
    out.write_text("earlier", encoding="utf-8")
    assert "cannot be written (File exists)" in hil("export", "--out", out).err
    assert out.read_text(encoding="utf-8") == "earlier"


@pytest.mark.mutation("hil/ledgerdesk.py", "                    out.unlink()\n", "                    pass\n")
def test_half_an_export_is_none(hil: Hil, path: Path, tmp_path: Path) -> None:
    """Of a forged log no file is left that somebody could take for one."""
    sql(path, "DROP TRIGGER events_are_never_changed")
    sql(path, "UPDATE events SET detail = 'x' WHERE n = 7")
    out = tmp_path / "books.jsonl"
    said = hil("export", "--out", out)
    assert said.code == BAD_INPUT
    assert "entry 7 does not fit" in said.err
    assert not out.exists()


def test_verify_wants_one_thing(hil: Hil, tmp_path: Path) -> None:
    """A ledger, or an export."""
    assert "give --ledger, or --export" in hil("verify", ledger=None).err
    assert "give --ledger, or --export" in hil("verify", "--export", tmp_path / "e").err


def test_prune_says_what_went_and_what_is_kept(hil: Hil, path: Path) -> None:
    """And up to where commands are forgotten."""
    said = hil("prune", "--clock-confirmed")
    assert said.out == (
        "dropped 1 command and 5 entries; kept 2 commands and 6 entries\n"
        "unit-1: what has a seq up to 1 may have been carried out, and is refused\n"
    )
    assert "3 entries" not in said.out
    assert "5 were pruned: all fit" in hil("verify").out


def test_a_window_that_is_too_short_is_bad_usage(hil: Hil, path: Path) -> None:
    """7 days at least."""
    assert hil("prune", "--keep-days", 6).code == BAD_INPUT
    assert row_count(path) == 3


@pytest.mark.mutation(
    "hil/ledgerdesk.py", "doubted = None if clock_confirmed else _doubted(books, clock)", "doubted = None"
)
def test_a_doubted_clock_forgets_nothing_unless_confirmed(hil: Hil, path: Path) -> None:
    """The mark on the books says that it is a day earlier than this machine believes."""
    now = RealClock()
    mark = ClockMark(now.wall_s() - 86_400, now.mono_s(), now.boot_id(), None)
    store = SqliteStore.open(path)
    store.set_clock_mark(json.dumps({machine(): MARK.dump_json(mark).decode()}))
    store.close()
    said = hil("prune")
    assert said.code == BAD_INPUT
    assert "the clock is doubted (the wall clock is 86,400 s ahead" in said.err
    assert row_count(path) == 3
    assert hil("prune", "--clock-confirmed").code == OK
    assert row_count(path) == 2


def test_every_kind_of_command_is_shown_in_words(hil: Hil, path: Path) -> None:
    """A set-point with its end, and a cancel with what it is for."""
    store = SqliteStore.open(path)
    begin_s = CLOCK.wall_s() + 600
    held = Setpoint(id="hold", device="u", seq=1, power_w=-500, start_by_s=begin_s, ends_at_s=begin_s + 3_600)
    store.submit(held, CLOCK)
    store.close()
    out = hil("show", "hold").out
    assert out.startswith("hold on u, seq 1: set -500 W\n")
    assert "  ends at   2026-01-01 01:10:00 UTC\n" in out
    assert "  delivered nothing was sent so far\n" in out
    hil("cancel", "hold")
    assert "hold.cancel on u, seq 2: cancel hold" in hil("show", "hold.cancel").out


@pytest.mark.mutation("hil/ledgerdesk.py", "books.set_clock_mark(", "str(")
def test_a_person_confirms_the_clock(path: Path, hil: Hil) -> None:
    """A mark that lies far ahead is a doubt; once somebody has confirmed the clock, there is none."""
    now = Moment.of(RealClock())
    ahead = ClockMark(now.wall_s + 1e9, now.mono_s, now.boot_id, None)
    store = SqliteStore.open(path)
    store.set_clock_mark(json.dumps({machine(): MARK.dump_json(ahead).decode()}))
    store.close()
    doubted = hil("clock")
    assert "believed              no: the wall clock is" in doubted.out
    assert "hil ledger clock --confirm --who NAME" in doubted.out
    nobody = hil("clock", "--confirm")
    assert (nobody.code, "--who NAME" in nobody.err) == (BAD_INPUT, True)
    assert "believed              yes" in hil("clock", "--confirm", "--who", "A. Person").out
    assert "vouched for by A. Person" in hil("clock").out
