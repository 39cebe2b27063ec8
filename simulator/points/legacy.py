"""The moving points of the models before IEEE 1547-2018: 103, 120-124, 160.

Model 160 is that of a hybrid inverter: two inputs with PV, and the battery once as what charges and once as what
discharges. What a roof gives is shown there and in 122.PVConn, and nowhere else: it reaches the house by an inverter of
its own, so every AC point is the battery's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from simulator.layout import Run
from simulator.points.chains import MODULES
from simulator.points.nameplate import AC_VOLTS, DC_VOLTS
from simulator.points.subject import Subject

_ACC32: Final = 1 << 32
"""Where a 32-bit counter begins again."""

_HAIR: Final = 1e-6
"""Forgives the last bits of a sum: 2 kWh are not shown as 1,999 Wh. Far below any step."""

_UINT16_MAX: Final = 0xFFFE
"""A roof may give more than a register can say; one more means: not implemented."""

_PHASES: Final = 3

_THREE_PHASE_STATES: Final = {0: 1, 3: 4, 4: 5, 6: 7, 7: 8}
"""701.InvSt to 103.St and 160.DCSt; RUNNING is MPPT there."""

_CHARGING: Final = MODULES.index("StCha")
_DISCHARGING: Final = MODULES.index("StDisCha")
_INPUT_POINTS: Final = ("DCW", "DCWH")

_STRINGS: Final = tuple(index for index, name in enumerate(MODULES) if name.startswith("PV"))
_NO_INPUT, _SLEEPING, _MPPT = 1, 2, 4
"""160.DCSt of an input with nothing on it, at night, and by day."""

_READY: Final = 0b011
"""122.PVConn and StorConn: CONNECTED, AVAILABLE …"""
_OPERATING: Final = 0b100
"""… and the bit above."""


def legacy_runs(per: Callable[[int, str], float]) -> Iterator[Run[Subject]]:
    """All of them; ``per`` gives the register steps per unit of a point."""
    yield from _inverter_runs(per)
    yield from _status_runs(per)
    yield from _storage_runs(per)
    yield from _input_runs(per)


def _inverter_runs(per: Callable[[int, str], float]) -> Iterator[Run[Subject]]:
    """Model 103: the power spread over three phases."""
    a, w, va = per(103, "A") / AC_VOLTS, per(103, "W"), per(103, "VA")
    wh, dc_a, dc_w = per(103, "WH"), per(103, "DCA") / DC_VOLTS, per(103, "DCW")

    def amperes(s: Subject) -> tuple[int, ...]:
        total = abs(s.energy.power_w) * a
        return round(total), *(round(total / _PHASES),) * _PHASES

    yield Run(103, ("A", "AphA", "AphB", "AphC"), amperes)
    yield Run(103, ("W",), lambda s: (round(s.energy.power_w * w),))
    yield Run(103, ("VA",), lambda s: (round(abs(s.energy.power_w) * va),))
    yield Run(103, ("WH",), lambda s: (s.counters(wh)[0] % _ACC32,))
    yield Run(103, ("DCA",), lambda s: (round(abs(s.energy.dc_w) * dc_a),))
    yield Run(103, ("DCW",), lambda s: (round(s.energy.dc_w * dc_w),))
    yield Run(103, ("TmpCab",), lambda s: (round(s.temp_c * 10),))
    yield Run(103, ("St",), lambda s: (_THREE_PHASE_STATES[s.operating_state()],))
    yield Run(103, ("Evt1",), lambda s: (s.inverter.alarm,))


def _status_runs(per: Callable[[int, str], float]) -> Iterator[Run[Subject]]:
    """Model 122."""
    w = per(122, "WAval")

    def connections(s: Subject) -> tuple[int, ...]:
        pv = s.pv()
        roof = 0 if pv is None else _READY | (_OPERATING if pv[0] > 0.0 else 0)
        storage = _READY | (_OPERATING if s.moving else 0)
        return roof, storage if s.connected() else 0, s.connected(), s.counters(1)[0]

    yield Run(122, ("PVConn", "StorConn", "ECPConn", "ActWh"), connections)
    yield Run(122, ("WAval",), lambda s: (round(s.limits_w()[1] * w),))
    yield Run(122, ("StActCtl",), lambda s: (int(s.inverter.in_force),))


def _storage_runs(per: Callable[[int, str], float]) -> Iterator[Run[Subject]]:
    """Model 124."""
    reserve, soc, ah = per(124, "MinRsvPct"), per(124, "ChaState"), per(124, "StorAval") / DC_VOLTS
    yield Run(124, ("MinRsvPct",), lambda s: (s.reserve_steps(reserve),))
    yield Run(124, ("ChaState", "StorAval"), lambda s: (s.soc_steps(soc), int(s.energy.stored_wh * ah)))
    yield Run(124, ("ChaSt",), lambda s: (s.charge_status(),))


def _input_runs(per: Callable[[int, str], float]) -> Iterator[Run[Subject]]:
    """Model 160: what goes into the battery and what comes out of it are inputs of their own."""
    a, w, wh = per(160, "module[0].DCA") / DC_VOLTS, per(160, "module[0].DCW"), per(160, "module[0].DCWH")

    def values(sign: int, counter: int) -> tuple[Callable[[Subject], tuple[int, ...]], ...]:
        def power_w(s: Subject) -> float:
            return max(0.0, sign * s.energy.dc_w)

        return (
            lambda s: (round(power_w(s) * a),),
            lambda s: (round(power_w(s) * w), s.dc_counters(wh)[counter] % _ACC32),
            lambda s: (_THREE_PHASE_STATES[s.operating_state()],),
        )

    for index, sign, counter in ((_CHARGING, -1, 1), (_DISCHARGING, 1, 0)):
        amperes, energies, state = values(sign, counter)
        yield Run(160, (f"module[{index}].DCA",), amperes)
        yield Run(160, tuple(f"module[{index}].{name}" for name in _INPUT_POINTS), energies)
        yield Run(160, (f"module[{index}].DCSt",), state)
    for index in _STRINGS:
        names = (*(f"module[{index}].{name}" for name in ("DCA", "DCV", *_INPUT_POINTS)),)
        yield Run(160, names, partial(_string, index, (a, per(160, "module[0].DCV"), w, wh)))
        yield Run(160, (f"module[{index}].DCSt",), _string_state)


def _string(index: int, factors: tuple[float, float, float, float], s: Subject) -> tuple[int, ...]:
    """DCA, DCV, DCW and DCWH of one of the strings, which share alike: to a step, so that their sum is the roof's."""
    pv_w, pv_wh = s.pv() or (0.0, 0.0)
    a, v, w, wh = factors
    amperes, volts = round(pv_w * a / len(_STRINGS)), round(DC_VOLTS * v) if pv_w > 0.0 else 0
    watts, watt_hours = _share(round(pv_w * w), index), _share(int(pv_wh * wh + _HAIR), index)
    return min(amperes, _UINT16_MAX), volts, min(watts, _UINT16_MAX), watt_hours % _ACC32


def _share(steps: int, index: int) -> int:
    """What one of the strings has of a whole number of steps; the first ones have what is left over."""
    return (steps + len(_STRINGS) - 1 - index) // len(_STRINGS)


def _string_state(s: Subject) -> tuple[int, ...]:
    pv = s.pv()
    return (_NO_INPUT if pv is None else _MPPT if pv[0] > 0.0 else _SLEEPING,)
