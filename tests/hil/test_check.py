"""``hil check`` looks at a bench's unit, says what there is, and never writes."""

from __future__ import annotations

import io
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from adapters.registry import open_actuator
from adapters.sunspec import SunSpecActuator
from hil import config as configs
from hil.check import check
from hil.cli import main
from hil.probe_record import ProbeRecord, TimerFound, save
from ledger.errors import UnitSilent, UnitUnreachable, WrongUnit
from ledger.model import Identity, Outcome, Pulse, Step
from ledger.testing import ManualClock
from simulator import Battery, Device
from simulator.testing import serving

FILE = "hil/check.py"
REACH = "hil/reach.py"
ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (ROOT / "configs" / "bench-tcp.toml").read_text(encoding="utf-8")


@dataclass
class Bench:
    """A unit, a config that means it, and what was said of the two."""

    folder: Path
    clock: ManualClock
    port: int
    device: Device

    def write(self, *changes: tuple[str, str]) -> str:
        """The shipped config, pointing here; (old, new) texts replaced."""
        text = SHIPPED.replace("port = 5020", f"port = {self.port}")
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = self.folder / "bench.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def check(self, *changes: tuple[str, str]) -> tuple[int, str]:
        """(exit code, what was printed)."""
        name = self.write(*changes)
        said = io.StringIO()
        code = check(configs.load(name)[0], name, Console(file=said, width=400), self.clock)
        return code, said.getvalue()


Served = Callable[..., Bench]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Serves a unit, and lets nobody write to it."""
    opened: list[Callable[[], object]] = []
    monkeypatch.chdir(tmp_path)

    def refuse(self: SunSpecActuator, step: Step) -> Outcome:
        raise AssertionError(f"hil check has written {step}")

    def serve(battery: Battery | None = None, *, temp_c: float = 25.0) -> Bench:
        clock = ManualClock()
        device = Device(clock, battery, temp_c=temp_c)
        context = serving({1: device})
        port = context.__enter__()
        opened.append(lambda: context.__exit__(None, None, None))
        opened.append(device.close)
        monkeypatch.setattr(SunSpecActuator, "write", refuse)
        return Bench(tmp_path, clock, port, device)

    yield serve
    for close in opened:
        close()


def line(said: str, topic: str) -> str:
    """The lines of a topic, joined."""
    return " | ".join(text[10:] for text in said.splitlines() if text[:10].strip() == topic)


def test_a_unit_that_is_well_may_start(bench: Served) -> None:
    """Exit code 0, and everything about it is said."""
    code, said = bench().check()
    assert code == 0
    assert line(said, "identity").endswith("HIL-0001: serial as the config says")
    assert "sunspec-block: -5000 to 5000 W" in line(said, "map")
    assert "live: the heartbeat went from" in line(said, "telemetry")
    assert line(said, "state").startswith("in its default mode, takes remote commands; 0 W, charged 80 %")
    assert "temperature 25 °C" in line(said, "state")
    assert line(said, "pulse") == "1000 W for 60 s, 1 write frame"
    assert "above reserve and soc_pct_min: 10000 Wh" in line(said, "energy")
    assert line(said, "probe") == "none: never probed: there is no probes/HIL-0001.json"
    assert line(said, "result") == "a row could start now, once armed"


@pytest.mark.mutation(FILE, 'if kept == ["ram"] else', "if True else")
def test_what_may_be_written_and_where_it_is_kept(bench: Served) -> None:
    """Registers by name; a unit whose memory may wear out is said to be one."""
    unit = bench()
    surely = line(unit.check()[1], "writes")
    assert "WSetEna" in surely
    assert surely.endswith("kept in ram")
    _, said = unit.check(('persistence = "ram" ', 'persistence = "unknown" '))
    assert "kept in unknown: what is not surely ram wears out" in line(said, "writes")


def test_it_leaves_the_unit_as_it_was(bench: Served) -> None:
    """No write frame (the fixture would object), and nothing in the device's journal."""
    unit = bench()
    unit.check()
    assert unit.device.entries() == ()


# -- who is there --------------------------------------------------------------------------------------


@pytest.mark.mutation(
    REACH, "    except UnitUnreachable as error:\n", "    except ZeroDivisionError as error:\n"
)
def test_nobody_there(bench: Served) -> None:
    """Unreachable: address, and what to check."""
    unit = bench()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        unit.port = unused.getsockname()[1]
        with pytest.raises(
            UnitUnreachable, match=r"^unreachable: 127.0.0.1:\d+: no connection .*check address"
        ):
            unit.check()


@pytest.mark.mutation(REACH, "    except UnitSilent as error:\n", "    except ZeroDivisionError as error:\n")
def test_nobody_answers(bench: Served) -> None:
    """Silent: it connects, and no word comes."""
    unit = bench()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        unit.port = mute.getsockname()[1]
        with pytest.raises(
            UnitSilent, match=r"^silent unit: connected to 127.0.0.1:\d+ .*unit id 1, and .*link.unit"
        ):
            unit.check(("reply_s = 1.0 ", "reply_s = 0.05 "))


@pytest.mark.mutation(
    FILE, "if (why := wrong_unit(config, found)) is not None:", "if (why := None) is not None:"
)
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'serial = "HIL-0001"',
            'serial = "HIL-0002"',
            "identity.serial = 'HIL-0002', and .* says 'HIL-0001'",
        ),
        ('# manufacturer = "Example"', 'manufacturer = "Example"', "identity.manufacturer = 'Example', and"),
        ('# model = "Example 5000"', 'model = "Example 5000"', "identity.model = 'Example 5000', and"),
        ('# firmware = "1.2.3"', 'firmware = "1.2.3"', "identity.firmware = '1.2.3', and .* says '1'"),
    ],
)
def test_somebody_else(old: str, new: str, said: str, bench: Served) -> None:
    """Wrong unit: what was meant, what is there, and that nothing was written."""
    with pytest.raises(WrongUnit, match=f"^wrong unit: {said}.*nothing was written"):
        bench().check((old, new))


@pytest.mark.mutation("adapters/link.py", "if pdu[1] in NO_TARGET:", "if False:")
def test_nobody_behind_the_gateway(bench: Served) -> None:
    """Silent as well: what answers is the gateway, and it says that its unit does not."""
    with pytest.raises(UnitSilent, match=r"^silent unit: .*unit id 9.*so says the gateway"):
        bench().check(("unit = 1 ", "unit = 9 "))


@pytest.mark.mutation(REACH, "(WrongUnit, UnitFault)", "WrongUnit")
def test_another_kind_of_unit(bench: Served) -> None:
    """Wrong unit as well: it answers, but not with the map that the adapter expects."""
    unit = bench()
    with socket.create_server(("127.0.0.1", 0)) as other:
        unit.port = other.getsockname()[1]
        threading.Thread(target=_refuses_to_be_read, args=(other, 2), daemon=True).start()
        with pytest.raises(WrongUnit, match=r"^wrong unit: something answers at .*unit id 1"):
            unit.check()


@pytest.mark.mutation("adapters/link.py", "if pdu[1] in NOT_NOW:", "if False:")
def test_a_unit_that_is_busy_is_no_other_unit(bench: Served) -> None:
    """It says "not now" to every read: it is silent, and may well have the map that is looked for."""
    unit = bench()
    with socket.create_server(("127.0.0.1", 0)) as busy:
        unit.port = busy.getsockname()[1]
        threading.Thread(target=_refuses_to_be_read, args=(busy, 6), daemon=True).start()
        with pytest.raises(UnitSilent, match=r"^silent unit: .*unit 1 is busy \(exception 06\)"):
            unit.check()


def _refuses_to_be_read(listener: socket.socket, code: int) -> None:
    """A Modbus unit that answers with an exception, whatever is read: 02 if it has another map."""
    connection, _ = listener.accept()
    with connection:
        while request := connection.recv(260):
            connection.sendall(request[:4] + bytes((0, 3, request[6], request[7] | 0x80, code)))


def test_the_exit_codes_of_the_command(
    bench: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 for a unit that is well, 4 for one that is not there, 2 for a config without a unit; one line each."""
    unit = bench()
    good = unit.write()
    silent = str(unit.folder / "gone.toml")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = SHIPPED.replace("port = 5020", f"port = {unused.getsockname()[1]}")
        Path(silent).write_text(gone, encoding="utf-8")
        for name, code, said in (
            (good, 0, ""),
            (silent, 4, "hil: unreachable: "),
            ("configs/simulator.toml", 2, 'target.kind = "simulator": "hil run" makes a device of its own'),
            ("configs/fake.toml", 2, 'target.kind = "fake"'),
        ):
            monkeypatch.setattr(sys, "argv", ["hil", "check", name])
            monkeypatch.setattr("hil.cli.RealClock", lambda: unit.clock)
            with pytest.raises(SystemExit) as exited:
                main()
            assert exited.value.code == code
            err = capsys.readouterr().err
            assert said in err
            assert err.count("\n") == (1 if code else 0)


BROKEN = """
from pathlib import Path
from adapters.profile_actuator import ProfileActuator

class Broken(ProfileActuator):
    def {method}:
        raise KeyError("no such\\nregister")
"""


@pytest.mark.mutation(
    FILE, "        except Exception as error:\n", "        except ZeroDivisionError as error:\n"
)
@pytest.mark.parametrize(
    "method",
    [
        "identify(self)",
        "read(self)",
        "control_points(self)",
        "plan(self, command, sample)",
        "stop(self, saved, sample)",
        "_know(self)",
    ],
)
def test_an_adapter_that_fails_is_named(
    method: str, bench: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with adapter, method, error and place; exit code 2, no traceback."""
    unit = bench()
    (unit.folder / "broken.py").write_text(BROKEN.replace("{method}", method), encoding="utf-8")
    said = run_with(unit, "./broken.py:Broken", 2, monkeypatch, capsys)
    public = "identify" if method == "_know(self)" else method.partition("(")[0]
    assert f"broken.py:Broken': its {public} fails: KeyError: 'no such" in said
    assert "(broken.py, line 7); nothing was written" in said
    assert said.count("\n") == 1


@pytest.mark.mutation(FILE, "        except HilError:\n            raise\n", "")
def test_what_an_adapter_says_in_our_words_stands(
    bench: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A unit that is silent is silent, also through somebody else's adapter: exit code 4."""
    unit = bench()
    broken = BROKEN.replace("{method}", "identify(self)").replace("KeyError", "UnitSilent")
    text = broken.replace("from pathlib import Path", "from ledger.errors import UnitSilent")
    (unit.folder / "silent.py").write_text(text, encoding="utf-8")
    assert "hil: silent unit: " in run_with(unit, "./silent.py:Broken", 4, monkeypatch, capsys)


def run_with(
    unit: Bench, adapter: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """``hil check`` through another adapter, to its exit code; what it says on stderr."""
    name = unit.write()
    text = Path(name).read_text(encoding="utf-8")
    head, tail = text.split("\n[target]")[0], text.split("\n[identity]")[1]
    target = f'kind = "bench"\nadapter = "{adapter}"\nprofile = "simulator_704"\n'
    Path(name).write_text(f"{head}\n[target]\n{target}\n[identity]{tail}", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["hil", "check", name])
    monkeypatch.setattr("hil.cli.RealClock", lambda: unit.clock)
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == code
    return capsys.readouterr().err


@pytest.mark.mutation(FILE, "        reference=pulse.reference,\n", "")
def test_the_pulse_says_where_its_power_is_meant(bench: Served) -> None:
    """A unit that sets power at its AC terminals has none for the battery's: said before anything is run."""
    power = "power_w = 1000.0               # positive"
    code, said = bench().check((power, f'reference = "battery_dc"\n{power}'))
    assert code == 4
    assert "PROBLEM: 1000 W for 60 s ([pulse]): " in line(said, "pulse")
    assert "battery_dc" in line(said, "pulse")


# -- how it is -----------------------------------------------------------------------------------------


@pytest.mark.mutation(FILE, "elif sample.heartbeat == first.heartbeat:", "elif False:")
@pytest.mark.mutation(FILE, "max(LOOK_S, 2 * period_s)", "0")
def test_a_heartbeat_that_stands_still(bench: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old values are a problem, exit code 4; the clock is given time for two beats."""
    unit = bench()
    assert unit.check()[0] == 0

    def no_time_passes(self: ManualClock, mono_s: float) -> None: ...

    monkeypatch.setattr(ManualClock, "sleep_until", no_time_passes)
    code, said = unit.check()
    assert code == 4
    assert "PROBLEM: the heartbeat stands still at" in line(said, "telemetry")
    assert line(said, "result") == "no row would start: 1 problem above"


@pytest.mark.mutation(FILE, "    closed = start_window(limits, sample, found.need_wh)", "    closed = None")
def test_a_battery_outside_its_window(bench: Served) -> None:
    """35 % where 40 is the least: no row would start."""
    code, said = bench(Battery(stored_wh=8_750.0)).check()
    assert code == 4
    assert "PROBLEM: the state of charge is 35 %, outside envelope.soc_pct_min = 40" in line(said, "start")


@pytest.mark.mutation(FILE, "    if broken is not None:", "    if False:")
def test_a_unit_that_breaks_its_envelope_at_rest(bench: Served) -> None:
    """Too warm already."""
    code, said = bench(temp_c=60.0).check()
    assert code == 4
    assert "PROBLEM: the unit is at 60 °C, above envelope.temp_c_max = 50" in line(said, "envelope")


@pytest.mark.mutation(FILE, "    if found.problem is not None:", "    if False:")
@pytest.mark.mutation(FILE, "if said.problems or said.cut_short else", "if said.problems else")
@pytest.mark.mutation(FILE, "said.too_much if found.fit else said.problem", "said.problem")
def test_a_campaign_beyond_its_energy(bench: Served) -> None:
    """More than energy_wh_max, worst case: rows do start, and the run does not reach its end. Exit code 4."""
    code, said = bench().check(("energy_wh_max = 2000.0", "energy_wh_max = 600.0"))
    assert code == 4
    assert "PROBLEM: the run may move 667 Wh" in line(said, "energy")
    assert "enough for 18 of 20 rows" in line(said, "energy")
    assert line(said, "result") == (
        "a row could start now, once armed, but the run would not reach its end: 1 problem above"
    )


@pytest.mark.mutation(FILE, "said.too_much if found.fit else said.problem", "said.too_much")
def test_a_first_row_beyond_the_energy(bench: Served) -> None:
    """Then none starts."""
    empty = bench(Battery(stored_wh=10_000.0))
    code, said = empty.check(("energy_wh_max = 2000.0", "energy_wh_max = 34.0"))
    assert code == 4
    assert "enough for 0 of 20 rows" in line(said, "energy")
    assert line(said, "result") == "no row would start: 1 problem above"


@pytest.mark.mutation(
    FILE, "    elif found.returns and start_window(limits, sample, 0.0) is None:", "    elif False:"
)
def test_a_battery_that_has_no_room_yet_is_brought_back(bench: Served) -> None:
    """40 %, where nothing may be taken out: the run charges it before the first row, and that is no problem."""
    code, said = bench(Battery(stored_wh=10_000.0)).check()
    assert code == 0
    assert "the battery is brought back first" in line(said, "start")
    assert "charged once between rows" in line(said, "energy")


@pytest.mark.mutation(FILE, "and start_window(limits, sample, 0.0) is None:", "and True:")
def test_a_set_point_in_force_is_a_problem_of_an_empty_battery_too(bench: Served) -> None:
    """What is wrong besides the room is not mended by charging."""
    unit = bench(Battery(stored_wh=10_000.0))
    _start(unit)
    code, said = unit.check()
    assert code == 4
    assert "PROBLEM: a set-point is in force" in line(said, "start")


@pytest.mark.mutation(FILE, "        wears_max=PERSISTENT_WRITES_MAX,\n", "        wears_max=2000,\n")
@pytest.mark.mutation(FILE, "wearing(actuator.control_points(), config.target.frames)", "0")
def test_a_unit_whose_memory_may_wear_out(bench: Served) -> None:
    """20 such writes a run, two a row: said before anything is armed."""
    code, said = bench().check(('persistence = "ram" ', 'persistence = "unknown" '))
    assert code == 4
    assert "a row needs 2, and a run has 20" in line(said, "energy")
    assert "PROBLEM: the run may write 40 times" in line(said, "energy")
    assert "enough for 10 of 20 rows" in line(said, "energy")
    assert "would not reach its end" in line(said, "result")


@pytest.mark.mutation(
    FILE, "    except CommandRefused as error:\n", "    except ZeroDivisionError as error:\n"
)
def test_a_pulse_that_the_unit_cannot_do(bench: Served) -> None:
    """Its ratings are known only here."""
    code, said = bench(Battery(discharge_w_max=900.0)).check()
    assert code == 4
    assert "PROBLEM: " in line(said, "pulse")
    assert "900" in line(said, "pulse")


@pytest.mark.mutation(FILE, "if abs(pulse.power_w) < POWER_SHARE_MIN * rating_w:", "if False:")
def test_a_pulse_that_cannot_be_told_from_none(bench: Served) -> None:
    """2 % of what the unit can do, at least."""
    code, said = bench(Battery(discharge_w_max=20_000.0)).check(("power_w = 1000.0", "power_w = 399.0"))
    assert code == 4
    assert "give 400 at least" in line(said, "pulse")


def test_a_set_point_in_force_is_said(bench: Served) -> None:
    """Somebody else's, perhaps: nothing is done about it, and no row would start."""
    unit = bench()
    _start(unit)
    code, said = unit.check()
    assert code == 4
    assert "a set-point of 500 W is IN FORCE" in line(said, "state")
    assert "PROBLEM: a set-point is in force" in line(said, "start")


def _start(unit: Bench) -> None:
    """500 W of discharge, written to the device itself, as somebody else would."""
    settings = configs.load(unit.write())[0]
    actuator = open_actuator(configs.unit_target(settings), unit.clock)
    command = Pulse(
        id="x", device="x", seq=1, power_w=500.0, duration_s=600.0, start_by_s=unit.clock.wall_s() + 60
    )
    for step in actuator.plan(command, actuator.read()):
        assert unit.device.write(step.address, step.values) is None
    actuator.close()


# -- probe, arming, safety plan ------------------------------------------------------------------------


def probed(
    unit: Bench, *, acts: bool, after_s: float | None, target: str = "default_mode", version: str = "1"
) -> None:
    """A record of this very unit, made now."""
    timer = TimerFound(asked_s=60.0, acts=acts, target=target if acts else None, after_s=after_s)
    record = ProbeRecord(
        identity=Identity("battery-hil", "reference", version, "HIL-0001"),
        at=datetime.fromtimestamp(unit.clock.wall_s(), UTC),
        rehearsal=False,
        timer=timer,
        block_atomic=None,
        fc06=None,
        fc16=None,
        range_check=None,
        power_cycle=None,
        counter_step_wh=None,
        counter_lag_s=None,
        read_back_s=None,
    )
    save(unit.folder / "probes", record)


@pytest.mark.mutation(FILE, "if config.arming.allow_writes:", "if not config.arming.allow_writes:")
def test_what_would_arm_it(bench: Served) -> None:
    """The command line whole, and before it what the config still has to allow."""
    unit = bench()
    command = f"hil run {unit.folder / 'bench.toml'} --arm HIL-0001"
    shut = line(unit.check()[1], "arming")
    assert shut.startswith("not armed: arming.allow_writes = false")
    assert "allow_writes = true in" in shut
    assert shut.endswith(command)
    opened = line(unit.check(("allow_writes = false", "allow_writes = true "))[1], "arming")
    assert "allow_writes" not in opened
    assert opened.endswith(command)


@pytest.mark.mutation(FILE, "if record is None or record.timer.acts is None:", "if False:")
def test_a_timer_that_nobody_has_seen_is_no_safety(bench: Served) -> None:
    """Claimed is not seen: without the guardian nothing ends a pulse for sure."""
    plan = line(bench().check()[1], "safety")
    assert "is only claimed: no probe has seen it act" in plan
    assert "if the guardian is killed too, NOTHING ends it" in plan
    assert "telemetry is held against it each 5 s: 40 to 90 %, 5000 W/s, 50 °C" in plan
    assert "15 s of lost telemetry or the runner's death, a guardian kills the workers" in plan
    assert (
        "by the guardian 69 s" in plan
    )  # 15 + 5 + 3 to connect + 21 frames of 1 s + 20 to settle + 5 of flight


@pytest.mark.mutation(FILE, "late * config.pulse.duration_s + TIMER_POLL_S", "0.0")
@pytest.mark.parametrize(("after_s", "within"), [(60.4, 86), (86.0, 91)])
def test_a_timer_that_was_seen_bounds_the_worst_time(after_s: float, within: int, bench: Served) -> None:
    """1.35 times the pulse and a poll, or as late as it was seen."""
    unit = bench()
    probed(unit, acts=True, after_s=after_s)
    _, said = unit.check()
    assert f"the timer acts: to default_mode after {after_s:.1f} s of 60 s" in line(said, "probe")
    assert "--attended" not in line(said, "probe")
    assert f"if the guardian is killed too, the unit's timer within {within} s" in line(said, "safety")


@pytest.mark.mutation(FILE, "    if (flaw := record.timer.flaw()) is not None:\n", "    if flaw := None:\n")
@pytest.mark.mutation(FILE, ' + (f"; only --attended: {flaw}" if flaw else "")', "")
@pytest.mark.parametrize(
    ("after_s", "target", "flaw"),
    [
        (1_260.0, "default_mode", "too late"),
        (60.4, "a set-point of 500 W", "to a set-point of 500 W, not to"),
    ],
)
def test_a_timer_that_acts_late_or_to_something_else(
    after_s: float, target: str, flaw: str, bench: Served
) -> None:
    """It is no safety; said twice, with what follows for a run."""
    unit = bench()
    probed(unit, acts=True, after_s=after_s, target=target)
    _, said = unit.check()
    assert "only --attended: its timer was seen to act" in line(said, "probe")
    assert flaw in line(said, "probe")
    assert flaw in line(said, "safety")
    assert "NOTHING ends it" in line(said, "safety")


@pytest.mark.mutation(FILE, "    if not record.timer.acts:\n", "    if False:\n")
def test_a_timer_that_was_seen_to_do_nothing(bench: Served) -> None:
    """Said twice: in the probe's line and in the plan."""
    unit = bench()
    probed(unit, acts=False, after_s=None)
    _, said = unit.check()
    assert "the timer did NOT act" in line(said, "probe")
    assert "does NOT act" in line(said, "safety")
    assert "NOTHING ends it" in line(said, "safety")


@pytest.mark.mutation(FILE, '"" if probe_record.never_probed(why) else', '"" if True else')
def test_a_record_of_another_firmware_does_not_count(bench: Served) -> None:
    """It is said why there is none, and that nobody may leave the unit alone until there is one."""
    unit = bench()
    probed(unit, acts=True, after_s=60.0, version="0.9")
    _, said = unit.check()
    assert "another firmware: '0.9'" in line(said, "probe")
    assert "run hil probe again: until then only --attended" in line(said, "probe")
    assert "NOTHING ends it" in line(said, "safety")


def test_the_plan_names_who_watches_the_temperature(bench: Served) -> None:
    """The limit, or somebody else."""
    unit = bench()
    assert "50 °C" in line(unit.check()[1], "safety")
    _, said = unit.check(("temp_unwatched = false", "temp_unwatched = true "))
    assert "temperature watched by SOMEBODY ELSE" in line(said, "safety")
