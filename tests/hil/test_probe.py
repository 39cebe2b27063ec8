"""``hil probe``: armed as a run is, kept only if the unit was made safe, and what a record means for runs."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from hil import config as configs
from hil.admission import Permission
from hil.arming import NotArmed
from hil.benchrig import BenchGate, BenchRig
from hil.benchrow import Blocked
from hil.campaign import Campaign
from hil.config import Config, ConfigError
from hil.evidence import RunFolder
from hil.exits import ABORTED, OK, UNREACHABLE, UNSAFE, exit_code
from hil.guardpost import Arrival, GuardPost
from hil.launcher import Launcher
from hil.probe_record import ProbeNotKept, ProbeRecord, TimerFound, record_path, save
from hil.probing import ProbeUnsafe, Probing, probe, rehearsed_probe
from hil.realtime import RealTime
from hil.row import RowResult
from hil.scenarios import suite
from hil.scenarios.model import Scenario, Worker
from ledger.control import ControlPoints
from ledger.errors import HilError
from ledger.model import Capabilities, Identity
from ledger.testing import ManualClock, sample
from simulator import Device
from simulator.journal import Journal
from simulator.testing import serving

FILE = "hil/probing.py"
ROOT = Path(__file__).resolve().parents[2]
REHEARSED = Permission(rehearse=True)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """The shipped bench config for a unit of this test's own: nobody else holds its lock."""
    monkeypatch.chdir(tmp_path)

    def config(*changes: tuple[str, str]) -> Config:
        text = (ROOT / "configs" / "bench-tcp.toml").read_text(encoding="utf-8")
        for old, new in (("HIL-0001", f"P-{os.getpid()}"), *changes):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (tmp_path / "bench.toml").write_text(text, encoding="utf-8")
        return configs.load("bench.toml")[0]

    return config


Shipped = Callable[..., Config]
COSMETIC = ('timer = "acts"', 'timer = "cosmetic"')


def said_by(
    config: Config, permission: Permission = REHEARSED, *, power_cycle: bool = False
) -> tuple[int, str]:
    """(exit code, what was printed)."""
    said = io.StringIO()
    console = Console(file=said, width=400)
    return probe(config, "bench.toml", permission, console, power_cycle=power_cycle), said.getvalue()


def kept(config: Config, *, rehearsal: bool = True) -> ProbeRecord | None:
    path = record_path(Path(config.probe.folder), config.serial, rehearsal=rehearsal)
    return ProbeRecord.model_validate_json(path.read_bytes()) if path.exists() else None


async def session(config: Config, folder: Path) -> tuple[BenchRig, BaseException | ProbeRecord]:
    """One probe to its end: its rig, and what came of it."""
    launcher = Launcher()
    await launcher.start()
    try:
        probing = Probing(config, launcher, folder, REHEARSED, lambda _: None)
        (found,) = await asyncio.gather(probing.run(), return_exceptions=True)
        return probing.rig, found
    finally:
        await launcher.stop()


# -- what is found and kept ----------------------------------------------------------------------------


@pytest.mark.mutation("hil/launcher.py", "    import hil.prober\n", "")
@pytest.mark.mutation("hil/standin.py", '"port": self._port, ', "")
def test_a_conformant_stand_in(shipped: Shipped) -> None:
    """All is found out, kept as a rehearsal's record, and a run may be unattended."""
    config = shipped()
    code, said = said_by(config, power_cycle=True)
    record = kept(config)
    assert code == OK
    assert record is not None
    assert record.rehearsal
    assert record.timer == TimerFound(asked_s=35, acts=True, target="default_mode", after_s=35)
    assert (record.block_atomic, record.range_check, record.fc06, record.fc16) == (
        True,
        "rejected",
        True,
        True,
    )
    assert (record.power_cycle, record.counter_step_wh) == ("default_mode", 1.0)
    assert "unattended allowed, volatile workers allowed" in said
    assert str(record_path(Path(config.probe.folder), config.serial, rehearsal=True)) in said
    assert kept(config, rehearsal=False) is None


def test_a_cosmetic_timer_is_a_result(shipped: Shipped) -> None:
    """Exit 0; the record says that the timer does not act, and what that means is said."""
    config = shipped(COSMETIC)
    code, said = said_by(config)
    record = kept(config)
    assert code == OK
    assert record is not None
    assert record.timer.acts is False
    assert record.power_cycle is None
    assert any("power cycle: not tried" in note for note in record.notes)
    assert "timer        does NOT act: set to 35 s" in said
    assert "unattended refused (--attended is needed), volatile workers blocked" in said


def test_a_stand_in_that_is_switched_on_last(shipped: Shipped) -> None:
    """What takes one block is not known, and nothing is made up."""
    config = shipped(('commit = "block" ', 'commit = "enable_last" '))
    assert said_by(config)[0] == OK
    record = kept(config)
    assert record is not None
    assert (record.timer.acts, record.block_atomic, record.range_check) == (True, None, None)


def test_a_stand_in_behind_tls(shipped: Shipped, tmp_path: Path) -> None:
    """It is switched off and on behind that as well, and comes back with the same certificates."""
    files = {key: tmp_path / f"{key}.pem" for key in ("ca", "cert", "key")}
    for file in files.values():
        file.touch()  # the stand-in has its own
    keys = "".join(f'{key} = "{file}"\n' for key, file in files.items())
    config = shipped(('transport = "tcp" ', f'{keys}transport = "tls" '))
    assert said_by(config, power_cycle=True)[0] == OK
    record = kept(config)
    assert record is not None
    assert (record.timer.acts, record.power_cycle) == (True, "default_mode")


def test_a_rehearsed_probe_needs_no_file_and_leaves_none(shipped: Shipped, tmp_path: Path) -> None:
    """A campaign calls it for the personality that its config gives the stand-in."""

    async def run() -> ProbeRecord:
        launcher = Launcher()
        await launcher.start()
        try:
            return await rehearsed_probe(config, launcher, tmp_path / "run" / "probe")
        finally:
            await launcher.stop()

    config = shipped(COSMETIC)
    record = asyncio.run(run())
    assert (record.rehearsal, record.timer.acts) == (True, False)
    assert not Path(config.probe.folder).exists()


# -- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "arm", "why"),
    [
        ("false", None, "to arm it, set allow_writes = true in \\[arming\\] of the config and add --arm"),
        pytest.param("true", None, "to arm it, add --arm", marks=pytest.mark.slow),
        pytest.param("false", "same", "to arm it, set allow_writes = true", marks=pytest.mark.slow),
        ("true", "OTHER", "not armed: --arm OTHER"),
    ],
)
@pytest.mark.mutation(
    FILE, "        recognise(self._config, self._permission, arrival.sample.identity)\n", ""
)
def test_a_unit_that_is_not_armed_is_only_read(
    allowed: str,
    arm: str | None,
    why: str,
    shipped: Shipped,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No write frame, exit 4, and what would arm it."""
    serial = f"P-{os.getpid()}"
    device = Device(RealTime(), serial=serial)  # type: ignore[arg-type]  # it only asks what time it is
    with serving({1: device}) as port:
        config = shipped(
            ("port = 5020", f"port = {port}"),
            ("# settle_s = 20.0", "settle_s = 0.0"),
            ("allow_writes = false", f"allow_writes = {allowed}"),
        )
        permission = Permission(arm=serial if arm == "same" else arm)
        rig, found = asyncio.run(cut_short(1, config, tmp_path, monkeypatch, permission))
        assert device.entries() == ()
    device.close()
    assert isinstance(found, NotArmed)
    assert exit_code(found) == UNREACHABLE
    with pytest.raises(NotArmed, match=why):
        raise found
    assert rig.writes == 0
    assert kept(config, rehearsal=False) is None


def test_nothing_is_begun_outside_the_window(shipped: Shipped, tmp_path: Path) -> None:
    """The battery has to have room for it: exit 4, no write."""
    rig, found = asyncio.run(session(shipped(("soc_pct_max = 90.0", "soc_pct_max = 60.0")), tmp_path))
    assert isinstance(found, HilError)
    assert "soc_pct_max = 60" in str(found)
    assert exit_code(found) == UNREACHABLE
    assert rig.writes == 0


def test_only_a_bench_is_probed() -> None:
    """A simulator's config has no unit of its own."""
    config, name, _ = configs.load(str(ROOT / "configs" / "simulator.toml"))
    with pytest.raises(ConfigError, match="has no unit to probe"):
        probe(config, name, REHEARSED, Console(file=io.StringIO()))


@pytest.mark.mutation(FILE, "    _refuse_to_lose(Path(config.probe.folder), name)\n", "")
@pytest.mark.mutation(FILE, "with tempfile.TemporaryFile(dir=there):", "if True:")
@pytest.mark.parametrize("folder", ["taken", "taken/probes"])
def test_nothing_is_started_if_nothing_could_be_kept(
    folder: str, shipped: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands where the folder should be: exit 2, before anybody moves."""
    (tmp_path / "taken").touch()

    async def begin(self: Probing) -> ProbeRecord:
        raise AssertionError("the probe was begun")

    monkeypatch.setattr(Probing, "run", begin)
    with pytest.raises(
        ConfigError, match=r"^bench.toml: probe.folder = 'taken.*nothing was started"
    ) as error:
        said_by(shipped(('folder = "probes"', f'folder = "{folder}"')))
    assert exit_code(error.value) == 2


def test_looking_whether_a_folder_can_be_written_leaves_none(
    shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that is not armed makes no folder."""

    async def refused(self: Probing) -> ProbeRecord:
        raise NotArmed("no")

    monkeypatch.setattr(Probing, "run", refused)
    config = shipped()
    with pytest.raises(NotArmed):
        said_by(config)
    assert not Path(config.probe.folder).exists()


def test_what_was_found_is_said_before_it_is_kept(
    shipped: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit moved for it: a full disk does not take it away."""
    timer = TimerFound(asked_s=35, acts=True, target="default_mode", after_s=35)
    config = shipped()

    async def found(self: Probing) -> ProbeRecord:
        (tmp_path / "probes").touch()
        return record_of(config.serial, timer)

    monkeypatch.setattr(Probing, "run", found)
    said = io.StringIO()
    with pytest.raises(ProbeNotKept):
        probe(config, "bench.toml", REHEARSED, Console(file=said, width=400))
    assert "timer        acts: set to 35 s" in said.getvalue()


# -- how it ends ---------------------------------------------------------------------------------------


def at_write(number: int, what: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have something happen once the prober's write of that number is let through."""
    admit, seen = BenchGate.admit, 0

    def counting(self: BenchGate, link: str, pdu: bytes) -> str | None:
        nonlocal seen
        why = admit(self, link, pdu)
        seen += link == "worker-probe"
        if link == "worker-probe" and seen == number:
            what()
        return why

    monkeypatch.setattr(BenchGate, "admit", counting)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.mutation(FILE, "        return _stopped(rig, say)\n", "        return OK\n")
def test_ctrl_c_leaves_a_safe_unit_and_no_record(
    number: int, shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the pulse, at its end, at the block: exit 130."""
    config = shipped()
    at_write(number, interrupt, monkeypatch)
    code, said = said_by(config)
    assert code == ABORTED
    assert "the unit is safe" in said
    assert kept(config) is None


def in_force(folder: Path) -> tuple[int, float, int]:
    """(enabled, power, timer) by the stand-in's own journal."""
    journal = Journal(folder / "device.sqlite")
    try:
        saved = journal.load()
        assert saved is not None
        return saved.memory.ena, saved.memory.w, saved.memory.rvrt_tms
    finally:
        journal.close()


async def cut_short(
    number: int,
    config: Config,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    permission: Permission = REHEARSED,
) -> tuple[BenchRig, BaseException]:
    """A session that is stopped at the prober's write of that number: its rig, and how it ended."""
    launcher = Launcher()
    await launcher.start()
    try:
        probing = Probing(config, launcher, folder, permission, lambda _: None)
        task = asyncio.create_task(probing.run())
        at_write(number, task.cancel, monkeypatch)
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(ended, BaseException)
        return probing.rig, ended
    finally:
        await launcher.stop()


BLOCK_WRITE = 5
"""The prober's write of a power beyond the rating, after the pulse, its stop, and two functions."""


@pytest.mark.parametrize("number", [1, 2, 3, 4, BLOCK_WRITE, 6])
@pytest.mark.mutation(FILE, "if self._unparked and self.rig.gate.guard is not None", "if False")
@pytest.mark.mutation(FILE, 'self._unparked = parking == "unparked"', "self._unparked = False")
def test_cut_short_anywhere_the_unit_is_off_and_parked(
    number: int, shipped: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cosmetic timer would end nothing, and the guardian parks nothing that is off: another prober does."""
    rig, ended = asyncio.run(cut_short(number, shipped(COSMETIC), tmp_path, monkeypatch))
    assert isinstance(ended, asyncio.CancelledError)
    assert rig.safe is not None
    assert rig.safe.safe
    assert in_force(tmp_path) == (0, 0, 0)
    assert (tmp_path / "worker-park.out").exists() == (number >= BLOCK_WRITE)


@pytest.mark.mutation(FILE, "                        self.rig.post.unparked(self._unparked)\n", "")
@pytest.mark.mutation(FILE, "                    self.rig.post.unparked(False)\n", "")
@pytest.mark.parametrize(("cut", "told"), [(6, [True, False]), (BLOCK_WRITE, [True, False])])
def test_the_guardian_knows_while_a_power_beyond_the_rating_may_stand(
    cut: int, told: list[bool], shipped: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to park if the runner cannot any more; once somebody has parked, it need not."""
    heard: list[bool] = []
    tell = GuardPost.unparked

    def noted(self: GuardPost, maybe: bool) -> None:
        heard.append(maybe)
        tell(self, maybe)

    monkeypatch.setattr(GuardPost, "unparked", noted)
    asyncio.run(cut_short(cut, shipped(COSMETIC), tmp_path, monkeypatch))
    assert heard == told


@pytest.mark.mutation(FILE, "        if self._unparked:\n", "        if False:\n")
@pytest.mark.mutation(
    "hil/prober.py", "self._default(after) and taken and not", "self._default(after) and not"
)
def test_values_that_could_not_be_parked_are_unsafe(
    shipped: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Off is not enough while a power beyond the rating may stand there."""
    admit = BenchGate.admit

    def refusing(self: BenchGate, link: str, pdu: bytes) -> str | None:
        return "no" if link == "worker-park" else admit(self, link, pdu)

    monkeypatch.setattr(BenchGate, "admit", refusing)
    _, ended = asyncio.run(cut_short(BLOCK_WRITE, shipped(), tmp_path, monkeypatch))
    assert isinstance(ended, ProbeUnsafe)
    assert "beyond its rating may still stand" in str(ended)


@pytest.mark.mutation(FILE, "except (Latched, GuardianGone) as fault:", "except GuardianGone as fault:")
def test_a_limit_that_is_broken_ends_it_with_3(shipped: Shipped, tmp_path: Path) -> None:
    """The guardian stops the unit; what was found until then does not count."""
    config = shipped(("ramp_w_per_s_max = 5000.0", "ramp_w_per_s_max = 1.0"))
    rig, found = asyncio.run(session(config, tmp_path))
    assert isinstance(found, ProbeUnsafe)
    assert exit_code(found) == UNSAFE
    assert "ramp_w_per_s_max" in str(found)
    assert rig.safe is not None
    assert rig.safe.safe


def test_without_its_guardian_the_probe_ends_and_another_makes_the_unit_safe(
    shipped: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at the pulse."""
    arrive = BenchRig.arrive
    rigs: list[BenchRig] = []

    async def noted(self: BenchRig, *given: object) -> Arrival:
        rigs.append(self)
        return await arrive(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(BenchRig, "arrive", noted)
    at_write(1, lambda: rigs[0].post.process.kill(), monkeypatch)
    rig, found = asyncio.run(session(shipped(COSMETIC), tmp_path))
    assert isinstance(found, ProbeUnsafe)
    assert rig.safe is not None
    assert rig.safe.safe
    assert in_force(tmp_path) == (0, 0, 0)


@pytest.mark.mutation(FILE, "        if refusals:\n", "        if False:\n")
def test_a_write_that_the_guard_refuses_spoils_the_record(
    shipped: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exception is ours, and would be taken for the unit's."""
    admit = BenchGate.admit
    number = 0

    def refusing(self: BenchGate, link: str, pdu: bytes) -> str | None:
        nonlocal number
        number += link == "worker-probe"
        if link == "worker-probe" and number == 3:
            self.refusals.append("not this one")
            return "not this one"
        return admit(self, link, pdu)

    monkeypatch.setattr(BenchGate, "admit", refusing)
    _, found = asyncio.run(session(shipped(), tmp_path))
    assert isinstance(found, ProbeUnsafe)
    assert "was refused, so nothing is kept: not this one" in str(found)


# -- what a record means for runs ----------------------------------------------------------------------


def rehearse(config: Config, folder: Path, permission: Permission, *workers: Worker) -> list[RowResult]:
    """One scenario of a campaign."""
    (scenario,) = (s for s in suite("restart") if s.name == "clean")
    rows: list[tuple[Scenario, Worker]] = [(scenario, worker) for worker in workers]
    results: list[RowResult] = []
    run_folder = RunFolder(folder)
    try:
        asyncio.run(Campaign(config, run_folder, permission).run(rows, lambda *_: None, results.append))
    finally:
        run_folder.finish({"config_sha256": "", "source_sha256": ""})
    return results


@pytest.mark.mutation("hil/campaign.py", "            await self._rehearse_probe()\n", "")
def test_a_rehearsal_on_a_cosmetic_timer_is_refused_unattended(shipped: Shipped, tmp_path: Path) -> None:
    """A dead worker would leave the battery running, and nobody is there."""
    (row,) = rehearse(shipped(COSMETIC), tmp_path / "run", REHEARSED, "durable")
    assert row.verdict == "blocked"
    assert "has no timer that acts" in row.problems[0]


def test_attended_a_volatile_row_is_blocked_on_a_cosmetic_timer(shipped: Shipped, tmp_path: Path) -> None:
    """Its record says that nothing would end what it strands."""
    attended = Permission(rehearse=True, attended=True)
    (row,) = rehearse(shipped(COSMETIC), tmp_path / "run", attended, "volatile")
    assert row.verdict == "blocked"
    assert "its timer was seen not to act" in row.problems[0]


def test_a_rehearsal_runs_volatile_rows_on_a_timer_that_acts(shipped: Shipped, tmp_path: Path) -> None:
    """It has rehearsed the probe first, by itself, and reads no file."""
    config = shipped()
    cosmetic = TimerFound(asked_s=35, acts=False, target=None, after_s=None)
    save(Path(config.probe.folder), record_of(config.serial, cosmetic, rehearsal=True))
    (row,) = rehearse(config, tmp_path / "run", REHEARSED, "volatile")
    assert row.verdict == "pass", row.problems


def record_of(serial: str, timer: TimerFound, *, rehearsal: bool = False) -> ProbeRecord:
    nothing = dict.fromkeys(
        (
            *("block_atomic", "fc06", "fc16", "range_check", "power_cycle"),
            *("counter_step_wh", "counter_lag_s", "read_back_s"),
        )
    )
    identity = Identity("battery-hil", "reference", "1", serial)
    return ProbeRecord(identity=identity, at=datetime.now(UTC), rehearsal=rehearsal, timer=timer, **nothing)


def arrival_of(serial: str) -> Arrival:
    """A unit whose profile says that its timer acts."""
    identity = Identity("battery-hil", "reference", "1", serial)
    return Arrival(
        sample=replace(sample(ManualClock()), identity=identity),
        capabilities=Capabilities(kind="test", reversion=True),
        points=ControlPoints((), serial=0, enabled=0),
        fresh=True,
    )


@pytest.mark.parametrize(
    ("attended", "worker", "error", "why"),
    [
        (False, "durable", NotArmed, "has no timer that acts"),
        (True, "volatile", Blocked, "its timer was seen not to act"),
    ],
)
def test_a_real_unit_whose_record_says_cosmetic(
    attended: bool, worker: Worker, error: type[HilError], why: str, shipped: Shipped, tmp_path: Path
) -> None:
    """What was seen counts, not what the profile says."""
    config = shipped(("allow_writes = false", "allow_writes = true"))
    save(
        Path(config.probe.folder),
        record_of(config.serial, TimerFound(asked_s=35, acts=False, target=None, after_s=None)),
    )
    run_folder = RunFolder(tmp_path / "run")
    campaign = Campaign(config, run_folder, Permission(arm=config.serial, attended=attended))
    try:
        with pytest.raises(error, match=why):
            campaign.admit(arrival_of(config.serial), worker)
    finally:
        run_folder.finish({"config_sha256": "", "source_sha256": ""})
        shutil.rmtree(campaign._own)
        if campaign.lock is not None:
            campaign.lock.release()
