"""What a personality says of itself is what a client sees: each clause of each text, on the wire, on its own map.

The claims have the clauses of every ``about``, and what shows each. A text that says more than is shown here fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from simulator.personality import load, shipped
from tests.simulator import claims_a_to_k, claims_faces, claims_l_to_z
from tests.simulator.claimkit import Seen
from tests.simulator.claims_common import GREETS_LATE, Claim

FILES = "simulator/personalities"
QUIRKS = "simulator/quirks/quirky.py"
CLAIMS = {**claims_a_to_k.CLAIMS, **claims_l_to_z.CLAIMS, **claims_faces.CLAIMS}


def clauses(name: str) -> list[str]:
    """What a personality says of itself, piece by piece."""
    return [
        c for c in re.split(r"[;:.]\s", " ".join(load(name).about.split()).rstrip(".") + " ") if c.strip()
    ]


@pytest.mark.parametrize("name", shipped())
def test_every_clause_has_something_that_shows_it(name: str) -> None:
    """And nothing is shown that is not said."""
    assert [clause.strip() for clause in clauses(name)] == list(CLAIMS[name])


def test_only_what_ships_is_shown() -> None:
    """One entry for each."""
    assert set(CLAIMS) == set(shipped())


@pytest.fixture
def seen(serve: Callable[..., int]) -> Iterator[Callable[[str, Claim], Seen]]:
    made: list[Seen] = []

    def make(name: str, claim: Claim) -> Seen:
        made.append(Seen(name, serve, house=name == "deye_slots", greets_late=claim in GREETS_LATE))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.mutation(f"{FILES}/solaredge_single_session.toml", 'models = "der7xx"\n', "")
@pytest.mark.mutation(
    f"{FILES}/exchanged.toml",
    'on = ["1.Vr"]\nunless = { register = "64900.Boot", values = [1] }',
    'on = ["1.Vr"]',
)
@pytest.mark.mutation(f"{FILES}/givenergy_frozen.toml", "after_s = 600.0", "after_s = 700.0")
@pytest.mark.mutation(f"{FILES}/marstek_drops.toml", 'answer = "close"', 'answer = "silence"')
@pytest.mark.mutation(f"{FILES}/foxess_late.toml", "visible_after_s = 5.0", "visible_after_s = 4.0")
@pytest.mark.mutation(f"{FILES}/acknowledges.toml", "answer = 5", "answer = 6")
@pytest.mark.mutation(
    f"{FILES}/sofar_returns.toml",
    'into = ["704.WSetEnaRvrt", "704.WSetRvrt"]',
    'into = ["704.WSetRvrt", "704.WSetRvrt"]',
)
@pytest.mark.mutation(
    QUIRKS,
    '            if isinstance(live.rule, Shows) and live.rule.what == "frozen" and not live.held:\n',
    "            if False:\n",
)
@pytest.mark.parametrize("name", shipped())
def test_what_it_says_is_what_a_client_sees(name: str, seen: Callable[[str, Claim], Seen]) -> None:
    """Each clause on a unit of its own, which was never used before."""
    for clause, claim in CLAIMS[name].items():
        assert claim(seen(name, claim)), clause
