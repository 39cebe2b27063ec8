"""One request as one set of points: sorted out, whatever their order, and taken whole or not at all."""

from __future__ import annotations

from itertools import permutations

import pytest

from simulator import requests, storage
from simulator.battery import Battery
from simulator.control import CONTROL_POINTS, HEARTBEATS, MAILBOX_POINTS, RESERVE_POINTS, Cause
from simulator.device import Device
from simulator.inverter import Inverter
from simulator.points import Nameplate, settable, writable
from simulator.requests import PARTS_MAX, parts, take
from simulator.settings import Key, Settings
from tests.simulator.simkit import ManualClock

REQUESTS = "simulator/requests.py"

PLATE = Nameplate.of(Battery())
SET: dict[Key, float] = {
    (704, "WSetEna"): 1,
    (704, "WSetMod"): 1,
    (704, "WSet"): 2000,
    (704, "WSetRvrt"): 300,
}
WINDOW: dict[Key, float] = {(124, "StorCtl_Mod"): 2, (124, "OutWRte"): -20}
LIMIT: dict[Key, float] = {(702, "WMax"): 1000}
MAIL: dict[Key, float] = {
    (64900, "MbTok"): 7,
    (64900, "MbFence"): 1,
    (64900, "MbIfSeq"): 0,
    (64900, "MbW"): 1500,
    (64900, "MbRvrtW"): 0,
    (64900, "MbTms"): 60,
    (64900, "MbOp"): 1,
}


def unit(stored_wh: float = 20_000.0) -> Inverter:
    """One that has every point there is."""
    return Inverter.new(Battery(stored_wh=stored_wh), 0.0, settings=Settings(settable(PLATE, "both")))


def test_every_point_is_of_one_kind() -> None:
    """What can be written is command, mailbox, reserve, heartbeat or setting, and each kind is found."""
    kinds = {"control": set[Key](), "mail": set[Key](), "reserve": set[Key](), "beats": set[Key]()}
    kinds |= {"limits": set(), "rates": set()}
    for key in writable(PLATE, "both"):
        found = [kind for kind in kinds if getattr(parts((key,)), kind) == (key,)]
        assert len(found) == 1, (key, found)
        kinds[found[0]].add(key)
        assert parts((key,)).settings == ((key,) if found[0] in ("limits", "rates") else ())

    assert kinds["control"] == CONTROL_POINTS.keys()
    assert kinds["mail"] == MAILBOX_POINTS.keys()
    assert kinds["reserve"] == set(RESERVE_POINTS)
    assert kinds["beats"] == HEARTBEATS.keys()
    assert kinds["rates"] == storage.GROUP


@pytest.mark.mutation(REQUESTS, "for key in about.control])", "for key in sorted(about.control)])")
def test_the_order_of_the_points_means_nothing() -> None:
    """A frame has one; a set of values has none, and what was sorted out before is not mistaken for it."""
    taken = [take(unit(), dict(order), 10.0, ()).inverter for order in permutations(SET.items())]

    assert (taken[0].control.w, taken[0].control.w_rvrt, taken[0].control.mod) == (2000, 300, 1)
    assert all(each == taken[0] for each in taken)


@pytest.mark.mutation(REQUESTS, "@lru_cache(maxsize=PARTS_MAX)", "@lru_cache(maxsize=None)")
def test_a_fuzzer_fills_no_memory() -> None:
    """Of the sets of points that were asked for only the newest are remembered; the others are sorted out again."""
    for n in range(PARTS_MAX + 10):
        parts(((702, "WMax"), (9999, f"P{n}")))

    assert parts.cache_info().currsize <= PARTS_MAX
    assert parts(((9999, "P0"),)).limits == ((9999, "P0"),)


class TestTogether:
    """Points of several models in one request."""

    @pytest.mark.mutation(REQUESTS, "entries=first.entries + second.entries", "entries=second.entries")
    def test_the_window_of_124_supersedes_the_set_point_beside_it(self) -> None:
        """Two commands, two entries, in the order of the newer model's last word."""
        reaction = take(unit(), SET | WINDOW, 10.0, ())

        assert [(e.seq, e.power_w, e.cause) for e in reaction.entries] == [
            (1, 2000, Cause.SET),
            (2, -1000, Cause.SET),
        ]
        assert (reaction.inverter.control.ena, reaction.inverter.set_point_w) == (0, -1000.0)
        assert reaction.durable

    @pytest.mark.mutation(
        REQUESTS, "if not first.durable:\n        return second", "if True:\n        return second"
    )
    def test_a_parameter_of_704_beside_the_window_is_kept_with_it(self) -> None:
        """While nothing is enabled it only remembers, and that is to be saved too."""
        reaction = take(unit(), {(704, "WSetEna"): 0, (704, "WSet"): 700, (124, "OutWRte"): -20}, 10.0, ())

        assert (reaction.inverter.control.w, reaction.entries, reaction.durable) == (700, (), True)
        entries = take(reaction.inverter, SET | {(124, "InWRte"): 30}, 10.0, ()).entries
        assert [e.power_w for e in entries] == [2000]

    @pytest.mark.mutation(REQUESTS, "if not first.accepted or not about.rates:", "if not about.rates:")
    @pytest.mark.mutation(
        REQUESTS,
        "inverter=replace(inverter, mailbox=reaction.inverter.mailbox)",
        "inverter=reaction.inverter",
    )
    @pytest.mark.parametrize("beside", [WINDOW, LIMIT, {(715, "ControllerHb"): 9}, {(802, "SoCRsvMin"): 20}])
    def test_beside_a_refused_set_point_nothing_happens(self, beside: dict[Key, float]) -> None:
        """More than the rating: no window, no limit, no heartbeat, no reserve."""
        fresh = unit()
        reaction = take(fresh, {**beside, **SET, (704, "WSet"): 5001}, 10.0, ())

        assert (reaction.accepted, reaction.entries) == (False, ())
        assert reaction.inverter == fresh

    @pytest.mark.mutation(REQUESTS, "if about.control or about.rates or", "if about.rates or")
    @pytest.mark.mutation(REQUESTS, "if about.control or about.rates or", "if about.control or")
    @pytest.mark.parametrize("beside", [SET, WINDOW], ids=["704", "124"])
    def test_the_mailbox_commands_alone(self, beside: dict[Key, float]) -> None:
        """Two commands at once that exclude each other; the mailbox by itself, or beside a limit, is carried out."""
        fresh = unit()
        refused = take(fresh, MAIL | beside, 10.0, ())
        assert (refused.accepted, refused.inverter) == (False, fresh)
        taken = take(fresh, MAIL | LIMIT, 10.0, ()).inverter
        assert (taken.cur_token, taken.plant.at(10.0).power_w) == (7, 1000.0)

    @pytest.mark.mutation(
        REQUESTS, "        moved, durable = moved.with_reserve(values[key], now_s), True\n", "        pass\n"
    )
    def test_a_lowered_reserve_counts_for_the_set_point_beside_it(self) -> None:
        """One request is one moment: what it permits, it may use."""
        low = unit(stored_wh=7500.0)
        assert not take(low, SET, 10.0, ()).accepted

        assert take(low, SET | {(802, "SoCRsvMin"): 20}, 10.0, ()).accepted


@pytest.mark.mutation(
    REQUESTS,
    "_heartbeats(moved, {HEARTBEATS[key]: int(values[key])",
    "_heartbeats(moved, {HEARTBEATS[key]: 1",
)
def test_both_heartbeats_of_one_request_are_kept() -> None:
    """Each in its own register; on a unit without a watchdog that is nothing to save."""
    reaction = take(unit(), {(802, "CtrlHb"): 3, (715, "ControllerHb"): 70_000}, 10.0, ())

    assert (reaction.inverter.controller_hb, reaction.inverter.battery_controller_hb) == (70_000, 3)
    assert not reaction.durable


def test_a_kept_answer_is_no_state(clock: ManualClock) -> None:
    """Two units, one kind of request: what one was told the other is not."""
    one, other = Device(clock, models="both"), Device(clock, models="both")
    for device, power_w in ((one, 1000.0), (other, -1000.0)):
        device._keep(take(device.inverter, SET | {(704, "WSet"): power_w}, clock.now_s, ()), clock.now_s)

    assert [d.inverter.set_point_w for d in (one, other)] == [1000.0, -1000.0]
    assert requests.parts.cache_info().hits > 0
