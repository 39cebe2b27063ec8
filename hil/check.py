"""``hil check``: look at a bench's unit, and say what a run would do and what would keep it safe. Reads only."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from rich.console import Console

from adapters import plugins
from adapters.registry import open_actuator
from adapters.wire import CONNECT_S_MAX
from hil import probe_record
from hil.admission import PERSISTENT_WRITES_MAX
from hil.arming import describe, wrong_unit
from hil.config import POWER_SHARE_MIN, Config, ConfigError, EnvelopeSection, unit_target
from hil.envelope import TIMER_MARGIN, TIMER_POLL_S, breach, start_window
from hil.estimate import estimate, wearing
from hil.exits import BAD_INPUT, OK, UNREACHABLE
from hil.guardian import LOST_S, POLL_S
from hil.probe_record import ProbeRecord
from hil.reach import place, told_apart
from hil.rig import missing
from hil.scenarios import suite
from hil.scenarios.model import Scenario, Worker
from ledger.control import ControlPoints
from ledger.errors import CommandRefused, HilError, WrongUnit, one_line
from ledger.model import Capabilities, Identity, Pulse, Reading, Sample
from ledger.ports import Actuator, Clock

LOOK_S: Final = 2.0
"""Between two samples at least, or two periods of a heartbeat: a live one has moved by then."""
LOOKS_TO_STOP: Final = 20
"""Read frames at most before the guardian's first write: map, identity, ratings, one sample."""
DAY_S: Final = 86_400.0


class AdapterFails(HilError):
    """An adapter's method raised what is no error of ours; ``hil check`` writes nothing, so nothing was written."""

    exit_code = BAD_INPUT


def check(config: Config, name: str, console: Console, clock: Clock) -> int:
    """Print what there is and what would happen; the exit code: 0, or 4 if no row, or not every row, would start.

    Raises :class:`~hil.config.ConfigError` for a config without a unit,
    :class:`~ledger.errors.UnitError` for a unit that is unreachable, silent, or another one, and
    :class:`AdapterFails`.
    """
    if not config.is_bench:
        raise ConfigError(
            f'{name}: target.kind = "{config.target.kind}": "hil run" makes a device of its own, and there is no unit'
            ' to check; run it, or give a config with target.kind = "bench", such as configs/bench-tcp.toml'
        )
    try:
        target = unit_target(config)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    where = place(config)
    said = _Said(console)
    said.line("config", f"{name}: unit {config.serial} at {where}; nothing is written")
    with closing(_blamed(config.target.adapter, open_actuator(target, clock))) as actuator:
        with told_apart(where):
            identity = actuator.identify()
        said.line("reach", "connected, and the unit answers")
        said.line("identity", _identity(config, identity))
        said.line("map", _map(actuator.capabilities))
        for sentence in _hearsay(config):
            said.line("hearsay", sentence)
        said.line("writes", _writes(actuator.control_points()))
        with told_apart(where):
            first, sample = _two_samples(actuator, clock)
        _telemetry(said, first, sample)
        said.line("state", _state(sample))
        _pulse(said, config, actuator, sample)
        _energy(said, config, actuator, (first, sample))
        now = datetime.fromtimestamp(clock.wall_s(), UTC)
        record, why = probe_record.load(Path(config.probe.folder), identity, now, rehearsal=False)
        said.line("probe", _unprobed(why) if record is None else _probed(record))
        _arming(said, config, name)
        for sentence in safety_plan(config, actuator, sample, record):
            said.line("safety", sentence)
    said.line("result", _result(said))
    return UNREACHABLE if said.problems or said.cut_short else OK


def _hearsay(config: Config) -> list[str]:
    """What of the unit is known from others' words only, and what to beware of."""
    profile = config.target.described
    if profile is None or profile.verified or not profile.sources:
        return []
    said = (
        f"profile {profile.id} was never seen on a unit; it is what {len(profile.sources)} public sources say"
    )
    return [said, *profile.hazards]


@dataclass
class _Said:
    """What was printed, and how much of it keeps a row from starting, or only some rows."""

    console: Console
    problems: int = 0
    cut_short: int = 0

    def line(self, topic: str, text: str) -> None:
        self.console.print(f"{topic:9} {text}", highlight=False, soft_wrap=True, markup=False)

    def problem(self, topic: str, text: str) -> None:
        self.problems += 1
        self.line(topic, f"PROBLEM: {text}")

    def too_much(self, topic: str, text: str) -> None:
        """Some rows can be run, and not all."""
        self.cut_short += 1
        self.line(topic, f"PROBLEM: {text}")


def _result(said: _Said) -> str:
    number = said.problems + said.cut_short
    above = f"{number} problem{'s' if number > 1 else ''} above"
    if said.problems:
        return f"no row would start: {above}"
    if said.cut_short:
        return f"a row could start now, once armed, but the run would not reach its end: {above}"
    return "a row could start now, once armed"


class _Blamed:
    """An actuator of somebody else's: whatever but a :class:`HilError` comes out of it is one line that names it."""

    def __init__(self, name: str, actuator: Actuator) -> None:
        self._name, self._actuator = name, actuator

    def __getattr__(self, key: str) -> Any:
        found = self._said(key, lambda: getattr(self._actuator, key))
        return (lambda *given: self._said(key, lambda: found(*given))) if callable(found) else found

    def _said(self, key: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except HilError:
            raise
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise AdapterFails(
                f"adapter = {self._name!r}: its {key} fails: {one_line(f'{type(error).__name__}: {error}')}"
                f" ({Path(at.filename).name}, line {at.lineno}); nothing was written: mend it there, or name another"
                " adapter"
            ) from error


def _blamed(name: str, actuator: Actuator) -> Actuator:
    """The kit's own are not to blame: their faults are the kit's."""
    return actuator if name in plugins.BUILT_IN else cast("Actuator", _Blamed(name, actuator))


# -- who is there ------------------------------------------------------------------------------------------


def _identity(config: Config, found: Identity) -> str:
    """What the unit says it is. Raises :class:`~ledger.errors.WrongUnit` if that is not what was named."""
    if (why := wrong_unit(config, found)) is not None:
        raise WrongUnit(why)
    assert config.identity is not None
    compared = ", ".join(key for key, value in config.identity.model_dump().items() if value is not None)
    return f"{one_line(describe(found))}: {compared} as the config says"


def _map(offers: Capabilities) -> str:
    counters = (
        "no counters" if offers.counter_step_wh is None else f"counters of {offers.counter_step_wh:g} Wh"
    )
    timer = f"its own timer up to {offers.timer_s_max:g} s" if offers.reversion else "no timer of its own"
    beat = "no heartbeat" if offers.heartbeat_period_s is None else "a heartbeat"
    return (
        f"{offers.kind}: {offers.power_w_min:g} to {offers.power_w_max:g} W in steps of {offers.power_w_step:g} W,"
        f" {timer}, {counters}, {beat}; flight time {offers.flight_time_s:g} s, settles within"
        f" {offers.settle_s:g} s"
    )


def _writes(points: ControlPoints) -> str:
    """What may be written at all, and what wears out by it."""
    names = ", ".join(point.name for point in points.writable)
    kept = sorted({point.persistence for point in points.writable})
    text = f"only {names}; kept in {' or '.join(kept)}"
    return (
        text if kept == ["ram"] else f"{text}: what is not surely ram wears out, and such writes are rationed"
    )


# -- how it is ---------------------------------------------------------------------------------------------


def _two_samples(actuator: Actuator, clock: Clock) -> tuple[Sample, Sample]:
    first = actuator.read()
    period_s = actuator.capabilities.heartbeat_period_s or 0.0
    clock.sleep_until(clock.mono_s() + max(LOOK_S, 2 * period_s))
    return first, actuator.read()


def _telemetry(said: _Said, first: Sample, sample: Sample) -> None:
    apart_s = sample.at_mono_s - first.at_mono_s
    if sample.heartbeat is None or first.heartbeat is None:
        text = "no heartbeat: whether the values are fresh cannot be told"
    elif sample.heartbeat == first.heartbeat:
        said.problem(
            "telemetry",
            f"the heartbeat stands still at {sample.heartbeat}, {apart_s:.1f} s apart: the values are old;"
            " restart the unit or its gateway",
        )
        return
    else:
        text = f"live: the heartbeat went from {first.heartbeat} to {sample.heartbeat} in {apart_s:.1f} s"
    if sample.reported_wall_s is not None:
        text += f"; its time stamp is {sample.at_wall_s - sample.reported_wall_s:.1f} s old"
    said.line("telemetry", text)


def _state(sample: Sample) -> str:
    mode = {
        True: f"a set-point of {_value(sample.setpoint_w)} is IN FORCE, {_value(sample.remaining_s)} left",
        False: "in its default mode",
        None: "whether a set-point is in force is not known",
    }[sample.enabled]
    control = {True: "takes remote commands", False: "LOCAL mode", None: "remote or local is not known"}
    return (
        f"{mode}, {control[sample.remote]}; {_value(sample.power_w)}, charged {_value(sample.soc_pct)}, reserve"
        f" {_value(sample.reserve_pct)}, capacity {_value(sample.capacity_wh)}, temperature {_value(sample.temp_c)}"
    )


def _value(reading: Reading) -> str:
    return "not known" if reading.value is None else f"{reading.value:g} {reading.unit}"


# -- what a run would do -----------------------------------------------------------------------------------


def _pulse(said: _Said, config: Config, actuator: Actuator, sample: Sample) -> None:
    """Planned, not sent."""
    pulse, rating_w = config.pulse, actuator.capabilities.power_w_max
    text = f"{pulse.power_w:g} W for {pulse.duration_s:g} s"
    command = Pulse(
        id="check-1",
        device=config.serial,
        seq=1,
        power_w=pulse.power_w,
        duration_s=pulse.duration_s,
        reference=pulse.reference,
        start_by_s=sample.at_wall_s + DAY_S,
    )
    try:
        frames = len(actuator.plan(command, sample))
    except CommandRefused as error:
        said.problem("pulse", f"{text} ([pulse]): {error}")
        return
    if abs(pulse.power_w) < POWER_SHARE_MIN * rating_w:
        said.problem(
            "pulse",
            f"pulse.power_w = {pulse.power_w:g} is too little to be told from none on a unit of {rating_w:g} W; give"
            f" {POWER_SHARE_MIN * rating_w:.0f} at least",
        )
        return
    said.line("pulse", f"{text}, {frames} write frame{'s' if frames > 1 else ''}")


def _energy(said: _Said, config: Config, actuator: Actuator, looks: tuple[Sample, Sample]) -> None:
    """The restart suite with the durable worker, which is a bench's default, and whether its first row may start."""
    first, sample = looks
    offers = actuator.capabilities
    limits = _envelope(config).limits
    rows: list[tuple[Scenario, Worker]] = [
        (scenario, "durable") for scenario in suite("restart") if missing(scenario, config) is None
    ]
    found = estimate(
        rows,
        config.pulse,
        offers.efficiency_min,
        sample,
        limits,
        settle_s=offers.settle_s,
        flight_time_s=offers.flight_time_s,
        wears=wearing(actuator.control_points(), config.target.frames),
        wears_max=PERSISTENT_WRITES_MAX,
    )
    for text in found.lines():
        said.line("energy", text)
    if found.problem is not None:
        (said.too_much if found.fit else said.problem)("energy", found.problem)
    broken = breach(limits, sample, first, energy_wh=0.0, in_force_s=0.0)
    if broken is not None:
        said.problem("envelope", broken)
    closed = start_window(limits, sample, found.need_wh)
    if closed is None:
        said.line("start", "the unit is within the envelope, and in its default mode")
    elif found.returns and start_window(limits, sample, 0.0) is None:  # only room is lacking, and can be made
        said.line("start", f"{closed}: the battery is brought back first")
    else:
        said.problem("start", closed)


def _envelope(config: Config) -> EnvelopeSection:
    assert config.envelope is not None
    return config.envelope


def _unprobed(why: str) -> str:
    """Why there is no record that counts, and what follows."""
    follows = "" if probe_record.never_probed(why) else "; run hil probe again: until then only --attended"
    return f"none: {why}{follows}"


def _probed(record: ProbeRecord) -> str:
    """A record in a line."""
    timer, flaw = record.timer, record.timer.flaw()
    acts = {
        True: f"the timer acts: to {timer.target or 'somewhere'} after {_seconds(timer.after_s)} of"
        f" {timer.asked_s:g} s",
        False: f"the timer did NOT act ({timer.asked_s:g} s asked)",
        None: "the timer was not seen",
    }[timer.acts]
    return f"{record.at:%Y-%m-%d}: {acts}" + (f"; only --attended: {flaw}" if flaw else "")


def _seconds(value: float | None) -> str:
    return "an unknown time" if value is None else f"{value:.1f} s"


def _arming(said: _Said, config: Config, name: str) -> None:
    command = f"hil run {shlex.quote(name)} --arm {shlex.quote(config.serial)}"
    if config.arming.allow_writes:
        said.line("arming", f"not armed: no serial number on the command line; this would arm it: {command}")
    else:
        said.line(
            "arming",
            f"not armed: arming.allow_writes = false; this would arm it: allow_writes = true in {name}, and"
            f" then {command}",
        )


# -- what would keep it safe -------------------------------------------------------------------------------


def safety_plan(
    config: Config, actuator: Actuator, sample: Sample, record: ProbeRecord | None
) -> tuple[str, ...]:
    """Who stops what, within how long, in sentences. The times are estimates of the worst case."""
    limits, offers = _envelope(config), actuator.capabilities
    stops = len(actuator.stop(sample, sample))
    guardian_s = (
        LOST_S
        + POLL_S
        + CONNECT_S_MAX
        + (LOOKS_TO_STOP + stops) * config.link.reply_s
        + offers.settle_s
        + offers.flight_time_s
    )
    timer, timer_s = _timer(config, offers, record)
    alone = (
        f"if the guardian is killed too, the unit's timer within {timer_s:.0f} s"
        if timer_s is not None
        else "if the guardian is killed too, NOTHING ends it: do not leave the bench"
    )
    return (
        f"each frame is held against the envelope before it is sent: {limits.power_w_max:g} W,"
        f" {limits.duration_s_max:g} s, {limits.energy_wh_max:g} Wh in all, only registers of the allow-list",
        f"telemetry is held against it each {POLL_S:g} s: {limits.soc_pct_min:g} to {limits.soc_pct_max:g} %,"
        f" {limits.ramp_w_per_s_max:g} W/s, "
        + ("temperature watched by SOMEBODY ELSE" if limits.temp_unwatched else f"{limits.temp_c_max:g} °C"),
        f"at the end, and on a failure, Ctrl-C, a broken limit, {LOST_S:g} s of lost telemetry or the runner's death,"
        " a guardian kills the workers, reads the serial number once more, and stops what is in force"
        f" ({stops} frame{'s' if stops != 1 else ''}); it looks again once no frame can be under way any more, after"
        f" {offers.flight_time_s:g} s",
        timer,
        f"worst time to safe, estimated: by the guardian {guardian_s:.0f} s; {alone}",
        "none of this is a substitute for a disconnector within reach",
    )


def _timer(config: Config, offers: Capabilities, record: ProbeRecord | None) -> tuple[str, float | None]:
    """(what the unit's own timer is good for, by when it ends a pulse or None)."""
    within_s = TIMER_MARGIN * config.pulse.duration_s + TIMER_POLL_S
    if not offers.reversion:
        return "the unit has no timer of its own that ends a pulse", None
    if record is None or record.timer.acts is None:
        return (
            f"the unit's own timer, set with each pulse ({config.pulse.duration_s:g} s), is only claimed: no probe"
            " has seen it act",
            None,
        )
    if not record.timer.acts:
        return f"the unit's own timer does NOT act, as the probe of {record.at:%Y-%m-%d} saw", None
    if (flaw := record.timer.flaw()) is not None:
        return f"the unit's own timer is NOT relied on, by the probe of {record.at:%Y-%m-%d}: {flaw}", None
    late = (record.timer.after_s or record.timer.asked_s) / record.timer.asked_s
    return (
        f"the unit's own timer, set with each pulse ({config.pulse.duration_s:g} s), acts, as the probe of"
        f" {record.at:%Y-%m-%d} saw",
        max(within_s, late * config.pulse.duration_s + TIMER_POLL_S),
    )
