"""The fixes of `penstock.policy`."""

from __future__ import annotations

import pytest

import penstock as pen
from fixes.applying import argument, code_of, evaluate, shown


def test_a_number_of_attempts_can_be_copied_from_the_fix() -> None:
    (code,) = code_of(shown("retry.attempts", lambda: pen.retry(0)))
    assert evaluate(code) == pen.retry(3)


def test_a_negative_delay_is_proposed_without_its_sign() -> None:
    (delay,) = argument(shown("retry.delay", lambda: pen.retry(2, delay="-3s")))
    assert pen.retry(2, delay=delay).delay == 3_000_000


@pytest.mark.parametrize("on_error", ["dead_letter", None, 3])
def test_each_of_the_words_for_on_error_is_taken(on_error: object) -> None:
    words = argument(shown("retry.then", lambda: pen.Pipeline("p", on_error=on_error)))  # type: ignore[arg-type]
    assert len(words) == 3
    for word in words:
        pen.Pipeline("p", on_error=word)
