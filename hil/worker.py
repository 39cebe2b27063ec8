"""The built-in workers under test, as processes of their own: ``python -m hil.worker durable|volatile|reconciling``.

A worker is told everything by five variables; each of the first three is JSON, or the path of a file with it:

``HIL_TARGET``   the device, e.g. ``{"adapter": "sunspec", "host": "127.0.0.1", "port": 5020}``
``HIL_COMMAND``  the command, e.g. ``{"kind": "pulse", "id": "p1", "device": "d", "seq": 1, …}``
``HIL_LEDGER``   ``{"path": …}`` (or the path itself), with ``journal_mode`` and ``synchronous`` if not WAL, FULL;
                 or ``{"url": "postgresql://…"}`` (or the URL itself): see ``docs/postgres.md``
``HIL_CLOCK``    ``real`` (default), or what the rig gives
``HIL_KILL``     kill points (:mod:`ledger.killpoints`); empty to live

``durable`` keeps its books in the ledger, and leaves every doubt to a person. ``reconciling`` is the same worker under
the policy ``auto``: what the device shows decides, where it is conclusive. ``volatile`` has books that die with it:
the baseline. The last line on stdout is one JSON object: ``answer``, ``state``, ``reason``, ``detail``.
A release is carried out also where the ledger cannot be opened, read or written (``stopped_unbooked``, or
``not_stopped``): what is in force is stopped if it is one of the commands that can still be read from the file.
Exit codes: 0 decided (whatever the answer), 1 a stop did not succeed, 2 bad input, 3 stopped
without the books, 4 no such unit, 70 fault of the kit, 86 killed on cue.
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
from hil.exits import BAD_INPUT, FAILED, FAULT, UNSAFE, exit_code
from ledger import killpoints, salvage
from ledger.answers import Result, unbooked
from ledger.books import Books
from ledger.dispatcher import Dispatcher
from ledger.errors import HilError, LedgerError, one_line
from ledger.guards import refuse_past
from ledger.model import PAYLOAD_BYTES_MAX, Command, Release, first_problem, parse_command
from ledger.ports import Clock
from ledger.postgres import PostgresStore
from ledger.sqlite import SqliteStore
from ledger.stops import meant

KINDS: Final = ("durable", "volatile", "reconciling")
EXIT_CODES: Final = {"stopped_unbooked": UNSAFE, "not_stopped": FAILED}
"""What is said by the exit code besides; every other answer is a decision, and 0."""
_URLS: Final = ("postgresql://", "postgres://")


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
    return EXIT_CODES.get(result.answer, 0)


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> Result:
    """Check all input, then open the books, then the device. Raises :class:`~ledger.errors.HilError`."""
    if len(arguments) != 1 or arguments[0] not in KINDS:
        given = " ".join(arguments) or "nothing"
        raise WorkerUsage(f"say which worker: {', '.join(KINDS)} (given: {given})")
    target = _target(_document(environment, "HIL_TARGET"))
    command = parse_command(_document(environment, "HIL_COMMAND"))
    try:
        killpoints.arm(environment.get("HIL_KILL", ""))
    except ValueError as error:
        raise WorkerUsage(f"HIL_KILL: {error}") from None
    clock = open_clock(environment.get("HIL_CLOCK", REAL))
    try:
        store = _store(arguments[0], environment)
    except LedgerError as error:
        if not isinstance(command, Release):
            raise
        return _stop_without_books(target, clock, command, environment, error)
    try:
        if not isinstance(command, Release) and store.row(command.id) is None:
            refuse_past(command, clock)  # before anything is asked of the device, or written
        clock.sleep_until(clock.mono_s())  # a start line: under virtual time, workers go one after another
        actuator = open_actuator(target, clock)
        try:
            dispatcher = Dispatcher(
                store,
                actuator,
                clock,
                serial=target.serial,
                policy="auto" if arguments[0] == "reconciling" else "hold",
                sole_client=target.sole_client,
                salvage=lambda: _salvaged(environment),
            )
            dispatcher.boot()
            return _carried_out(dispatcher, command)
        finally:
            actuator.close()
    finally:
        store.close()


def _carried_out(dispatcher: Dispatcher, command: Command) -> Result:
    """Recover, dispatch, and see to what is left: older commands, that the new one did not replace after all.

    A stop does not wait for a recovery that fails: what is wrong with the books it finds out by itself.
    """
    try:
        dispatcher.recover(command)
    except LedgerError as error:
        if not isinstance(command, Release):
            raise
        print(f"hil worker: {error}", file=sys.stderr)
    try:
        result = dispatcher.dispatch(command)
    except HilError:
        _see_to_the_rest(dispatcher, command)  # what was left to this command is left to nobody
        raise
    if result.answer not in EXIT_CODES:
        _see_to_the_rest(dispatcher, command)
    return result


def _see_to_the_rest(dispatcher: Dispatcher, command: Command) -> None:
    try:
        dispatcher.recover()
        dispatcher.leave()
    except HilError as error:
        print(f"hil worker: after {command.id}: {error}", file=sys.stderr)


def _stop_without_books(
    target: AnyTarget, clock: Clock, command: Release, environment: Mapping[str, str], error: LedgerError
) -> Result:
    """A ledger that cannot even be opened holds no stop back."""
    actuator = open_actuator(target, clock)
    try:
        actuator.identify()
        known = meant(command, _salvaged(environment))
        return unbooked(actuator, clock, target.serial or command.device, known, str(error))
    finally:
        actuator.close()


def _salvaged(environment: Mapping[str, str]) -> tuple[Command, ...]:
    """What can still be read of the ledger's file; nothing where it is kept by a server."""
    text = environment.get("HIL_LEDGER", "").strip()
    if text.startswith("{"):
        try:
            text = str(json.loads(text).get("path") or "")
        except (ValueError, RecursionError):
            return ()
    return salvage.commands(text) if text and "://" not in text else ()


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


def _store(kind: str, environment: Mapping[str, str]) -> Books:
    if kind == "volatile":
        return SqliteStore.volatile()
    text = environment.get("HIL_LEDGER", "").strip()
    if not text:
        raise WorkerUsage("HIL_LEDGER is not set; a durable worker needs the path of its ledger")
    settings: dict[str, Any] = {"url" if text.startswith(_URLS) else "path": text}
    if text.startswith("{"):
        try:
            settings = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WorkerUsage(f"HIL_LEDGER: not JSON ({error}); give the path of the ledger") from None
    if "url" in settings:
        return _by_url(settings)
    path = settings.pop("path", None)
    unknown = sorted(set(settings) - {"journal_mode", "synchronous"})
    if not isinstance(path, str) or unknown or not all(isinstance(value, str) for value in settings.values()):
        raise WorkerUsage("HIL_LEDGER: the keys are path, journal_mode and synchronous, each with a text")
    if not path:
        raise WorkerUsage("HIL_LEDGER: path is empty; a durable worker needs the path of its ledger")
    return SqliteStore.open(path, **settings)


def _by_url(settings: Mapping[str, Any]) -> Books:
    url = settings["url"]
    if len(settings) > 1 or not isinstance(url, str) or not url.startswith(_URLS):
        raise WorkerUsage(
            "HIL_LEDGER: beside url there is no other key, and it is postgresql://user@host/database"
        )
    return PostgresStore.open(url)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
