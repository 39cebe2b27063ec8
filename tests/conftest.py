"""What every test relies on."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGES = ("ledger", "adapters", "simulator", "hil")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuse to test anything but the packages of this tree.

    Another distribution may own one of the names, and a wheel of ours may be installed beside the tree; then
    green tests would say nothing about the code that one looks at.
    """
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        if "xdist" not in sys.modules or "PYTEST_XDIST_WORKER" in os.environ:
            del os.environ[name]  # what a test starts is not measured
    root = Path(session.config.rootpath).resolve()
    for name in PACKAGES:
        spec = find_spec(name)
        origin = spec.origin if spec else None
        if origin is None or not Path(origin).resolve().is_relative_to(root / name):
            pytest.exit(
                f"`import {name}` would import {origin or 'nothing'}, not {root / name}", returncode=3
            )
