"""Files that are found by path or by name: profiles and personalities, with the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.profile import PROFILE_BYTES_MAX, ProfileError, load_profile
from ledger.errors import HilError
from simulator.personality import BYTES_MAX, PersonalityError, load

FILE = "adapters/shipped.py"
KINDS = pytest.mark.parametrize(
    ("load", "error", "kind", "bytes_max"),
    [
        (load_profile, ProfileError, "profile", PROFILE_BYTES_MAX),
        (load, PersonalityError, "personality", BYTES_MAX),
    ],
)


@KINDS
@pytest.mark.mutation(FILE, "if source not in self.names():", "if False:")
@pytest.mark.mutation(FILE, "if path.stat().st_size > self.bytes_max:", "if False:")
@pytest.mark.mutation(FILE, "except tomllib.TOMLDecodeError as error:", "except KeyError as error:")
@pytest.mark.mutation(FILE, "except (OSError, UnicodeDecodeError) as error:", "except KeyError as error:")
def test_both_kinds_are_refused_in_the_same_words(
    load: Callable[[Any], Any], error: type[HilError], kind: str, bytes_max: int, tmp_path: Path
) -> None:
    """No such name, no such file, no text, far too long, no TOML."""
    long, binary, wrong = (tmp_path / f"{name}.toml" for name in ("long", "binary", "wrong"))
    long.write_text("#" * (bytes_max + 1), encoding="utf-8")
    binary.write_bytes(b"\xff\xfe")
    wrong.write_text("= 1", encoding="utf-8")
    missing = f"there is no such {kind}; give the path of a .toml file, or a name from 'hil list'"
    said = {
        "nobody": f"{kind} = 'nobody': {missing}",
        str(
            tmp_path / "none.toml"
        ): "none.toml: cannot be read (No such file or directory); give a readable TOML",
        str(binary): "binary.toml: cannot be read ('utf-8' codec can't decode byte 0xff",
        str(long): f"long.toml: is longer than {bytes_max:,} bytes; give a {kind}",
        str(wrong): "wrong.toml: is not TOML: ",
    }
    for name, words in said.items():
        with pytest.raises(error) as caught:
            load(name)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("load", "name"), [(load_profile, "solax-gen4"), (load, "amnesiac")])
@pytest.mark.mutation(FILE, "if source.endswith(SUFFIX):", "if False:")
def test_a_name_and_the_path_of_its_file_are_the_same(load: Callable[[Any], Any], name: str) -> None:
    """Whether one says the one or the other, as text or as a path."""
    (path,) = Path().glob(f"*/*/{name}.toml")
    assert load(name) == load(str(path)) == load(path)


def test_who_misspells_a_name_sees_the_nearest() -> None:
    """And nobody reads a list of thirty."""
    with pytest.raises(PersonalityError, match=r"'hil list', such as fronius124$"):
        load("fronius_124")
