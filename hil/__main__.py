"""``python -m hil`` is ``hil``."""

from hil.cli import main

if __name__ == "__main__":
    main()
