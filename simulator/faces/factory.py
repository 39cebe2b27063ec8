"""What stands in a face's registers before anybody has written one. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.faces.map import FaceMap
from simulator.faces.shows import Subject, measured, texts


def from_factory(map_: FaceMap, serial: str, subject: Subject) -> dict[str, int]:
    """Raw values, by name; ``subject`` is the unit for registers that show what it is until somebody writes them."""
    raws: dict[str, int] = {}
    for name, text in texts(map_.profile, serial).items():
        raws[name] = _text(text, map_.registers[name].type, map_.registers[name].words)
    for name, register in map_.registers.items():
        if register.start is not None:
            raws[name] = register.start
        elif name not in raws:
            raws[name] = register.offset if register.settable else map_.unknown(name)
    for name, what in map_.told.items():
        register = map_.registers[name]
        if register.settable and register.start is None and what not in ("way", "asked"):
            raws[name] = map_.raw(name, measured(what, subject), raws.__getitem__)
    return raws


def serial_of(map_: FaceMap, registers: Mapping[str, int]) -> str:
    """The serial number that stands in registers."""
    name = map_.profile.identity.serial
    register = map_.registers[name]
    if register.type != "string":
        return str(registers[name])
    return registers[name].to_bytes(2 * register.words, "big").rstrip(b"\0").decode("ascii")


def _text(text: str, kind: str, words: int) -> int:
    """A string, or for a number its digits, as a raw value."""
    if kind == "string":
        return int.from_bytes(text.encode("ascii")[: 2 * words].ljust(2 * words, b"\0"), "big")
    return int("".join(c for c in text if c.isdigit()) or "0") % (1 << 16 * words)
