"""What a commissioning changes about what is let at a unit."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from hil.admission import Permission, in_parts, left_alone, may_repeat
from hil.probe_record import ProbeRecord, TimerFound
from ledger.model import Capabilities, Identity
from tests.hil.rehearsalkit import bench

FILE = "hil/admission.py"
CLAIMS = Capabilities(kind="test", reversion=True)
ALONE = Permission(arm="HIL-0001")


def probed(*, acts: bool | None = True, atomic: bool | None = True) -> ProbeRecord:
    """A record of the unit on the bench."""
    return ProbeRecord(
        identity=Identity("battery-hil", "reference", "1", "HIL-0001"),
        at=datetime(2026, 11, 29, tzinfo=UTC),
        rehearsal=False,
        timer=TimerFound(asked_s=60, acts=acts, target=None, after_s=None),
        block_atomic=atomic,
        fc06=None,
        fc16=None,
        range_check=None,
        power_cycle=None,
        counter_step_wh=None,
        counter_lag_s=None,
        read_back_s=None,
    )


@pytest.mark.mutation(
    FILE, "capabilities.reversion if record is None else record.timer.acts", "capabilities.reversion"
)
@pytest.mark.mutation(FILE, "    if acts is not True:", "    if acts is False:")
@pytest.mark.mutation(FILE, "    if permission.attended:", "    if False:")
def test_who_may_leave_a_unit_alone() -> None:
    """What a probe saw counts before what the profile claims; somebody who stays there settles it."""
    assert left_alone(ALONE, "HIL-0001", CLAIMS, None) is None
    assert left_alone(ALONE, "HIL-0001", CLAIMS, probed()) is None
    for seen in (False, None):
        why = left_alone(ALONE, "HIL-0001", CLAIMS, probed(acts=seen))
        assert why is not None
        assert "hil probe saw on 2026-11-29" in why
        assert "--attended" in why
    claimed = left_alone(ALONE, "HIL-0001", Capabilities(kind="test"), None)
    assert claimed is not None
    assert "so its profile says" in claimed
    assert left_alone(Permission(attended=True), "HIL-0001", Capabilities(kind="test"), None) is None


@pytest.mark.mutation(FILE, "record.block_atomic is not False", "record.block_atomic is not True")
@pytest.mark.mutation(FILE, "or config.target.frames > 1", "")
def test_a_block_that_is_taken_in_parts_is_no_command() -> None:
    """It could start without its timer; a command of two frames, the trigger last, is no block."""
    why = in_parts(bench(), probed(atomic=False))
    assert why is not None
    assert "enable_last" in why
    assert in_parts(bench(), probed()) is None
    assert in_parts(bench(), probed(atomic=None)) is None
    assert in_parts(bench(), None) is None
    assert in_parts(bench(target={"commit": "enable_last"}), probed(atomic=False)) is None


@pytest.mark.mutation(FILE, "if record is not None and record.timer.acts is True:", "if record is not None:")
def test_who_may_repeat() -> None:
    """A worker that repeats is only let at a unit whose timer was seen to act: claims do not count."""
    assert may_repeat(probed(), "") is None
    for record in (probed(acts=False), probed(acts=None)):
        why = may_repeat(record, "")
        assert why is not None
        assert "seen not to act" in why
    assert may_repeat(None, "never probed") == (
        "a volatile worker strands the battery unless the unit falls back by itself: never probed; run hil probe first"
    )
