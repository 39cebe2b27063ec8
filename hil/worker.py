"""The built-in workers under test, as processes of their own: ``python -m hil.worker durable|volatile``.

A worker is told everything by five variables; each of the first three is JSON, or the path of a file with it:

``HIL_TARGET``   the device, e.g. ``{"adapter": "sunspec", "host": "127.0.0.1", "port": 5020}``
``HIL_COMMAND``  the command, e.g. ``{"kind": "pulse", "id": "p1", "device": "d", "seq": 1, …}``
``HIL_LEDGER``   ``{"path": …}`` (or the path itself), with ``journal_mode`` and ``synchronous`` if not WAL, FULL
``HIL_CLOCK``    ``real`` (default), or what the rig gives
``HIL_KILL``     kill points (:mod:`ledger.killpoints`); empty to live

``durable`` keeps its books in the ledger. ``volatile`` is the same worker with books that die with it: the
baseline. The last line on stdout is one JSON object: ``answer``, ``state``, ``reason``, ``detail``.
Exit codes: 0 decided (whatever the answer), 2 bad input, 4 no such unit, 70 fault of the kit, 86 killed on cue.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from adapters.registry import TARGET, AnyTarget, open_actuator
from hil.clock import REAL, open_clock
from hil.exits import BAD_INPUT, FAULT, exit_code
from ledger import killpoints
from ledger.dispatcher import Dispatcher, Result, refuse_past
from ledger.errors import HilError, InvalidCommand, one_line
from ledger.model import PAYLOAD_BYTES_MAX, Pulse, first_problem, parse_command
from ledger.sqlite import SqliteStore

KINDS: Final = ("durable", "volatile")


class WorkerUsage(HilError):
    """The worker was started wrongly; nothing was opened."""

    exit_code = BAD_INPUT


def main(arguments: Sequence[str]) -> int:
    """Run one worker; the exit code."""
    try:
        result = run(arguments, os.environ)
    except HilError as error:
        print(f"hil worker: {error}", file=sys.stderr)
        return exit_code(error)
    except Exception:  # a fault of the kit: say where
        traceback.print_exc()
        return FAULT
    said = {
        "answer": result.answer,
        "state": result.state,
        "reason": result.reason,
        "detail": result.detail,
    }
    print(json.dumps(said), flush=True)
    return 0


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> Result:
    """Check all input, then open the books, then the device. Raises :class:`~ledger.errors.HilError`."""
    if len(arguments) != 1 or arguments[0] not in KINDS:
        given = " ".join(arguments) or "nothing"
        raise WorkerUsage(f"say which worker: {' or '.join(KINDS)} (given: {given})")
    target = _target(_document(environment, "HIL_TARGET"))
    command = parse_command(_document(environment, "HIL_COMMAND"))
    if not isinstance(command, Pulse):
        raise InvalidCommand("kind", command.kind, "is not carried out by this worker", "send a pulse")
    try:
        killpoints.arm(environment.get("HIL_KILL", ""))
    except ValueError as error:
        raise WorkerUsage(f"HIL_KILL: {error}") from None
    clock = open_clock(environment.get("HIL_CLOCK", REAL))
    store = _store(arguments[0], environment)
    try:
        if store.row(command.id) is None:
            refuse_past(command, clock)  # before anything is asked of the device, or written
        clock.sleep_until(clock.mono_s())  # a start line: under virtual time, workers go one after another
        actuator = open_actuator(target, clock)
        try:
            dispatcher = Dispatcher(store, actuator, clock, serial=target.serial)
            dispatcher.boot()
            dispatcher.recover()
            return dispatcher.dispatch(command)
        finally:
            actuator.close()
    finally:
        store.close()


def _document(environment: Mapping[str, str], name: str) -> str:
    """A variable's JSON, or the content of the file that it names."""
    text = environment.get(name, "").strip()
    if not text:
        raise WorkerUsage(f"{name} is not set; give JSON, or the path of a file with it")
    if text.startswith(("{", "[")):
        return text
    path = Path(text)
    try:
        if not path.is_file():
            raise WorkerUsage(
                f"{name}: {one_line(text)} is not a regular file; give JSON, or the path of a file with it"
            )
        if path.stat().st_size > PAYLOAD_BYTES_MAX:
            raise WorkerUsage(
                f"{name}: {path} has {path.stat().st_size:,} bytes, more than {PAYLOAD_BYTES_MAX:,};"
                " nothing was read: give one JSON object"
            )
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkerUsage(f"{name}: {path} cannot be read ({error}); give JSON, or a readable file") from None


def _target(text: str) -> AnyTarget:
    try:
        return TARGET.validate_json(text)
    except ValidationError as error:
        key, value, problem = first_problem(error)
        raise WorkerUsage(f"HIL_TARGET: {key} = {value!r}: {problem}; correct it") from None


def _store(kind: str, environment: Mapping[str, str]) -> SqliteStore:
    if kind == "volatile":
        return SqliteStore.volatile()
    text = environment.get("HIL_LEDGER", "").strip()
    if not text:
        raise WorkerUsage("HIL_LEDGER is not set; a durable worker needs the path of its ledger")
    settings: dict[str, Any] = {"path": text}
    if text.startswith("{"):
        try:
            settings = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WorkerUsage(f"HIL_LEDGER: not JSON ({error}); give the path of the ledger") from None
    path = settings.pop("path", None)
    unknown = sorted(set(settings) - {"journal_mode", "synchronous"})
    if not isinstance(path, str) or unknown or not all(isinstance(value, str) for value in settings.values()):
        raise WorkerUsage("HIL_LEDGER: the keys are path, journal_mode and synchronous, each with a text")
    if not path:
        raise WorkerUsage("HIL_LEDGER: path is empty; a durable worker needs the path of its ledger")
    return SqliteStore.open(path, **settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
