"""Samples that the ledger wrote before a field was there."""

from __future__ import annotations

import json
from dataclasses import replace

from ledger.model import SAMPLE, Reading
from ledger.testing import ManualClock, sample


def test_a_sample_without_a_temperature_is_still_read(clock: ManualClock) -> None:
    """A ledger from before there was one gives a sample whose temperature is unknown."""
    written = json.loads(SAMPLE.dump_json(sample(clock)))
    del written["temp_c"]

    assert SAMPLE.validate_json(json.dumps(written)) == sample(clock)
    assert sample(clock).temp_c == Reading(None, "°C", 0.0, "")


def test_a_temperature_is_kept(clock: ManualClock) -> None:
    """There and back, unchanged."""
    warm = replace(sample(clock), temp_c=Reading(31.5, "°C", 500.0, "701.TmpCab"))

    assert SAMPLE.validate_json(SAMPLE.dump_json(warm)) == warm
