"""Numbers read eight digits at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.digits import DIGITS_MAX, DIGITS_MIN, numbers
from penstock.connectors.linemarks import Pieces


def pieces(texts: list[bytes]) -> Pieces:
    return np.frombuffer(b"".join(texts), np.dtype((np.void, len(texts[0]))))


def of_one_length(digits: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(10 ** (digits - 1), 10**digits - 1), min_size=1, max_size=20)


@given(st.integers(DIGITS_MIN, DIGITS_MAX).flatmap(of_one_length))
@settings(max_examples=200, deadline=None)
def test_numbers_are_what_python_makes_of_them(values: list[int]) -> None:
    found = numbers(pieces([str(value).encode() for value in values]))
    assert found is not None
    assert found.tolist() == values


@pytest.mark.parametrize("digits", range(DIGITS_MIN, DIGITS_MAX + 1))
def test_one_byte_that_is_no_digit_and_there_are_no_numbers(digits: int) -> None:
    good = b"1234567890123456789"[:digits]
    assert numbers(pieces([good, good])) is not None
    for at in range(digits):
        for byte in {*range(256)} - {*b"0123456789"}:
            bad = good[:at] + bytes([byte]) + good[at + 1 :]
            assert numbers(pieces([good, bad])) is None
            assert numbers(pieces([bad, bad])) is None


@pytest.mark.parametrize("texts", [[b"01234567"], [b"12345678", b"01234567"], [b"1234567"], [b"1234567890123456789"]])
def test_a_zero_first_and_other_lengths_are_left_to_others(texts: list[bytes]) -> None:
    assert numbers(pieces(texts)) is None
