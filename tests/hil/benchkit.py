"""What the rig's tests share: a launcher, a clock, a device and workers, ready to be killed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hil.config import Config
from hil.launcher import Launcher
from hil.rig import FakeRig, SimulatorRig
from hil.virtualtime import VirtualTime
from hil.wiretap import Frame
from hil.workers import Gone, Workers
from ledger.model import Pulse
from ledger.ports import Row
from ledger.sqlite import SqliteStore


@dataclass
class Bench:
    """One device, one ledger, one clock."""

    config: Config
    folder: Path
    time: VirtualTime
    rig: FakeRig | SimulatorRig
    workers: Workers
    launcher: Launcher

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.sqlite"

    def pulse(self, id: str, seq: int = 1, *, power_w: float = 2_000.0, duration_s: float = 3_600.0) -> Pulse:
        """A command for this bench's device, good for a day."""
        start_by_s = self.config.clock.start.timestamp() + 86_400
        return Pulse(
            id=id,
            device=self.config.device.serial,
            seq=seq,
            power_w=power_w,
            duration_s=duration_s,
            start_by_s=start_by_s,
        )

    async def work(self, name: str, command: Pulse, **how: object) -> Gone:
        """Start one durable worker and see it to its end."""
        return await self.workers.finish(
            await self.workers.start("durable", name, command, **how)  # type: ignore[arg-type]
        )

    def row(self, id: str) -> Row | None:
        """A command's row in the ledger."""
        if not self.ledger.exists():
            return None
        store = SqliteStore.open(self.ledger)
        try:
            return store.row(id)
        finally:
            store.close()

    def writes(self) -> list[Frame]:
        """The write requests that reached the device."""
        return [frame for frame in self.rig.frames or [] if frame.is_write and frame.fate == "forwarded"]


@asynccontextmanager
async def bench(
    folder: Path, config: Config, *, lockstep: bool = True, launcher: Launcher | None = None
) -> AsyncIterator[Bench]:
    """A bench on a fresh device in ``folder``; a launcher that is given stays up for the next one."""
    own = launcher is None
    launcher = launcher or Launcher()
    if own:
        await launcher.start()
    clock_folder = Path(tempfile.mkdtemp(prefix="hil-"))  # short: a socket's path has a limit
    time = VirtualTime(clock_folder, config.clock.start.timestamp(), lockstep=lockstep)
    await time.start()
    rig: FakeRig | SimulatorRig = (
        FakeRig(config, folder)
        if config.target.kind == "fake"
        else SimulatorRig(config, folder, launcher, time, clock_folder, lambda _: None)
    )
    try:
        await rig.start()
        ledger = {"path": str(folder / "ledger.sqlite")}
        workers = Workers(launcher, rig, time, folder, ledger)
        yield Bench(config, folder, time, rig, workers, launcher)
    finally:
        await rig.stop()
        await time.stop()
        if own:
            await launcher.stop()
        shutil.rmtree(clock_folder, ignore_errors=True)
