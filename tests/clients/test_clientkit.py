"""What happens where a client cannot be had: the test is skipped, says why, and fails only where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients import clientkit


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cache of this test's own, and a client that nobody has heard of."""
    pins = tmp_path / "nobodys-client.txt"
    pins.write_text("# MIT. Python 3.11 or newer.\nno-such-client==1.0\n", encoding="utf-8")
    monkeypatch.setattr(clientkit, "requirements", lambda _: pins)
    monkeypatch.setattr(clientkit, "CACHE", tmp_path / "cache")
    clientkit._client.cache_clear()
    yield
    clientkit._client.cache_clear()


@pytest.mark.parametrize(
    ("required", "outcome"), [(False, pytest.skip.Exception), (True, pytest.fail.Exception)]
)
def test_without_a_python_that_is_new_enough_it_says_which_is_wanted(
    required: bool, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skipped, or failed with HIL_CLIENTS=require; in both cases with the version."""
    monkeypatch.setattr(clientkit, "REQUIRED", required)
    monkeypatch.setattr(clientkit, "_base_python", lambda _: None)
    with pytest.raises(outcome, match=r"nobodys-client: needs Python 3\.11 or newer"):
        clientkit.client("nobodys-client")


def test_what_cannot_be_installed_is_skipped_with_what_the_installer_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last line; and git is told to look away from the cache."""
    monkeypatch.setattr(clientkit, "REQUIRED", False)
    monkeypatch.setattr(clientkit, "_base_python", lambda _: "/bin/false")
    with pytest.raises(pytest.skip.Exception, match="could not be installed"):
        clientkit.client("nobodys-client")
    assert (clientkit.CACHE / ".gitignore").read_text(encoding="utf-8") == "*\n"


def test_a_python_that_does_not_run_is_not_taken(tmp_path: Path) -> None:
    """pyenv leaves names on PATH for versions that it would not start."""
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 12 /somewhere\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    assert clientkit._asked(str(shim), 12) is None
