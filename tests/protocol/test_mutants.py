"""Test the test: the explorer finds every known way to break the protocol."""

from __future__ import annotations

import pytest
from mutants import DEEP, MUTANTS, Mutant

from penstock.testing.explorer import explore


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_explorer_catches_a_mutant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    report = explore(mutant.applied(monkeypatch), deep=mutant.name in DEEP)
    assert report.found is not None, f"{mutant.name} ({mutant.why}) went unnoticed: {report}"
    assert report.found.invariant == mutant.caught, str(report.found)
