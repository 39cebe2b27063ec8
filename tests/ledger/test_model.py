"""A command is read exactly as it was meant, or refused with key, value and remedy in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.errors import InvalidCommand, one_line, shorten
from ledger.model import (
    Confirmed,
    Identity,
    NotSent,
    Outcome,
    Pulse,
    Reading,
    Reference,
    Rejected,
    Release,
    Setpoint,
    Unknown,
    describe,
    parse_command,
)
from ledger.testing import ManualClock, sample

PULSE: dict[str, Any] = {
    "kind": "pulse",
    "id": "p1",
    "device": "unit-1",
    "seq": 7,
    "power_w": 2000.0,
    "duration_s": 3600.0,
    "reference": "inverter_ac",
    "start_by_s": 1767225600.0,
}
SETPOINT: dict[str, Any] = {
    "kind": "setpoint",
    "id": "s1",
    "device": "unit-1",
    "seq": 8,
    "power_w": -1500.0,
    "start_by_s": 1767225600.0,
    "ends_at_s": 1767229200.0,
    "silence_s": 30.0,
    "on_silence": "finish",
}
RELEASE: dict[str, Any] = {"kind": "release", "id": "r1", "device": "unit-1", "seq": 9, "cancels": "p1"}


def text(base: Mapping[str, Any] = PULSE, /, **changes: Any) -> str:
    return json.dumps({**base, **changes})


def without(key: str, base: dict[str, Any] = PULSE) -> str:
    return json.dumps({name: value for name, value in base.items() if name != key})


def refusal(payload: str | bytes) -> InvalidCommand:
    with pytest.raises(InvalidCommand) as raised:
        parse_command(payload)
    message = str(raised.value)
    assert message.isprintable(), "one line"
    assert len(message) < 700, "and not an endless one"
    return raised.value


# Accepted -----------------------------------------------------------------------------------------------


def test_a_pulse_is_read() -> None:
    """Every key of a Pulse arrives under its name."""
    read = parse_command(text())
    assert read == Pulse(
        id="p1",
        device="unit-1",
        seq=7,
        power_w=2000.0,
        duration_s=3600.0,
        reference=Reference.INVERTER_AC,
        start_by_s=1767225600.0,
    )


def test_a_setpoint_is_read() -> None:
    """Every key of a Setpoint arrives under its name."""
    read = parse_command(text(SETPOINT))
    assert isinstance(read, Setpoint)
    assert (read.power_w, read.ends_at_s, read.silence_s, read.on_silence) == (
        -1500.0,
        1767229200.0,
        30.0,
        "finish",
    )


def test_a_release_is_read() -> None:
    """A Release needs no power, and may name what it cancels."""
    read = parse_command(text(RELEASE))
    assert isinstance(read, Release)
    assert read.cancels == "p1"


def test_a_pulse_of_bytes_is_read() -> None:
    """UTF-8 bytes are as good as text."""
    assert parse_command(text().encode()) == parse_command(text())


def test_a_time_may_be_iso_text_with_an_offset() -> None:
    """ISO 8601 with Z or an offset means the same moment as its seconds."""
    for spelling in ("2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", 1767225600):
        read = parse_command(text(start_by_s=spelling))
        assert isinstance(read, Pulse)
        assert read.start_by_s == 1767225600.0


def test_a_setpoint_of_zero_needs_no_end() -> None:
    """Nothing is moved by 0 W, so it may stand for ever."""
    read = parse_command(text(SETPOINT, power_w=0, ends_at_s=None))
    assert isinstance(read, Setpoint)
    assert read.ends_at_s is None


def test_the_energy_of_a_pulse_is_derived_and_signed() -> None:
    """2 kW for an hour is 2,000 Wh out; charging is negative."""
    out, into = parse_command(text()), parse_command(text(power_w=-1000, duration_s=1800))
    assert isinstance(out, Pulse)
    assert isinstance(into, Pulse)
    assert (out.energy_wh, into.energy_wh) == (2000.0, -500.0)


def test_the_longest_id_is_128_characters() -> None:
    """An id of 128 characters is accepted."""
    assert parse_command(text(id="x" * 128)).id == "x" * 128


# Refused ------------------------------------------------------------------------------------------------


@pytest.mark.mutation("ledger/model.py", 'extra="forbid", strict=True', "strict=True")
def test_an_unknown_key_is_refused() -> None:
    """A misspelt key is not ignored."""
    error = refusal(text(powr_w=1))
    assert (error.key, error.value, error.problem) == ("powr_w", 1, "is not a known key")


@pytest.mark.mutation(
    "ledger/model.py", "        del places[0]", "        places = [p for p in places if p != places[0]]"
)
def test_an_unknown_key_that_is_called_like_a_kind_is_named() -> None:
    """The key path is the payload's own, even if a key is called "pulse"."""
    assert refusal(text(pulse=1)).key == "pulse"


@pytest.mark.mutation("ledger/model.py", 'extra="forbid", strict=True', 'extra="forbid"')
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seq", True),
        ("seq", 1.0),
        ("seq", "1"),
        ("seq", -1),
        ("seq", 2**63),
        ("power_w", True),
        ("power_w", "2000"),
        ("power_w", None),
        ("power_w", [2000]),
        ("power_w", 10**400),
        ("power_w", 100_000_001),
        ("power_w", -100_000_001),
        ("duration_s", False),
        ("duration_s", 0),
        ("duration_s", -1),
        ("duration_s", 86_401),
        ("id", 5),
        ("id", ""),
        ("id", "x" * 129),
        ("id", "a b"),
        ("id", "a\n"),
        ("id", "\ud800"),
        ("device", "../x"),
        ("device", "é"),
        ("reference", "dc"),
        ("reference", 1),
        ("start_by_s", True),
        ("start_by_s", None),
        ("start_by_s", {}),
        ("kind", "puls"),
        ("kind", "a\nb"),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused(key: str, value: object) -> None:
    """The refusal names the key and the value, and the message has both."""
    error = refusal(text(**{key: value}))
    assert (error.key, error.value) == (key, value)
    assert str(error) == (
        f"command: {key} = {shorten(value)}: {one_line(error.problem)}; correct it and send the command again"
    )


@pytest.mark.mutation("ledger/model.py", "        if value == 0:\n", "        if False:\n")
@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_a_pulse_of_no_power_is_refused(zero: float) -> None:
    """0 W moves nothing: that is a Release, or a mistake."""
    error = refusal(text(power_w=zero))
    assert error.problem == "a pulse of 0 W moves nothing; give its power, or send a Release"


@pytest.mark.mutation("ledger/model.py", ", parse_constant=_no_constant", "")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json_number_is_refused(number: str) -> None:
    """NaN and the infinities, which Python's parser lets through, are no JSON."""
    error = refusal(text(power_w=1234).replace("1234", number))
    assert error.problem == f"is not JSON ({number} is not a number that JSON allows)"


@pytest.mark.mutation("ledger/model.py", ", allow_inf_nan=False", "")
@pytest.mark.parametrize("key", ["power_w", "start_by_s"])
def test_a_number_beyond_floating_point_is_refused(key: str) -> None:
    """1e400 is legal JSON and reads as infinity: no such power or time is accepted."""
    error = refusal(text(**{key: 1234}).replace("1234", "1e400"))
    assert (error.key, error.problem) == (key, "input should be a finite number")


@pytest.mark.mutation("ledger/model.py", "    if moment.tzinfo is None:\n", "    if False:\n")
@pytest.mark.parametrize("moment", ["2026-01-01T00:00:00", "2026-01-01"])
def test_a_time_without_a_zone_is_refused(moment: str) -> None:
    """A naive time means another moment on every machine."""
    error = refusal(text(start_by_s=moment))
    assert (error.key, error.value) == ("start_by_s", moment)
    assert error.problem.startswith("is a time without a zone; add Z or an offset")


@pytest.mark.parametrize("moment", ["garbage", "", "2026-13-01T00:00:00Z", "17:00Z", "1767225600"])
def test_a_time_that_is_none_is_refused(moment: str) -> None:
    """Text that is no ISO 8601 moment is refused under its key."""
    assert refusal(text(start_by_s=moment)).key == "start_by_s"


@pytest.mark.mutation("ledger/model.py", "        if key in found:\n", "        if False:\n")
def test_a_key_that_appears_twice_is_refused() -> None:
    """Which of two values was meant is not guessed."""
    error = refusal(text()[:-1] + ', "power_w": 1}')
    assert error.problem == "is not JSON (key 'power_w' appears twice)"


@pytest.mark.mutation("ledger/model.py", "    if len(payload) > PAYLOAD_BYTES_MAX:\n", "    if False:\n")
def test_a_payload_of_ten_megabytes_is_not_parsed() -> None:
    """Its length alone is the reason; its content is not looked at, nor quoted."""
    error = refusal(text(id="x" * 10_000_000))
    assert (error.key, error.problem) == ("payload", "is longer than 65,536 bytes")


def test_deep_nesting_is_refused() -> None:
    """A bomb of brackets ends as a refusal and not as a crash."""
    assert refusal("[" * 60_000).key == "payload"
    assert refusal('{"kind":' * 8_000).key == "payload"


@pytest.mark.parametrize(
    "payload", ["[]", "null", "3", '"pulse"', "", "{", b"\xff\xfe\x00", "\ufeff{}", "1" * 5000]
)
def test_what_is_no_json_object_is_refused(payload: str | bytes) -> None:
    """Anything but one object is no command."""
    assert refusal(payload).key == "payload"


@pytest.mark.parametrize("key", ["kind", "id", "device", "seq", "power_w", "duration_s", "start_by_s"])
def test_a_missing_key_is_refused(key: str) -> None:
    """What a pulse needs is named if it is not there."""
    error = refusal(without(key))
    assert (error.key, error.value, error.problem) == (key, None, "is missing")


@pytest.mark.mutation("ledger/model.py", "            if self.power_w != 0:\n", "            if False:\n")
def test_a_setpoint_that_moves_power_needs_an_end() -> None:
    """No worker that dies can leave a battery at work for ever."""
    assert refusal(text(SETPOINT, ends_at_s=None)).problem == (
        "a setpoint that moves power needs ends_at_s, within 24 h"
    )


@pytest.mark.mutation(
    "ledger/model.py", "<= DURATION_S_MAX:\n            raise", "<= 1e9:\n            raise"
)
@pytest.mark.parametrize("end_s", [1767225600.0, 1767225599.0, 1767312000.001])
def test_a_setpoint_ends_after_its_start_and_within_a_day(end_s: float) -> None:
    """Neither before start_by nor more than 24 h after it."""
    assert refusal(text(SETPOINT, ends_at_s=end_s)).problem == (
        "ends_at_s must lie after start_by_s, and within 24 h of it"
    )


@pytest.mark.mutation("ledger/errors.py", "{one_line(key)}", "{key}")
@pytest.mark.parametrize("key", ["a\nb", "x" * 60_000, "\x1b[31m"])
def test_a_key_from_outside_stays_in_one_short_line(key: str) -> None:
    """A key that is a line break, an escape sequence or endless does not spoil the message."""
    assert refusal(text(**{key: 1})).key == key


# Digest -------------------------------------------------------------------------------------------------

CHANGES: list[tuple[dict[str, Any], str, object]] = [
    (PULSE, "id", "p2"),
    (PULSE, "device", "unit-2"),
    (PULSE, "seq", 6),
    (PULSE, "power_w", 2000.5),
    (PULSE, "power_w", -2000.0),
    (PULSE, "duration_s", 3600.5),
    (PULSE, "reference", "grid"),
    (PULSE, "start_by_s", 1767225600.5),
    (SETPOINT, "power_w", -1500.5),
    (SETPOINT, "ends_at_s", 1767229201.0),
    (SETPOINT, "silence_s", 31.0),
    (SETPOINT, "on_silence", "revert"),
    (RELEASE, "cancels", "p2"),
    (RELEASE, "cancels", None),
]


@pytest.mark.mutation(
    "ledger/model.py",
    '_CANONICAL(self.model_dump(mode="json"))',
    "_CANONICAL([self.id, getattr(self, 'power_w', 0)])",
)
@pytest.mark.parametrize(("base", "key", "value"), CHANGES)
def test_every_field_is_in_the_digest(base: dict[str, Any], key: str, value: object) -> None:
    """A command that differs in anything has another digest."""
    assert parse_command(text(base, **{key: value})).digest != parse_command(text(base)).digest


@pytest.mark.mutation(
    "ledger/model.py",
    "type(self).model_validate({**self.model_dump(), **(update or {})})",
    "super().model_copy(update=update, deep=deep)",
)
@pytest.mark.parametrize("base", [PULSE, SETPOINT])
def test_a_changed_copy_is_another_command(base: dict[str, Any]) -> None:
    """It has a digest of its own, though that of the first was asked for; and it is checked."""
    command = parse_command(text(base))
    assert command.model_copy().digest == command.digest
    assert command.model_copy(update={"seq": 77}).digest != command.digest
    with pytest.raises(ValueError, match="seq"):
        command.model_copy(update={"seq": -1})


def test_the_kind_is_in_the_digest() -> None:
    """A set-point is no pulse, whatever else agrees."""
    same: dict[str, Any] = {"id": "x", "device": "d", "seq": 1}
    kinds = [
        Release(**same),
        Pulse(**same, power_w=1.0, duration_s=1.0, start_by_s=0.0),
        Setpoint(**same, power_w=0.0, start_by_s=0.0),
    ]
    assert len({command.digest for command in kinds}) == 3


def test_the_digest_is_the_same_for_every_spelling() -> None:
    """Key order, white space, int or float, ISO text and a default that is written out change nothing."""
    spellings = [
        text(),
        json.dumps(PULSE, sort_keys=True, indent=2),
        text(power_w=2000, duration_s=3600, start_by_s=1767225600),
        text().replace("2000.0", "2e3"),
        text(start_by_s="2026-01-01T01:00:00+01:00"),
        without("reference"),
    ]
    assert {parse_command(spelling).digest for spelling in spellings} == {parse_command(text()).digest}


def test_the_digest_never_changes_between_versions() -> None:
    """Ledgers outlive programs: this literal is on somebody's disk."""
    assert parse_command(text()).digest == (
        "087cecb1bc67a81816b04af14930ececdcf4c9feadfa35728151f81013aab18a"
    )


# Any input ----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


def either(payload: str | bytes) -> None:
    """Read it, or be told in one line why not; any other error fails the test."""
    with suppress(InvalidCommand):
        try:
            parse_command(payload)
        except InvalidCommand as error:
            if not str(error).isprintable():
                raise AssertionError(f"more than one line: {error}") from error
            raise


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_escape_as_another_error(payload: bytes) -> None:
    """Any bytes are a command or an InvalidCommand."""
    either(payload)


@settings(deadline=None)
@given(
    st.sampled_from([PULSE, SETPOINT, RELEASE]),
    st.dictionaries(st.sampled_from([*PULSE, *SETPOINT, "x"]), JSON),
)
def test_no_json_escapes_as_another_error(base: dict[str, Any], changes: dict[str, Any]) -> None:
    """A command with any JSON in any of its places is a command or an InvalidCommand."""
    either(text(base, **changes))


@settings(deadline=None)
@given(
    st.floats(-1e6, 1e6).filter(bool),
    st.floats(0.001, 86_400),
    st.integers(0, 2**63 - 1),
    st.floats(-1e12, 1e12),
)
def test_a_command_survives_its_own_json(
    power_w: float, duration_s: float, seq: int, start_by_s: float
) -> None:
    """What the books store reads back as the same command with the same digest."""
    command = Pulse(
        id="p", device="d", seq=seq, power_w=power_w, duration_s=duration_s, start_by_s=start_by_s
    )
    again = parse_command(command.model_dump_json())
    assert (again, again.digest) == (command, command.digest)


# What a device says -------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["manufacturer", "model", "version", "serial"])
def test_an_identity_is_all_four_names(part: str) -> None:
    """Maker, model, firmware and serial number are each in the digest."""
    one = Identity("a", "b", "c", "d")
    assert replace(one, **{part: "x"}).digest != one.digest


@pytest.mark.mutation(
    "ledger/model.py", "if soc is None or reserve is None or capacity is None:", "if soc is None:"
)
@pytest.mark.parametrize("part", ["soc_pct", "reserve_pct", "capacity_wh"])
def test_energy_above_the_reserve_is_unknown_if_any_part_is(part: str) -> None:
    """A value that the device did not give is no zero."""
    known = sample(ManualClock())
    assert known.above_reserve_wh == 12_500.0
    gone: dict[str, Any] = {part: Reading(None, "", 0.0, "test")}
    assert replace(known, **gone).above_reserve_wh is None


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (Confirmed(), "confirmed"),
        (Rejected(3), "rejected(03)"),
        (Unknown("no reply"), "unknown(no reply)"),
        (NotSent("not connected"), "not_sent(not connected)"),
    ],
)
def test_an_outcome_in_a_word(outcome: Outcome, word: str) -> None:
    """The event log names outcomes shortly."""
    assert describe(outcome) == word
