"""The registry of production mutants can be tried as it stands; trying it is ``make registry``."""

from __future__ import annotations

import pytest

from tests.production_mutants import ROOT, Dropped, load

REGISTRY = load(ROOT)


@pytest.mark.parametrize("dropped", REGISTRY, ids=lambda dropped: dropped.name)
def test_each_entry_can_be_tried(dropped: Dropped) -> None:
    """Its text stands once in its file, and the tests that it names are there."""
    assert dropped.fault(ROOT) is None
    for test in dropped.tests:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), test
    assert list(dropped.tests) == sorted(set(dropped.tests))


def test_no_name_is_given_twice() -> None:
    """A name is how a mutant is asked for."""
    names = [dropped.name for dropped in REGISTRY]
    assert sorted(names) == sorted(set(names))
