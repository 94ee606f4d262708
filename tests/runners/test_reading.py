"""What waits in a split in small pieces is read as one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock import sources
from penstock.connectors.connector import BadRecord, Chunk, Reader, Source
from penstock.runners import reading
from penstock.runners.reading import TRIED_EVERY, Gatherer
from runtime.rig import Collect, one_task

BAD = (BadRecord(0, "not a number", "x"),)


class Pieces(Reader):
    """Numbers in pieces of these sizes, or smaller ones if fewer are asked for; then nothing, or the end."""

    def __init__(self, sizes: Sequence[int], *, bad_at: int = -1, ended: bool = False, position: int = 0) -> None:
        self.sizes, self.bad_at, self.ended, self.position = list(sizes), bad_at, ended, position
        self.polls = self.told = 0

    def poll(self, rows_max: int) -> Chunk | None:
        self.polls += 1
        if not self.sizes:
            return Chunk(None, self.position, ended=True) if self.ended else None
        count = min(self.sizes[0], rows_max)
        self.sizes[0] -= count
        bad = BAD if self.polls - 1 == self.bad_at else ()
        self.told += len(bad)
        if not self.sizes[0]:
            self.sizes.pop(0)
        self.position += count
        return Chunk(numbers(self.position - count, self.position), self.position, bad)


def read(reader: Reader, rows_max: int, within_s: float) -> Chunk | None:
    gatherer = Gatherer(reader, within_s)
    gatherer._reach = rows_max  # as if rows had been read before
    return gatherer.read(rows_max)


def numbers(start: int, stop: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, stop), pa.int64())})


def test_small_pieces_become_one_batch_with_the_position_after_the_last() -> None:
    chunk = read(Pieces([10] * 5), 1_000, 60)
    assert chunk == Chunk(numbers(0, 50), 50)


def test_pieces_are_as_the_reader_cuts_them_unless_joined() -> None:
    assert read(Pieces([10] * 5), 1_000, 0) == Chunk(numbers(0, 10), 10)


def test_a_piece_that_would_not_fit_is_not_asked_for() -> None:
    reader = Pieces([10] * 5)
    assert read(reader, 35, 60) == Chunk(numbers(0, 30), 30)
    assert reader.polls == 3
    reader = Pieces([100] * 5)
    assert read(reader, 100, 60) == Chunk(numbers(0, 100), 100)
    assert reader.polls == 1


def test_what_came_in_the_meantime_is_the_last_piece() -> None:
    reader = Pieces([250, 5, 5, 5])
    assert read(reader, 1_000, 60) == Chunk(numbers(0, 255), 255)
    assert reader.polls == 2


def test_reads_grow_from_one_to_the_next() -> None:
    gatherer = Gatherer(Pieces([10] * 1_000), 60)
    reads = [gatherer.read(1_000) for _ in range(6)]
    assert [chunk.batch.num_rows for chunk in reads if chunk is not None and chunk.batch is not None] == [
        10,
        40,
        160,
        640,
        1_000,
        1_000,
    ]


def test_a_split_that_had_no_more_is_seldom_asked_again() -> None:
    reader = Pieces([])
    gatherer = Gatherer(reader, 60)
    for reads in range(1, 2 * TRIED_EVERY + 2):
        reader.sizes = [10]
        chunk = gatherer.read(1_000)
        assert chunk is not None
        assert chunk.position == 10 * reads
    assert reader.polls == 2 * TRIED_EVERY + 1 + 2, "all reads, and twice more to see"
    reader.sizes = [10] * 100
    rows = [chunk.batch.num_rows for _ in range(4) if (chunk := gatherer.read(1_000)) is not None and chunk.batch is not None]
    assert rows == [40, 160, 640, 160], "it is behind again"


def test_bad_records_are_told_with_the_piece_they_are_of() -> None:
    assert read(Pieces([10] * 5, bad_at=0), 1_000, 60) == Chunk(numbers(0, 10), 10, BAD)
    assert read(Pieces([10] * 5, bad_at=2), 1_000, 60) == Chunk(numbers(0, 30), 30, BAD)


def test_the_end_is_told_with_the_last_rows() -> None:
    assert read(Pieces([10, 10], ended=True), 1_000, 60) == Chunk(numbers(0, 20), 20, ended=True)
    assert read(Pieces([10], ended=True), 1_000, 60) == Chunk(numbers(0, 10), 10, ended=True)
    assert read(Pieces([], ended=True), 1_000, 60) == Chunk(None, 0, ended=True)
    assert read(Pieces([]), 1_000, 60) is None


def test_what_takes_as_long_as_rows_may_wait_is_not_waited_for() -> None:
    reader = Pieces([10] * 5)
    assert read(reader, 1_000, 1e-9) == Chunk(numbers(0, 10), 10)
    assert reader.polls == 1


def test_pieces_of_many_bytes_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "JOINED_BYTES_MAX", 80)  # ten numbers
    assert read(Pieces([10] * 5), 1_000, 60) == Chunk(numbers(0, 20), 20)


def test_texts_of_several_dictionaries_are_joined() -> None:
    class Texts(Reader):
        def __init__(self) -> None:
            self.texts = [["a", "b"], ["c", "a"]]

        def poll(self, rows_max: int) -> Chunk | None:
            return (
                Chunk(pa.record_batch({"t": pa.array(self.texts.pop(0)).dictionary_encode()}), len(self.texts))
                if self.texts
                else None
            )

    chunk = read(Texts(), 1_000, 60)
    assert chunk is not None
    assert chunk.batch is not None
    assert chunk.batch.column("t").to_pylist() == ["a", "b", "c", "a"]


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 60), st.integers(-1, 12), st.booleans())
def test_no_row_is_lost_or_read_twice(sizes: list[int], rows_max: int, bad_at: int, ended: bool) -> None:
    reader = Pieces(sizes, bad_at=bad_at, ended=ended)
    gatherer = Gatherer(reader, 60)
    seen: list[int] = []
    bad = 0
    while (chunk := gatherer.read(rows_max)) is not None:
        rows = [] if chunk.batch is None else chunk.batch.column("n").to_pylist()
        assert len(rows) <= rows_max
        seen += rows
        bad += len(chunk.bad)
        assert chunk.position == len(seen)
        if chunk.ended:
            break
    assert seen == list(range(sum(sizes)))
    assert bad == reader.told


def test_batches_are_as_readers_cut_them_where_that_matters() -> None:
    rows = [{"k": "a", "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}]
    schema = "k string, at timestamp"

    def joins(source: Source, **watermark: str) -> bool:
        p = pen.Pipeline("p")
        stream = p.read(source)
        (stream.with_watermark("at", **watermark) if watermark else stream).write(Collect())
        return one_task(p.plan(), 0).joins(source.name)

    lines = sources.generate(lambda n: {"k": "a"}, schema=schema, rows=1)
    assert joins(lines)
    assert joins(lines, delay="0s")
    assert not joins(lines, punctuated="at"), "what a row says of time counts from the next read on"
    assert not joins(sources.memory(rows, schema=schema, batch=1)), "one row at a time, as was said"
