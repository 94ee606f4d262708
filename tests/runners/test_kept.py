"""Readers that stay open between epochs: found again at their position, and closed when nobody can come for them any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.connectors.connector import Began, Chunk, Reader
from penstock.protocol.messages import Stamp
from penstock.runners.spark.kept import KeptReaders

NOW, LATER = Stamp("line", 1, 1), Stamp("line", 1, 2)
BEGAN = Began(0, None)


class Noted(Reader):
    def __init__(self) -> None:
        self.closed = 0

    def poll(self, rows_max: int) -> Chunk | None:
        return None

    def close(self) -> None:
        self.closed += 1


def within(true: Callable[[], bool], seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


@pytest.mark.parametrize(("left", "asked"), [(7, 7), (None, None), ((1, "a"), [1, "a"]), ({"a": 1, "b": 2}, {"b": 2, "a": 1})])
def test_a_reader_is_found_at_its_position_as_a_checkpoint_has_it(left: Any, asked: Any) -> None:
    kept, reader = KeptReaders(), Noted()
    kept.keep(NOW, "source", "0", left, reader, BEGAN, lives=lambda: True)
    assert kept.take(NOW, "source", "0", asked) == (reader, BEGAN)
    assert kept.take(NOW, "source", "0", asked) is None, "it has been taken"
    assert not reader.closed


def test_a_reader_that_stands_elsewhere_is_closed_and_not_used() -> None:
    kept, reader = KeptReaders(), Noted()
    kept.keep(NOW, "source", "0", 400, reader, BEGAN, lives=lambda: True)
    assert kept.take(NOW, "source", "0", 200) is None
    assert reader.closed == 1


def test_two_attempts_two_splits_and_two_sources_never_share_a_reader() -> None:
    kept, reader = KeptReaders(), Noted()
    kept.keep(NOW, "source", "0", 7, reader, BEGAN, lives=lambda: True)
    assert kept.take(LATER, "source", "0", 7) is None
    assert kept.take(NOW, "source", "1", 7) is None
    assert kept.take(NOW, "other", "0", 7) is None
    assert not reader.closed
    assert len(kept) == 1


def test_a_reader_is_closed_when_its_attempt_is_over() -> None:
    kept, over, going = KeptReaders(look_s=0.02), Noted(), Noted()
    lives = [True]
    kept.keep(NOW, "source", "0", 7, over, BEGAN, lives=lambda: lives[0])
    kept.keep(LATER, "source", "0", 7, going, BEGAN, lives=lambda: True)
    time.sleep(0.1)
    assert not over.closed
    lives[0] = False
    within(lambda: over.closed == 1)
    assert not going.closed


def test_a_reader_for_which_nobody_comes_is_closed_and_the_thread_ends_with_the_last_one() -> None:
    kept, reader = KeptReaders(lease_s=0.1, look_s=0.02), Noted()
    for _ in range(2):
        kept.keep(NOW, "source", "0", 7, reader, BEGAN, lives=lambda: True)
        within(lambda: not len(kept) and not kept._looks)
    assert reader.closed == 2


def test_a_reader_that_cannot_be_closed_keeps_no_other_one_open() -> None:
    class Stuck(Noted):
        def close(self) -> None:
            raise ConnectionError("the other side is away")

    kept, reader = KeptReaders(lease_s=0.1, look_s=0.02), Noted()
    kept.keep(NOW, "source", "0", 7, Stuck(), BEGAN, lives=lambda: True)
    kept.keep(NOW, "source", "1", 7, reader, BEGAN, lives=lambda: True)
    within(lambda: reader.closed == 1)
