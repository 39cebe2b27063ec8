"""Bad input: one clear line with place, key, value and remedy, the right exit code, nothing changed."""

from __future__ import annotations

import hashlib
import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters import fake
from hil import worker
from hil.cli import main
from ledger.sqlite import SqliteStore
from ledger.testing import ManualClock, pulse

Run = Callable[..., tuple[int, str, str]]

CONFIGS = {
    "unknown key": ("[device]\ncapacity = 1.0", ["device.capacity = 1.0", "not a known key", "capacity_wh"]),
    "unknown section": ("[devices]\nserial = 'x'", ["devices", "not a known key", "device"]),
    "wrong type": ("[device]\ncapacity_wh = 'much'", ["device.capacity_wh = 'much'", "number"]),
    "negative duration": ("[pulse]\nduration_s = -5.0", ["pulse.duration_s = -5.0", "greater than"]),
    "NaN": ("[pulse]\npower_w = nan", ["pulse.power_w = nan", "finite"]),
    "infinity": ("[pulse]\npower_w = inf", ["pulse.power_w = inf", "finite"]),
    "reserve above capacity": (
        "[device]\nreserve_wh = 30000.0",
        ["device.reserve_wh = 30000.0", "above capacity_wh = 25000", "give at most"],
    ),
    "naive time": ("[clock]\nstart = 2026-01-01T00:00:00", ["clock.start", "without a zone", "add Z"]),
    "past time": (
        "[pulse]\nstart_by = 2020-01-01T00:00:00Z",
        ["start_by = 2020-01-01", "past", "give a later"],
    ),
    "naive start_by": ("[pulse]\nstart_by = 2027-01-01T00:00:00", ["pulse.start_by", "without a zone"]),
    "unsafe journal mode": ("[ledger]\njournal_mode = 'DELETE'", ["'DELETE'", "power cut", "use WAL"]),
    "unsafe level": ("[ledger]\nsynchronous = 'NORMAL'", ["ledger.synchronous = 'NORMAL'", "power cut"]),
    "pulse beyond the device": ("[pulse]\npower_w = 6000.0", ["pulse.power_w = 6000", "power_w_max = 5000"]),
    "pulse beyond the reserve": ("[pulse]\nduration_s = 36000.0", ["duration_s = 36000", "room for two"]),
    "serial": ("[device]\nserial = 'a b'", ["device.serial = 'a b'", "pattern"]),
    "not TOML": ("a = = 1", ["is not TOML", "line 1"]),
}

ONE_ROW = ("--scenario", "clean", "--worker", "durable")
"""Should bad input ever be let through, the run is a short one."""

COMMAND: dict[str, Any] = {
    "kind": "pulse",
    "id": "p1",
    "device": "unit-1",
    "seq": 1,
    "power_w": 2000.0,
    "duration_s": 3600.0,
    "start_by_s": "2999-01-01T00:00:00Z",
}
COMMANDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown key": ({"power": 1}, ["power = 1", "not a known key"]),
    "wrong type": ({"power_w": "2000"}, ["power_w = '2000'", "number"]),
    "negative duration": ({"duration_s": -1}, ["duration_s = -1", "greater than 0"]),
    "zero power": ({"power_w": 0}, ["power_w = 0", "moves nothing"]),
    "naive time": ({"start_by_s": "2999-01-01T00:00:00"}, ["start_by_s", "without a zone", "add Z"]),
    "past time": (
        {"start_by_s": "2020-01-01T00:00:00Z"},
        ["start_by_s", "in the past", "give a time to come"],
    ),
    "beyond the device": ({"power_w": 9000.0}, ["power_w = 9000", "beyond ±5000 W", "ask for less"]),
    "negative seq": ({"seq": -1}, ["seq = -1", "greater than or equal to 0"]),
    "a setpoint": (
        {"kind": "setpoint", "duration_s": None},
        ["duration_s", "not a known key"],
    ),
}


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``hil`` in this process: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hil", *arguments])
        with pytest.raises(SystemExit) as exited:
            main()
        out, err = capsys.readouterr()
        return int(exited.value.code or 0), out, err

    return run


def _one_line(text: str, fragments: list[str]) -> None:
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    for fragment in fragments:
        assert fragment in text, text


def _tree(folder: Path) -> dict[str, str]:
    """Every file below a folder and its digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.mutation("hil/config_sections.py", 'extra="forbid"', 'extra="ignore"')
@pytest.mark.mutation("hil/config_sections.py", "allow_inf_nan=False", "allow_inf_nan=True")
@pytest.mark.mutation("hil/config_sections.py", "value > capacity_wh:", "value > capacity_wh * 9:")
@pytest.mark.mutation(
    "hil/config_sections.py", "if value.tzinfo is None:\n        raise", "if False:\n        raise"
)
@pytest.mark.mutation("hil/config.py", "value.start_by <= clock.start", "False")
@pytest.mark.mutation("hil/config.py", "(mode, value) not in SAFE", "False")
@pytest.mark.mutation(
    "hil/config_fits.py", "if APPLIED_MAX * each_wh > room_wh + _HAIR_WH * APPLIED_MAX:", "if False:"
)
@pytest.mark.parametrize("case", CONFIGS)
def test_a_bad_config_is_refused_with_its_place(case: str, cli: Run, tmp_path: Path) -> None:
    """File, key, value and remedy in one line on stderr, exit code 2, and no run folder."""
    text, fragments = CONFIGS[case]
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    code, _, err = cli("run", str(path), *ONE_ROW, "--out", str(tmp_path / "out"))
    assert code == 2
    _one_line(err, [str(path), *fragments])
    assert not (tmp_path / "out").exists()


@pytest.mark.mutation("hil/config.py", "if size > CONFIG_BYTES_MAX:", "if False:")
def test_a_config_that_cannot_be_read_is_named(cli: Run, tmp_path: Path) -> None:
    """A missing file, a folder, a 10 MB file and bytes that are no text are each one line, exit code 2."""
    huge, binary = tmp_path / "huge.toml", tmp_path / "binary.toml"
    huge.write_bytes(b"#" * 10_000_000)
    binary.write_bytes(b"\xff\xfe\x00")
    for path, fragment in (
        (tmp_path / "none.toml", "there is no such file"),
        (tmp_path, "is a folder, not a config"),
        (huge, "10,000,000 bytes"),
        (binary, "is not UTF-8"),
    ):
        code, _, err = cli("run", str(path), *ONE_ROW)
        assert code == 2
        _one_line(err, [str(path), fragment])


def test_wrong_names_on_the_command_line_are_answered_with_the_right_ones(cli: Run, tmp_path: Path) -> None:
    """An unknown suite, scenario or worker is exit code 2, and the message says what there is."""
    out = ["--out", str(tmp_path / "out")]
    for arguments, fragments in (
        (["run", "--suite", "nope", *out], ["--suite nope", "restart, storage, fleet"]),
        (["run", "--scenario", "nope", *out], ["--scenario nope", "hil list"]),
        (["run", "--worker", "nope", *out], ["--worker nope", "volatile, durable, reconciling"]),
        (["show", "nope"], ["nope", "hil list"]),
    ):
        code, _, err = cli(*arguments)
        assert code == 2
        _one_line(err, fragments)
    assert not (tmp_path / "out").exists()


@pytest.mark.mutation("hil/evidence.py", "if taken:", "if False:")
def test_an_earlier_run_is_never_overwritten(cli: Run, tmp_path: Path) -> None:
    """A run folder with something in it is refused and left alone."""
    (tmp_path / "results.json").write_text("{}", encoding="utf-8")
    before = _tree(tmp_path)
    code, _, err = cli("run", "configs/fake.toml", *ONE_ROW, "--out", str(tmp_path))
    assert code == 2
    _one_line(err, [str(tmp_path), "not empty", "give another one"])
    assert _tree(tmp_path) == before


def test_a_busy_port_is_named(cli: Run) -> None:
    """``hil simulate`` on a taken port is one line with the port and what to do, exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = cli("simulate", "--port", str(port))
    assert code == 2
    _one_line(err, [f"--port {port}", "in use", "give another"])


# -- the worker's input -------------------------------------------------------------------------------------


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """A folder with a fake device, and a ledger that has a command in it."""
    fake.create(tmp_path / "device.sqlite", serial="unit-1")
    store = SqliteStore.open(tmp_path / "ledger.sqlite")
    clock = ManualClock()
    store.begin_incarnation(clock)
    store.submit(pulse("known", 7), clock)
    store.close()
    return tmp_path


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], books: Path) -> Run:
    """Runs a durable worker in this process: (exit code, stdout, stderr)."""

    def run(command: str, **variables: str) -> tuple[int, str, str]:
        monkeypatch.setenv(
            "HIL_TARGET", json.dumps({"adapter": "fake", "path": str(books / "device.sqlite")})
        )
        monkeypatch.setenv("HIL_LEDGER", str(books / "ledger.sqlite"))
        monkeypatch.setenv("HIL_COMMAND", command)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        code = worker.main(["durable"])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def _commands(path: Path) -> list[Any]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        rows = db.execute("SELECT * FROM commands").fetchall() + db.execute("SELECT * FROM events").fetchall()
    db.close()
    return rows


@pytest.mark.mutation("ledger/guards.py", "if command.start_by_s <= now_s:", "if False:")
@pytest.mark.mutation(
    "ledger/model.py",
    "if value == 0:\n            raise ValueError",
    "if False:\n            raise ValueError",
)
@pytest.mark.parametrize("case", COMMANDS)
def test_a_bad_command_is_refused_and_the_ledger_unchanged(case: str, work: Run, books: Path) -> None:
    """Key, value and remedy in one line, exit code 2; the books and the device are as they were."""
    change, fragments = COMMANDS[case]
    before = _commands(books / "ledger.sqlite")
    code, out, err = work(json.dumps({**COMMAND, **change}))
    assert (code, out) == (2, "")
    _one_line(err, fragments)
    assert _commands(books / "ledger.sqlite") == before
    assert fake.applications(books / "device.sqlite") == ()


@pytest.mark.mutation("ledger/model.py", "if len(payload) > PAYLOAD_BYTES_MAX:", "if False:")
def test_a_ten_megabyte_payload_is_not_even_parsed(work: Run, books: Path) -> None:
    """Inline or in a file, it is refused by its size, exit code 2."""
    before = _tree(books)
    text = json.dumps({**COMMAND, "id": "x" * 10_000_000})
    # an environment variable cannot hold 10 MB, so the inline one is as long as one can be
    code, _, err = work(json.dumps({**COMMAND, "id": "x" * 100_000}))
    assert code == 2
    _one_line(err, ["payload", "65,536 bytes"])
    file = books.parent / "huge.json"
    file.write_text(text, encoding="utf-8")
    code, _, err = work(str(file))
    assert code == 2
    _one_line(err, ["huge.json", "65,536"])
    assert _tree(books) == before


@pytest.mark.parametrize("text", ['{"kind":"pulse","power_w":NaN}', "{", "[]", '{"a":1,"a":2}', "{" * 50_000])
def test_json_that_is_none_is_refused(text: str, work: Run) -> None:
    """NaN, half an object, a list, a key twice, endless nesting: one line, exit code 2."""
    code, _, err = work(text)
    assert code == 2
    _one_line(err, ["command: "])


@pytest.mark.mutation("ledger/sqlite_open.py", 'if found_wal != (journal_mode == "WAL"):', "if False:")
def test_a_ledger_in_an_unsafe_mode_is_refused_byte_for_byte_unchanged(work: Run, books: Path) -> None:
    """A ledger that was put into a rollback journal is not converted back, and not opened to dispatch."""
    path = books / "ledger.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = DELETE").fetchone()
    db.close()
    before = _tree(books)
    code, _, err = work(json.dumps(COMMAND))
    assert code == 2
    _one_line(err, [str(path), "journal_mode = WAL", "rollback journal", "nothing was converted"])
    assert _tree(books) == before


def test_an_unsafe_mode_is_refused_when_asked_for(work: Run, books: Path) -> None:
    """DELETE with FULL, SQLite's own default, is refused for a new ledger too, which is then not created."""
    path = books / "new.sqlite"
    asked = json.dumps({"path": str(path), "journal_mode": "DELETE", "synchronous": "FULL"})
    code, _, err = work(json.dumps(COMMAND), HIL_LEDGER=asked)
    assert code == 2
    _one_line(err, [str(path), "journal_mode = DELETE", "power cut", "use WAL"])
    assert not path.exists()


def test_what_is_no_ledger_is_left_alone(work: Run, books: Path) -> None:
    """A text file and another program's database are refused, and unchanged."""
    text, other = books / "notes.txt", books / "device.sqlite"
    text.write_text("not a ledger\n" * 20, encoding="utf-8")
    for path, fragment in ((text, "not a SQLite file"), (other, "but not a ledger")):
        before = hashlib.sha256(path.read_bytes()).hexdigest()
        code, _, err = work(json.dumps(COMMAND), HIL_LEDGER=str(path))
        assert code == 2
        _one_line(err, [str(path), fragment, "was not changed"])
        assert hashlib.sha256(path.read_bytes()).hexdigest() == before


@pytest.mark.parametrize(
    ("name", "value", "code", "fragments"),
    [
        ("HIL_TARGET", "{}", 2, ["HIL_TARGET"]),
        ("HIL_TARGET", '{"adapter":"fake","path":"/nope"}', 4, ["/nope", "no fake actuator"]),
        ("HIL_TARGET", "/no/such/file.json", 2, ["HIL_TARGET", "/no/such/file.json"]),
        ("HIL_LEDGER", "", 2, ["HIL_LEDGER is not set"]),
        ("HIL_LEDGER", "/no/such/folder/l.sqlite", 2, ["/no/such/folder", "create it"]),
        ("HIL_LEDGER", '{"path":"l.sqlite","mode":"WAL"}', 2, ["HIL_LEDGER", "journal_mode and synchronous"]),
        ("HIL_KILL", "step[0].nope=exit86", 2, ["HIL_KILL", "step[k].acked"]),
        ("HIL_CLOCK", "sundial", 2, ["sundial", "real"]),
    ],
)
def test_wrong_variables_are_named(name: str, value: str, code: int, fragments: list[str], work: Run) -> None:
    """A worker says which of its variables is missing or wrong, and what it should be."""
    exited, _, err = work(json.dumps(COMMAND), **{name: value})
    assert exited == code
    _one_line(err, fragments)


# The command line itself ----------------------------------------------------------------------------------


@pytest.mark.mutation("hil/cli.py", "    except Exception:\n", "    except MemoryError:\n")
def test_a_fault_of_the_kit_is_a_traceback_and_70(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody foresaw is said in full, for a report, and is not taken for a failed expectation."""

    def broken(console: object) -> int:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr("hil.doctor.doctor", broken)
    code, _, err = cli("doctor")
    assert code == 70
    assert "RuntimeError: nobody foresaw this" in err
    assert "please report" in err.splitlines()[-1]


@pytest.mark.mutation(
    "hil/runner.py",
    "            except Exception as error:  # one",
    "            except KeyError as error:  # one",
)
def test_a_row_that_breaks_is_an_error_among_results(
    cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A fault in one row is its verdict: exit code 70, the run folder is whole and has the traceback."""

    def broken(*_: object) -> None:
        raise OverflowError("date value out of range")

    monkeypatch.setattr("hil.runner.RowRun", broken)
    out = tmp_path / "out"
    code, _, err = cli("run", *ONE_ROW, "--out", str(out))
    assert (code, err) == (70, "")
    (row,) = json.loads((out / "results.json").read_text(encoding="utf-8"))["scenarios"]
    assert row["verdict"] == "error"
    assert row["problems"] == ["fault of the kit: OverflowError('date value out of range')"]
    assert "Traceback" in (out / "diagnostics.jsonl").read_text(encoding="utf-8")
    assert (out / "manifest.json").exists()


@pytest.mark.mutation("hil/runplan.py", "if config is not None and Path(config).is_dir():", "if False:")
def test_a_folder_is_no_config(cli: Run, tmp_path: Path) -> None:
    """``hil run configs`` says what configs is."""
    code, _, err = cli("run", str(tmp_path), *ONE_ROW)
    assert code == 2
    _one_line(err, [str(tmp_path), "is a folder, not a config", "TOML file"])


@pytest.mark.mutation(
    "hil/runplan.py", "    except FolderTaken as error:\n", "    except MemoryError as error:\n"
)
def test_a_working_directory_without_room_is_named(
    cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody gave --out: the message speaks of the folder that hil chose, and offers --out as the way out."""
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("in the way", encoding="utf-8")
    code, _, err = cli("run", *ONE_ROW)
    assert code == 2
    _one_line(err, [f"no run folder can be made in {tmp_path}", "with --out"])


@pytest.mark.mutation("hil/cli.py", "if host is not None and not host.strip():", "if False:")
def test_an_empty_host_is_not_the_default(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--host ""`` is a script's unset variable: nothing is served."""

    async def served(*_: object) -> None:
        raise AssertionError("served")

    monkeypatch.setattr("hil.serve.serve", served)
    code, _, err = cli("simulate", "--host", "")
    assert code == 2
    _one_line(err, ["--host: is empty", "127.0.0.1"])


@pytest.mark.mutation("hil/serve.py", "number < 0 or number == errno.EADDRNOTAVAIL", "number < 0")
@pytest.mark.mutation("hil/serve.py", "number < 0 or number", "number")
@pytest.mark.parametrize("host", ["a..b", "300.1.1.1", "192.0.2.1", "x" * 70])
def test_a_host_that_is_not_ours_is_blamed_on_the_host(host: str, cli: Run) -> None:
    """No name, no address, and somebody else's address: --host is named, not --port."""
    code, _, err = cli("simulate", "--host", host, "--port", "0")
    assert code == 2
    _one_line(err, [f"--host {host}: is no address of this machine", "nothing was started"])


@pytest.mark.mutation("hil/serve.py", "(path.is_dir() or not path.parent.is_dir())", "False")
@pytest.mark.parametrize(
    ("name", "why"),
    [(".", "is a folder"), ("none/j.sqlite", "there is no folder"), ("c.toml", "not a database")],
)
def test_a_journal_that_can_be_none_is_refused(name: str, why: str, cli: Run, tmp_path: Path) -> None:
    """One line with the key, the path and the reason; exit code 2."""
    config = tmp_path / "c.toml"
    config.write_text(f"[simulator]\njournal = '{tmp_path / name}'\n" + "# " * 600, encoding="utf-8")
    code, _, err = cli("simulate", str(config), "--port", "0")
    assert code == 2
    _one_line(err, ["simulator.journal = ", why, "nothing was started"])


@pytest.mark.mutation("hil/runplan.py", "if (key := settings.only_served) is not None:", "if False:")
@pytest.mark.mutation("hil/config.py", ', ("device", self.device, PHYSICS)', "")
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[simulator]\npersonality = "amnesiac"\n', "simulator.personality = 'amnesiac'"),
        ('[simulator]\nface = "solax-gen4"\n', "simulator.face = "),
        ('[simulator]\ntimer = "cosmetic"\n', "simulator.timer = 'cosmetic'"),
        ('[device]\nsystem = "generic_5kw"\n', "device.system = 'generic_5kw'"),
        ("[device]\nramp_w_per_s = 100\n", "device.ramp_w_per_s = 100"),
        ("[device]\ncabinet_c = 50\n", "device.cabinet_c = 50"),
        ("[site]\nload = 500.0\n", "[site]"),
        ("[fleet]\nunits = 3\n", "[fleet]"),
    ],
)
def test_what_a_run_would_not_heed_is_refused(text: str, key: str, tmp_path: Path) -> None:
    """A pass on the reference device says nothing of the unit that the config describes."""
    config = tmp_path / "unit.toml"
    config.write_text(text, encoding="utf-8")
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "hil",
            "run",
            str(config),
            "--scenario",
            "clean",
            "--out",
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2
    assert key in ran.stderr
    assert "would not heed it" in ran.stderr
    assert ran.stderr.count("\n") == 1
