"""What the guardian makes of who answers at the end."""

from __future__ import annotations

from typing import Any

import pytest

from hil.guardian import Guardian
from hil.safetystop import Safe
from ledger.errors import UnitSilent, WrongUnit
from ledger.model import Identity

SAFE = Safe(True, "stopped with 1 frame; default mode verified", 1, 2.0)


class Answers:
    """An actuator of which only the identity counts."""

    def __init__(self, answer: str | Exception) -> None:
        self._answer = answer
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def identify(self) -> Identity:
        assert self.closed, "what was read before says nothing about now"
        if isinstance(self._answer, Exception):
            raise self._answer
        return Identity("battery-hil", "reference", "1", self._answer)


def looked_again(answer: str | Exception) -> Safe:
    """What becomes of "safe" if that answers at the end."""
    guardian = Guardian.__new__(Guardian)
    guardian._settings = {"serial": "HIL-0001"}
    guardian._note = lambda *_, **__: None  # type: ignore[method-assign]
    actuator: Any = Answers(answer)
    return guardian._still_the_same(actuator, SAFE)


@pytest.mark.mutation(
    "hil/guardian.py", '        if found != self._settings["serial"]:\n', "        if False:\n"
)
@pytest.mark.mutation("hil/guardian.py", "            actuator.close()\n", "")
@pytest.mark.parametrize("answer", ["HIL-0002", WrongUnit("the unit was HIL-0001 and is now HIL-0002")])
def test_a_unit_that_was_swapped_under_a_session(answer: str | Exception) -> None:
    """Behind a gateway a session goes on with another unit: then nothing is called safe."""
    safe = looked_again(answer)
    assert not safe.safe
    assert "HIL-0002" in safe.why
    assert "look at both units" in safe.why


@pytest.mark.parametrize("answer", ["HIL-0001", UnitSilent("no reply")])
def test_the_same_unit_is_as_safe_as_it_was(answer: str | Exception) -> None:
    """So is one that does not answer any more after it was seen at rest."""
    assert looked_again(answer) == SAFE
