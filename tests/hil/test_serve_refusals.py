"""What ``hil simulate`` cannot serve is one line: which file and key, or which option, what is true, what to do."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from hil.config import load
from hil.exits import BAD_INPUT, exit_code
from hil.serve import CannotServe, serve
from simulator import journal
from simulator.journal import Journal

FILE = "hil/serve.py"
UNFIT = "hil/standin.py"
PATIENCE_S = 10.0
"""What is not refused by then is served."""
Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    """What is said when a config is served."""

    def run(text: str, *, host: str | None = None, port: int | None = None) -> str:
        path = tmp_path / "unit.toml"
        path.write_text(text, encoding="utf-8")
        config, name, _ = load(str(path), commanded=False)
        with pytest.raises(CannotServe) as caught:
            asyncio.run(asyncio.wait_for(serve(config, name, host, port), PATIENCE_S))
        said = str(caught.value)
        assert exit_code(caught.value) == BAD_INPUT
        assert "\n" not in said
        option = host is not None or port is not None
        assert said.startswith("--" if option else f"{path}: ")
        return said.removeprefix(f"{path}: ")

    return run


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on loopback that somebody else has."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        yield busy.getsockname()[1]


@contextmanager
def behind_a_free_one() -> Iterator[int]:
    """A port that somebody has, while nobody has the one before it."""
    for _ in range(100):
        with socket.create_server(("127.0.0.1", 0)) as busy:
            port = busy.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port - 1)).close()
            except OSError:
                continue
            yield port
            return
    raise AssertionError("no port is free")


@pytest.mark.mutation(FILE, '"link.port" if port is None else "--port"', '"--port"')
@pytest.mark.mutation(FILE, "        return os.strerror(error.errno)\n", "        return str(error)\n")
def test_a_busy_port_is_blamed_on_who_gave_it(refused: Refused, taken: int) -> None:
    """The config's key, or the option; and the system's words without a library's around them."""
    why = f"127.0.0.1:{taken} cannot be served on (Address already in use); nothing was started: give another, or 0"
    assert refused(f"[link]\nport = {taken}").startswith(f"link.port = {taken}: {why}")
    assert refused("", port=taken).startswith(f"--port {taken}: {why}")


@pytest.mark.mutation(FILE, '"link.host" if host is None else "--host"', '"--host"')
@pytest.mark.mutation(FILE, '.partition(" (while attempting")[0]', "")
def test_a_foreign_host_is_blamed_on_who_gave_it(refused: Refused) -> None:
    """Likewise."""
    said = "is no address of this machine (Cannot assign requested address); nothing was started: give one, such as"
    assert refused('[link]\nhost = "192.0.2.1"\nport = 0').startswith(f"link.host = 192.0.2.1: {said}")
    assert refused("[link]\nport = 0", host="192.0.2.1").startswith(f"--host 192.0.2.1: {said}")
    assert "(while" not in refused("[link]\nport = 0", host="a..b")


@pytest.mark.mutation("simulator/fleet.py", "raise CannotListen(place.port, error) from error", "raise")
def test_a_fleet_says_which_of_its_ports_is_busy(refused: Refused) -> None:
    """The key is where they begin."""
    with behind_a_free_one() as taken:
        said = refused(f"[fleet]\nunits = 3\nports = 3\n[link]\nport = {taken - 1}")
    assert said.startswith(
        f"link.port = {taken - 1}: 127.0.0.1:{taken} cannot be served on (Address already in use)"
    )


def test_a_fleet_that_goes_beyond_the_last_port_is_told_where_to_begin(refused: Refused) -> None:
    """The highest port from which on there is room."""
    said = refused("[fleet]\nunits = 10\nports = 10\n[link]\nport = 65530")
    assert said == (
        "link.port = 65530: 10 units on 10 ports from there on go beyond port 65535; nothing was started: give 65526"
        " at most, or 0 for any"
    )


@pytest.mark.mutation(FILE, "if served is not None and wanted in served.ports else", "if False else")
def test_a_busy_control_port_is_its_own_fault(refused: Refused, taken: int) -> None:
    """Its key is named, not the unit's; unless the unit itself is there, which is said."""
    said = refused(f"[link]\nport = 0\n[simulator]\ncontrol_port = {taken}")
    assert said.startswith(
        f"simulator.control_port = {taken}: 127.0.0.1:{taken} cannot be listened on (Address"
    )
    assert "unit" not in said
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = refused(f"[link]\nport = {port}\n[simulator]\ncontrol_port = {port}")
    assert said.endswith("it is a unit's own port: give another, or 0 for any")


@pytest.mark.mutation(FILE, 'if config.target.kind == "fake":', "if False:")
def test_the_fake_is_no_unit(refused: Refused) -> None:
    """It is a file; the reference device is not served in its place."""
    assert refused('[target]\nkind = "fake"\n[link]\nport = 0').startswith(
        "target.kind = 'fake': is a file, and no unit"
    )


@pytest.mark.mutation(FILE, "if given is not None:", "if False:")
def test_a_serial_line_has_neither_host_nor_port(refused: Refused) -> None:
    """An option for them is not passed over; ``--port 0`` asks for nothing."""
    text = '[link]\ntransport = "rtu"\nreply_s = 0.1\n[simulator]\nline = "/dev/no-such-line"'
    assert (
        refused(text, port=5020)
        == "--port 5020: has no meaning on a serial line (link.transport = 'rtu'); leave it out"
    )
    assert refused(text, host="0.0.0.0").startswith("--host 0.0.0.0: has no meaning")
    said = "simulator.line = /dev/no-such-line: cannot be served on (No such file or directory); nothing was started:"
    assert refused(text).startswith(said)


@pytest.mark.mutation(UNFIT, "    except PersonalityError as error:\n", "    except KeyError as error:\n")
@pytest.mark.mutation(UNFIT, "if _fits(", "if not _fits(")
@pytest.mark.mutation(FILE, "if (problem := unfit(config)) is not None:", "if False:")
def test_a_personality_that_does_not_fit_is_said_by_its_key(refused: Refused) -> None:
    """With the key that says which registers there are, and what to give instead."""
    said = refused('[simulator]\npersonality = "sma"\nmodels = "legacy"')
    assert said.startswith(
        "simulator.personality = 'sma': is about registers that simulator.models = 'legacy' has not (sma: quirk."
    )
    assert said.endswith("; say 'reference' or 'der7xx' or 'both'; nothing was started")


@pytest.mark.mutation(UNFIT, "if simulator.face is not None:", "if False:")
def test_a_personality_that_does_not_fit_a_face_names_the_face(refused: Refused, tmp_path: Path) -> None:
    """Models have nothing to do with it."""
    (tmp_path / "odd.toml").write_text(
        'name = "odd"\ntitle = "O"\nabout = "a"\nreproduces = "n"\nsources = ["s"]\n'
        '[[quirk]]\nkind = "refuse"\non = ["704.WSet"]\nanswer = 4\n',
        encoding="utf-8",
    )
    said = refused('[simulator]\npersonality = "odd.toml"\nface = "solax-gen4"')
    assert (
        "is about registers that simulator.face = 'solax-gen4' has not (odd: quirk.0.on = '704.WSet')" in said
    )
    assert "models" not in said


@pytest.mark.mutation(UNFIT, 'return f"; near it are {\', \'.join(close)}" if close else ""', 'return ""')
@pytest.mark.mutation(UNFIT, "    if enough:\n", "    if True:\n")
@pytest.mark.mutation(UNFIT, "known = list(load_profile(face).registers)", "known = []")
@pytest.mark.parametrize(
    ("on", "face", "said"),
    [
        ("704.WSett", "", "quirk.0.on = '704.WSett': there is no such register; near it are 704.WSet"),
        (
            "0xFFFF/9",
            "",
            "quirk.0.on = '0xFFFF/9': there is no such register; correct it there, or give another",
        ),
        ("rc8_mod", 'face = "solax-gen4"', "has not (own: quirk.0.on = 'rc8_mod'; near it are rc8_mode"),
    ],
)
def test_a_register_that_nobody_has_is_said_with_those_near_it(
    on: str, face: str, said: str, refused: Refused, tmp_path: Path
) -> None:
    """With the config's key, the file, and the place in it."""
    own = tmp_path / "own.toml"
    own.write_text(
        'name = "own"\ntitle = "O"\nabout = "a"\nreproduces = "n"\nsources = ["s"]\n'
        f'[[quirk]]\nkind = "refuse"\non = ["{on}"]\nanswer = 4\n',
        encoding="utf-8",
    )
    found = refused(f'[simulator]\npersonality = "own.toml"\n{face}')
    assert found.startswith(f"simulator.personality = '{own}': ")
    assert said in found


@pytest.mark.mutation(UNFIT, "    if not this_unit:\n", "    if False:\n")
def test_what_else_is_wrong_with_a_personality_is_said_as_it_is(refused: Refused, tmp_path: Path) -> None:
    """A value that the unit refuses at power-on is no matter of its registers."""
    own = tmp_path / "own.toml"
    own.write_text(
        'name = "own"\ntitle = "O"\nabout = "a"\nreproduces = "n"\nsources = ["s"]\n'
        '[[quirk]]\nkind = "start"\non = ["704.WSetMod"]\nvalue = 9\n',
        encoding="utf-8",
    )
    found = refused('[simulator]\npersonality = "own.toml"')
    assert found.startswith(
        f"simulator.personality = '{own}': own: start: 704.WSetMod = 9: the unit refuses it; give"
    )
    assert "no such register" not in found


@pytest.mark.mutation(UNFIT, "    except ValueError as error:\n", "    except KeyError as error:\n")
@pytest.mark.mutation(
    UNFIT, '"device.serial" if config.identity is None else', '"serial" if config.identity is None else'
)
def test_what_registers_cannot_hold_is_said_by_the_configs_key(refused: Refused) -> None:
    """A serial number that is too long for a face, a power that is too much with its losses."""
    long = "A" * 30
    said = refused(f'[device]\nserial = "{long}"\n[simulator]\nface = "huawei-sun2000-luna2000"')
    assert said.startswith(
        f"device.serial = '{long}': must be 1..20 ASCII characters on this unit; give another"
    )
    said = refused('[device]\npower_w_max = 28000.0\nsystem = "siemens_junelight"')
    assert said.startswith("device.power_w_max = 28000.0: and its losses must be at most 32767 W; give less")


@pytest.mark.mutation(FILE, "str(error).removeprefix(str(journal)).lstrip(", "str(error).lstrip(")
def test_a_journal_is_named_once_and_by_its_key(refused: Refused, tmp_path: Path) -> None:
    """One unit's, and one of a fleet's."""
    path = tmp_path / "HIL-0002.sqlite"
    path.write_bytes(b"no database, by any means" * 99)
    why = f"{path}: file is not a database; nothing was started: give another path"
    assert refused(f'[simulator]\njournal = "{path}"') == f"simulator.journal = {why}"
    assert refused(f'[fleet]\nunits = 2\njournals = "{tmp_path}"') == f"fleet.journals = {why}"


@pytest.mark.mutation(FILE, "OSError, sqlite3.Error) as error", "OSError) as error")
def test_a_journal_that_somebody_else_holds_is_said(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that has it locked, such as a shell in a transaction."""
    path = tmp_path / "j.sqlite"
    Journal(path).close()
    monkeypatch.setattr(journal, "_BUSY_MS", 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        said = refused(f'[simulator]\njournal = "{path}"\n[link]\nport = 0')
    assert said == f"simulator.journal = {path}: database is locked; nothing was started: give another path"
