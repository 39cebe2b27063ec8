"""``python -m hil`` is ``hil``."""

from __future__ import annotations

import sys


def main() -> None:
    """Start the command line; Ctrl-C while it is still being imported is an abort, too."""
    try:
        from hil.cli import main as start
    except KeyboardInterrupt:
        print("hil: stopped; nothing was started", file=sys.stderr)
        sys.exit(130)
    start()


if __name__ == "__main__":
    main()
