"""What the bench guide shows is what a rehearsal prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.readmekit import block, matrix

DOCUMENT = Path("docs/bench.md")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_table_is_what_the_command_prints(tmp_path: Path) -> None:
    """The whole restart suite, two workers, rehearsed: 40 rows pass, and the energies are the bench's own."""
    text = DOCUMENT.read_text(encoding="utf-8")
    command = "hil run configs/bench-tcp.toml --rehearse --worker volatile --worker durable"
    assert f"`{command}`" in text
    argv = [sys.executable, "-m", *command.split(), "--out", str(tmp_path / "run")]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr
    assert matrix(ran.stdout) == block(text, "bench")
