"""The command mailbox of model 64900: one frame that is atomic, idempotent and fenced."""

from __future__ import annotations

import pytest

from simulator.control import Cause, MailboxResult
from simulator.device import Device
from simulator.inverter import RING_LENGTH
from simulator.journal import TOKENS_MAX
from simulator.layout import Refusal
from tests.simulator.simkit import ManualClock, mail, mail_words, pulse, put, value


def result(device: Device) -> MailboxResult:
    return MailboxResult(value(device, 64900, "MbRes"))


def test_a_command_is_applied_and_names_itself(device: Device, clock: ManualClock) -> None:
    """SET means watts, a timer of MbTms, and 0 W afterwards."""
    assert mail(device, 0xA1, 2000, 60, fence=3) is None

    assert result(device) is MailboxResult.APPLIED
    assert (value(device, 64900, "CurTok"), value(device, 64900, "CurFence")) == (0xA1, 3)
    assert (value(device, 704, "WSetEna"), value(device, 704, "WSetRvrtTms")) == (1, 60)
    assert (value(device, 704, "WSet"), value(device, 704, "WSetEnaRvrt")) == (2000, 0)
    clock.now_s += 61
    assert (value(device, 704, "WSetEna"), value(device, 64900, "CurTok")) == (0, 0)


@pytest.mark.mutation("simulator/requests.py", "if box.token in tokens:", "if False:")
def test_a_known_token_is_answered_and_not_executed(device: Device, clock: ManualClock) -> None:
    """The repeat of a command whose answer was lost is harmless, whatever its fence or its CmdSeq."""
    mail(device, 0xA1, 2000, 60, fence=3)
    clock.now_s += 50
    assert mail(device, 0xA1, 2000, 60, fence=1, if_seq=0) is None

    assert result(device) is MailboxResult.DUPLICATE
    assert value(device, 64900, "CmdSeq") == 1
    assert value(device, 704, "WSetRvrtRem") == 10


@pytest.mark.mutation("simulator/requests.py", "if box.fence < inverter.cur_fence:", "if False:")
def test_an_older_fence_is_refused(device: Device) -> None:
    """Exception 3, FENCED: a worker that was taken over can do nothing any more."""
    mail(device, 0xA1, fence=3)

    assert mail(device, 0xA2, 1000, fence=2) is Refusal.ILLEGAL_VALUE
    assert result(device) is MailboxResult.FENCED
    assert value(device, 64900, "EffW") == 2000
    assert value(device, 64900, "MbTok") == 0xA1


@pytest.mark.mutation(
    "simulator/requests.py", "if box.if_seq not in (ANY_SEQ, inverter.cmd_seq):", "if False:"
)
def test_a_stale_compare_and_set_is_refused(device: Device) -> None:
    """Exception 3, STALE: somebody else has changed what is in force since the sender looked."""
    mail(device, 0xA1, if_seq=0)
    assert result(device) is MailboxResult.APPLIED

    assert mail(device, 0xA2, if_seq=0) is Refusal.ILLEGAL_VALUE
    assert result(device) is MailboxResult.STALE
    assert value(device, 64900, "CmdSeq") == 1


@pytest.mark.parametrize(
    "words",
    [
        mail_words(0xA2, 5001),
        mail_words(0xA2, -5001),
        mail_words(0),
        [*mail_words(0xA2)[:10], 0, 100, *mail_words(0xA2)[12:]],
    ],
    ids=["over", "under", "no-token", "target"],
)
@pytest.mark.mutation(
    "simulator/requests.py",
    "if box.op != MailboxOp.SET or box.rvrt_w != 0 or not control.within(inverter.battery):",
    "if False:",
)
@pytest.mark.mutation("simulator/requests.py", "if box.token == 0:", "if False:")
def test_a_value_out_of_range_is_refused(device: Device, words: list[int]) -> None:
    """Exception 3, RANGE, and nothing is in force; a token of 0 would be nobody's command."""
    assert put(device, 64900, "MbTok", *words) is Refusal.ILLEGAL_VALUE

    assert result(device) is MailboxResult.RANGE
    assert value(device, 64900, "CmdSeq") == 0
    assert device.entries() == ()


@pytest.mark.mutation(
    "simulator/requests.py",
    "if not inverter.plant.permits(control.set_point_w(inverter.battery), inverter.plant.at(now_s)):",
    "if False:",
)
def test_at_the_reserve_a_discharge_is_out_of_range(device: Device) -> None:
    """The mailbox is no way around the reserve."""
    put(device, 802, "SoCRsvMin", 900)

    assert mail(device, 0xA1) is Refusal.ILLEGAL_VALUE
    assert result(device) is MailboxResult.RANGE


@pytest.mark.mutation("simulator/inverter.py", "token if control.ena else 0", "token")
def test_a_release_always_leaves_its_token(device: Device) -> None:
    """Nothing in force, or not: the sender finds its token in the journal, and a repeat is a duplicate."""
    mail(device, 0xA1)
    mail(device, 0xA2, op=2)
    mail(device, 0xA3, op=2)
    mail(device, 0xA3, op=2)

    assert [(e.token, e.power_w, e.cause) for e in device.entries()] == [
        (0xA1, 2000, Cause.SET),
        (0xA2, 0, Cause.RELEASE),
        (0xA3, 0, Cause.RELEASE),
    ]
    assert value(device, 704, "WSetEna") == 0
    assert value(device, 64900, "CurTok") == 0


@pytest.mark.parametrize(("first", "last"), [(0, 14), (0, 4), (1, 15), (14, 15), (4, 8)])
@pytest.mark.mutation("simulator/requests.py", " or len(about.mail) < len(MAILBOX_POINTS)", "")
def test_half_a_command_is_refused(device: Device, first: int, last: int) -> None:
    """Only all fifteen registers in one request execute, or are a duplicate; parts never add up."""
    mail(device, 0xA1)
    words = mail_words(0xA1, 1000)[first:last]

    refused = device.write(device.layout.address(64900, "MbTok") + first, words)
    assert refused is Refusal.ILLEGAL_VALUE
    assert result(device) is MailboxResult.APPLIED
    assert (value(device, 64900, "MbW"), value(device, 64900, "CmdSeq")) == (2000, 1)


@pytest.mark.mutation("simulator/inverter.py", "token if control.ena else 0", "token or self.cur_token")
def test_a_plain_write_supersedes_and_has_no_token(device: Device) -> None:
    """CurTok 0 tells the mailbox's client that somebody else is in force now."""
    mail(device, 0xA1)
    pulse(device, 1000, 60)

    assert (value(device, 64900, "CurTok"), value(device, 64900, "CmdSeq")) == (0, 2)


def test_the_ring_shows_the_newest_entries_first(device: Device, clock: ManualClock) -> None:
    """Token, number, watts, boot, time and counter of each of the last eight changes."""
    for n in range(1, 12):
        mail(device, n, 360 * n, 0)
        clock.now_s += 10

    shown = [
        tuple(value(device, 64900, f"Jrn[{i}].{p}") for p in ("Tok", "Seq", "W", "Boot", "At"))
        for i in range(RING_LENGTH)
    ]
    assert shown == [(n, n, 360 * n, 1, 10 * (n - 1)) for n in range(11, 3, -1)]
    assert value(device, 64900, "Jrn[0].DisWhMil") == sum(1000 * n for n in range(1, 11))


@pytest.mark.mutation("simulator/journal.py", "self.tokens[entry.token] = None", "pass")
def test_tokens_are_remembered_longer_than_the_ring_shows_them(device: Device) -> None:
    """A duplicate is known after many other commands, up to a limit."""
    for n in range(1, 102):
        mail(device, n)
    assert mail(device, 1) is None

    assert result(device) is MailboxResult.DUPLICATE
    assert TOKENS_MAX > 10 * RING_LENGTH
