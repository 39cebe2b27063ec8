"""What each register of a SunSpec unit says.

Tables, and nothing else: which models in which order (:mod:`chains`), what never changes (:mod:`nameplate`), what
moves (:mod:`live`, :mod:`legacy`), and what a client may set (:mod:`settable`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from simulator.layout import Layout
from simulator.points.chains import CHAINS, MODEL_IDS, Chain, Scale, exponents, models, scale_factors
from simulator.points.live import live
from simulator.points.nameplate import Nameplate, static_values
from simulator.points.settable import settable, writable
from simulator.points.subject import Subject

__all__ = [
    "CHAINS",
    "MODEL_IDS",
    "Chain",
    "Nameplate",
    "Scale",
    "Subject",
    "layout_for",
    "live",
    "models",
    "scale_factors",
    "settable",
    "static_values",
    "writable",
]

LAYOUTS_MAX: Final = 64
"""Remembered register maps, one for each nameplate, base and chain: fleets have few kinds of unit."""


def layout_for(
    plate: Nameplate, base: int, chain: Chain = "reference", scale: Scale = "plain"
) -> Layout[Subject]:
    """The register map of every unit with this nameplate at this base address.

    Raises ``ValueError`` if a rating does not fit its register, or for a base that SunSpec does not allow.
    """
    return _layout(plate, base, chain, scale)


@lru_cache(maxsize=LAYOUTS_MAX)
def _layout(plate: Nameplate, base: int, chain: Chain, scale: Scale) -> Layout[Subject]:
    return Layout(
        models(chain),
        static_values(plate, chain, scale),
        live(plate, chain, scale),
        writable(plate, chain),
        base,
        exponents(chain, scale),
    )
