"""Points of any chain by name: what the tests of the full chains share."""

from __future__ import annotations

from typing import Any

from adapters.registers import Model, Point, encode
from simulator.device import Device
from simulator.layout import Refusal
from simulator.points import Chain, models

Key = tuple[int, str]


def chain_model(chain: Chain, model_id: int) -> Model:
    return {m.id: m for m in models(chain)}[model_id]


def point(model_id: int, name: str) -> Point:
    return chain_model("both", model_id)[name]


def window(device: Device, model_id: int) -> list[int]:
    """All registers of one model, in as many reads as it takes."""
    start, size = device.layout.address(model_id, "ID"), chain_model("both", model_id).size
    words: list[int] = []
    while len(words) < size:
        part = device.read(start + len(words), min(125, size - len(words)))
        assert not isinstance(part, Refusal)
        words += part
    return words


def get(device: Device, model_id: int, name: str) -> Any:
    """What a point says in its unit; text for a string, None for a sentinel."""
    model, words = chain_model("both", model_id), window(device, model_id)
    if model[name].type == "string":
        return model.decode(name, words)
    return model.value(name, words)


def raw(device: Device, model_id: int, name: str) -> Any:
    return chain_model("both", model_id).decode(name, window(device, model_id))


def put_raw(device: Device, model_id: int, name: str, value: int) -> Refusal | None:
    return device.write(device.layout.address(model_id, name), encode(point(model_id, name), value))


def put(device: Device, model_id: int, name: str, value: float) -> Refusal | None:
    """Write a value in its unit, with the scale factor that the device shows, as a client should."""
    scale = point(model_id, name).scale
    exponent = raw(device, model_id, scale) if isinstance(scale, str) else scale or 0
    return put_raw(device, model_id, name, round(value / 10**exponent))
