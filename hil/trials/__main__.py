"""One trial in a process of its own: ``python -m hil.trials NAME FOLDER``; what came of it on stdout, as JSON.

What a trial starts, it starts in this process's session, so that whoever runs it can end all of it. SIGTERM ends it
in order, with its servers and their files; it also comes when whoever runs it is gone.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from hil.exits import ABORTED, BAD_INPUT, OK
from hil.trials import loadable
from hil.trials.alone import die_with_parent
from hil.trials.model import Room, Tally, Trial


def main(arguments: list[str]) -> int:
    """Run one trial; the exit code. An exception is a fault of the kit, and is seen whole."""
    if len(arguments) != 2:
        print("usage: python -m hil.trials NAME FOLDER", file=sys.stderr)
        return BAD_INPUT
    name, folder = arguments
    signal.signal(signal.SIGTERM, _told_to_end)
    die_with_parent(signal.SIGTERM)
    found, _ = loadable("all")  # what cannot be loaded is no matter of this one
    trial = next((each for each in found if each.name == name), None)
    if trial is None:
        print(f"{name}: there is no such trial; 'hil list' shows the names", file=sys.stderr)
        return BAD_INPUT
    tally = _run(trial, Path(folder))
    said = {"classes": dict(tally.classes), "broken": tally.broken, "figures": tally.figures}
    print(json.dumps(said), flush=True)
    return OK


def _told_to_end(*_: object) -> None:
    """Once: what is cleaned up after the first one is not cut short by another."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(ABORTED)


def _run(trial: Trial, folder: Path) -> Tally:
    if trial.engine == "sqlite":
        return trial.run(Room(folder, "sqlite"))
    from hil.pgserver import scratch_server  # only here: it is an extra

    with scratch_server() as server:
        return trial.run(Room(folder, "postgres", server.url("trial")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
