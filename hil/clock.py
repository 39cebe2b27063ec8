"""Clocks: the real one, and a worker's view of the rig's virtual one.

On fake and simulator one virtual clock is shared by all processes of a run. A process reads it from a mapped
page, and sleeps by asking the rig, which owns it (:mod:`hil.virtualtime`). While a process is awake the clock
stands still for it; an hour-long pulse passes as soon as everybody sleeps.
"""

from __future__ import annotations

import json
import mmap
import socket
import struct
import time
from pathlib import Path
from typing import Any, Final

from hil.exits import BAD_INPUT
from ledger.errors import HilError
from ledger.ports import Clock

WIRE_WAIT_S: Final = 0.05
"""Longest real wait on a socket under virtual time; what it stands for is charged to the clock."""

PAGE: Final = struct.Struct("<dd32s")
"""The mapped page: monotonic seconds, wall time at monotonic 0, boot id."""

REAL: Final = "real"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class ClockUnknown(HilError):
    """Not the name of a clock."""

    exit_code = BAD_INPUT


class RealClock:
    """The system's clocks."""

    def __init__(self) -> None:
        self._boot_id = _BOOT_ID.read_text(encoding="ascii").strip() if _BOOT_ID.exists() else "unknown"

    def wall_s(self) -> float:
        return time.time()

    def mono_s(self) -> float:
        return time.monotonic()

    def boot_id(self) -> str:
        return self._boot_id

    def sleep_until(self, mono_s: float) -> None:
        while (left_s := mono_s - time.monotonic()) > 0:
            time.sleep(left_s)

    def wire_wait_s(self, nominal_s: float) -> float:
        return nominal_s

    def settled(self) -> bool:
        return True

    def charge(self, seconds: float, why: str) -> None:
        return  # the wait was real


class ClockPage:
    """The mapped page, read side. Good enough for a device: it only asks what time it is."""

    def __init__(self, folder: Path) -> None:
        try:
            with (folder / "page").open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), PAGE.size)
        except OSError as error:
            raise _gone(error) from None

    def mono_s(self) -> float:
        return float(PAGE.unpack_from(self._map)[0])

    def wall_s(self) -> float:
        mono_s, wall_at_0_s, _ = PAGE.unpack_from(self._map)
        return float(wall_at_0_s + mono_s)

    def boot_id(self) -> str:
        return bytes(PAGE.unpack_from(self._map)[2]).rstrip(b"\0").decode("ascii")


class VirtualClock(ClockPage):
    """A participant's clock."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(str(folder / "socket"))
        except OSError as error:
            self._socket.close()
            raise _gone(error) from None
        if not self._ask({"op": "hello", "name": name})["ok"]:
            self._socket.close()
            raise HilError(f"the rig's clock knows no participant {name!r}; the rig registers it first")

    def sleep_until(self, mono_s: float) -> None:
        self._ask({"op": "sleep", "until": mono_s})

    def wire_wait_s(self, nominal_s: float) -> float:
        return min(nominal_s, WIRE_WAIT_S)

    def settled(self) -> bool:
        return bool(self._ask({"op": "settled"})["ok"])

    def charge(self, seconds: float, why: str) -> None:
        self._ask({"op": "sleep", "until": self.mono_s() + seconds, "why": why})

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self._socket.send(json.dumps(message).encode())
            reply = self._socket.recv(4096)
        except OSError as error:
            raise _gone(error) from None
        if not reply:
            raise ClockGone("the rig's clock is gone; this process cannot go on")
        answer: dict[str, Any] = json.loads(reply)
        return answer


INHERITED_S_MAX: Final = 0.05
"""Real time that goes with a sleep on an inherited clock: sockets and processes need some, whatever the clock says."""


class ClockGone(HilError):
    """Whoever owned the virtual clock is dead."""


class HeirClock(VirtualClock):
    """A participant's clock that goes on after the rig's death: then its own sleep is what moves time.

    For a guardian in a rehearsal. The device only reads the page, and everybody else is dead by then.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self._inherited = False

    def inherit(self) -> None:
        """Own the clock from now on. Everybody else who took part has to be dead."""
        self._inherited = True

    def sleep_until(self, mono_s: float) -> None:
        while not self._inherited and self.mono_s() < mono_s:
            self.nap_until(mono_s)
        if self._inherited:
            now_s, wall_at_0_s, boot_id = PAGE.unpack_from(self._map)
            time.sleep(min(INHERITED_S_MAX, max(0.0, mono_s - now_s)))
            PAGE.pack_into(self._map, 0, max(now_s, mono_s), wall_at_0_s, boot_id)

    def nap_until(self, mono_s: float) -> None:
        """As :meth:`sleep_until`, but the rig may wake the sleeper before."""
        super().sleep_until(mono_s)

    def settled(self) -> bool:
        return True if self._inherited else super().settled()

    def charge(self, seconds: float, why: str) -> None:
        if self._inherited:
            self.sleep_until(self.mono_s() + seconds)
        else:
            super().charge(seconds, why)


def _gone(error: OSError) -> HilError:
    return ClockGone(f"the rig's clock is gone ({error}); this process cannot go on")


def open_clock(spec: str, *, heir: bool = False) -> Clock:
    """``real``, or ``virtual:NAME:FOLDER`` as the rig hands it to a participant; an ``heir`` can outlive the rig."""
    if spec == REAL:
        return RealClock()
    kind, _, rest = spec.partition(":")
    name, _, folder = rest.partition(":")
    if kind != "virtual" or not name or not folder:
        raise ClockUnknown(
            f"HIL_CLOCK: {spec!r} is neither {REAL!r} nor 'virtual:NAME:FOLDER'; give one of them"
        )
    return (HeirClock if heir else VirtualClock)(Path(folder), name)
