"""Generated rows: pure functions of their number, at a rate or flat out."""

from __future__ import annotations

import functools
import pickle
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import sources
from penstock.connectors.adevents import AD_EVENT, ad_events, campaign_of, campaigns
from penstock.errors import ConfigError, FunctionError, RowError
from penstock.tracebacks import users_frames

from .reading import check_resume, context, read, read_all


def numbers(index: np.ndarray[Any, Any], seed: int) -> dict[str, Any]:
    return {"n": index, "twice": index * 2 + seed, "text": [f"row {number}" for number in index]}


SCHEMA = "n bigint not null, twice bigint, text string"


@given(rows=st.integers(0, 40), splits=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_the_splits_hold_each_row_number_once(rows: int, splits: int) -> None:
    source = sources.generate(numbers, schema=SCHEMA, rows=rows, splits=splits, seed=7)
    seen = read_all(source)
    assert sorted(row["n"] for row in seen.rows) == list(range(rows))
    assert all(row["twice"] == row["n"] * 2 + 7 for row in seen.rows)


@given(rows_max=st.integers(1, 12), again_max=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_resuming_after_any_chunk_gives_the_same_rows(rows_max: int, again_max: int) -> None:
    check_resume(sources.generate(numbers, schema=SCHEMA, rows=31, splits=3), rows_max=rows_max, again_max=again_max)


def test_without_a_number_of_rows_there_is_no_end() -> None:
    source = sources.generate(numbers, schema=SCHEMA)
    assert not source.bounded
    reader = source.open("1", 10**9, context(source))
    chunk = reader.poll(3)
    assert chunk is not None
    assert chunk.batch is not None
    assert chunk.batch["n"].to_pylist() == [2 * 10**9 + 1, 2 * 10**9 + 3, 2 * 10**9 + 5]
    assert not chunk.ended


def test_a_source_that_has_fewer_rows_than_were_read_before_has_ended() -> None:
    source = sources.generate(numbers, schema=SCHEMA, rows=10, splits=1)
    chunk = source.open("0", 50, context(source)).poll(3)
    assert chunk is not None
    assert chunk.ended
    assert chunk.position == 50


def test_a_rate_gives_what_is_due_and_never_blocks() -> None:
    source = sources.generate(numbers, schema=SCHEMA, rate=1_000, splits=2)
    reader = source.open("0", 500, context(source))
    started = time.monotonic()
    got = 0
    empty = 0
    while time.monotonic() - started < 0.2:
        chunk = reader.poll(1_000)
        empty += chunk is None
        got += chunk.batch.num_rows if chunk is not None and chunk.batch is not None else 0
    assert empty > 0
    # Half of the rate, since there are two splits; and nothing for the 500 rows before.
    assert 60 <= got <= 110


def test_a_source_travels_to_tasks() -> None:
    source = sources.generate(numbers, schema=SCHEMA, rows=10)
    assert read_all(pickle.loads(pickle.dumps(source))).rows == read_all(source).rows


def test_what_make_gives_must_fit_the_schema() -> None:
    def missing(index: np.ndarray[Any, Any], seed: int) -> dict[str, Any]:
        return {"m": index}

    def short(index: np.ndarray[Any, Any], seed: int) -> dict[str, Any]:
        return {"n": index[1:]}

    def nulls(index: np.ndarray[Any, Any], seed: int) -> dict[str, Any]:
        return {"n": pa.nulls(len(index), pa.int64())}

    for make, message in [(missing, "no column 'n', but m"), (short, "values for 5 rows"), (nulls, "gave nulls")]:
        with pytest.raises(ConfigError, match=message):
            read(sources.generate(make, schema="n bigint not null", rows=10))


def test_only_the_columns_in_use_are_computed() -> None:
    asked: list[tuple[str, ...]] = []

    def make(index: np.ndarray[Any, Any], seed: int, columns: tuple[str, ...]) -> dict[str, Any]:
        asked.append(columns)
        return {"n": index}

    source = sources.generate(make, schema=SCHEMA, rows=4, splits=1)
    assert read(source, columns=("n",)).rows == [{"n": number} for number in range(4)]
    assert asked == [("n",)]


def test_counting_needs_no_column_at_all() -> None:
    source = sources.generate(numbers, schema=SCHEMA, rows=9, splits=1)
    chunk = source.open("0", None, context(source, columns=())).poll(100)
    assert chunk is not None
    assert chunk.batch is not None
    assert (chunk.batch.num_rows, chunk.batch.num_columns) == (9, 0)


def test_ad_events_are_a_function_of_their_number() -> None:
    index = np.arange(10_000)
    whole = pa.table(ad_events(index, 1))
    shuffled = np.random.default_rng(0).permutation(index)
    apart = pa.table(ad_events(shuffled, 1))
    assert apart.equals(whole.take(pa.array(shuffled)))
    assert whole.schema.names == AD_EVENT.names
    assert not pa.table(ad_events(index, 2)).equals(whole)


def test_ad_events_have_the_benchmarks_shape() -> None:
    events = pa.table(ad_events(np.arange(60_000), 0))
    assert len(events["ad_id"].unique()) == 1_000
    assert len({campaign_of(ad) for ad in events["ad_id"].unique().to_pylist()}) == 100
    kinds = {each["values"]: each["counts"] for each in events["event_type"].value_counts().to_pylist()}
    assert set(kinds) == {"view", "click", "purchase"}
    assert all(19_000 < count < 21_000 for count in kinds.values())
    at = events["at"].cast(pa.int64()).to_numpy()
    assert (np.diff(at) >= 0).all()
    assert at[-1] - at[0] == (60_000 - 1) * 10
    assert campaigns().num_rows == 1_000


def test_disorder_is_bounded() -> None:
    make = functools.partial(ad_events, disorder_ms=5)
    straight = ad_events(np.arange(5_000), 0, ["at"])["at"].cast(pa.int64()).to_numpy()
    moved = make(np.arange(5_000), 0, ["at"])["at"].cast(pa.int64()).to_numpy()
    assert ((straight - moved >= 0) & (straight - moved <= 5_000)).all()
    assert (np.diff(moved) < 0).any()
    check_resume(sources.generate(make, schema=AD_EVENT, rows=50), rows_max=7, again_max=9)


def parity(n: int) -> dict[str, Any]:
    return {"n": n, "twice": n * 2 if n % 2 else None, "text": "odd" if n % 2 else "even"}


def seeded(n: int, seed: int) -> dict[str, Any]:
    return {"n": n + seed}


@pytest.mark.parametrize("make", [parity, lambda n: parity(n), functools.partial(parity)])
def test_a_function_of_one_number_makes_a_row_at_a_time(make: Any) -> None:
    source = sources.generate(make, schema=SCHEMA, rows=7, splits=2)
    assert sorted(read_all(source).rows, key=lambda row: row["n"]) == [parity(n) for n in range(7)]
    check_resume(source, rows_max=2, again_max=3)
    assert read(source, columns=("text",)).rows == [{"text": parity(n)["text"]} for n in (0, 2, 4, 6)]


def test_a_function_that_says_int_gets_numbers_also_with_a_seed() -> None:
    assert read(sources.generate(seeded, schema="n bigint", rows=2, splits=1, seed=5)).rows == [{"n": 5}, {"n": 6}]


def test_an_array_is_given_to_a_function_that_takes_nothing_else_if_it_says_so() -> None:
    def make(index: np.ndarray[Any, Any]) -> dict[str, Any]:
        return {"n": index + 1}

    assert read(sources.generate(make, schema="n bigint", rows=2, splits=1)).rows == [{"n": 1}, {"n": 2}]


def test_a_row_that_does_not_fit_is_named_by_its_number() -> None:
    def make(n: int) -> dict[str, Any]:
        return {"n": n if n < 5 else "many"}

    with pytest.raises(RowError, match="source 'generate', row 6: n: expected bigint, and found str"):
        read(sources.generate(make, schema="n bigint", rows=10))


@pytest.mark.parametrize(
    "value", ["click", "sixes!", b"click", bytearray(6), 5, None, np.int64(5), np.array(5), pa.scalar(5), {"a": 1}]
)
def test_one_value_is_not_taken_for_a_column(value: Any) -> None:
    """Text had been spelled out: six rows had got a letter each."""
    source = sources.generate(lambda index, seed: {"kind": value}, schema="kind string", rows=6, splits=1)
    with pytest.raises(ConfigError, match=r"6 numbers, and gave one value as column 'kind': .* 6 values") as caught:
        read(source)
    assert caught.value.fix is not None


def test_whatever_holds_a_value_for_each_row_is_a_column() -> None:
    whole = [0, 1, 2]
    for values in (whole, tuple(whole), np.arange(3), pa.array(whole), pa.chunked_array([[0], [1, 2]]), range(3), iter(whole)):
        made = {"n": values}
        assert read(sources.generate(lambda i, seed, made=made: made, schema="n bigint", rows=3, splits=1)).rows == [  # type: ignore[misc]
            {"n": n} for n in whole
        ]


@pytest.mark.parametrize(
    ("make", "raised"),
    [
        (lambda n, seed: {"n": n.bit_length()}, AttributeError),
        (lambda n, seed: {"n": [0][n[5]]}, IndexError),
        (lambda n, seed: {"n": 1 // 0}, ZeroDivisionError),
    ],
)
def test_a_function_that_fails_on_an_array_is_told_what_it_got(make: Any, raised: type[Exception]) -> None:
    with pytest.raises(FunctionError, match=f"called with an array of 3 numbers, and raised {raised.__name__}: ") as caught:
        read(sources.generate(make, schema="n bigint", rows=3, splits=1))
    assert caught.value.fix is not None
    assert caught.value.__cause__ is not None
    assert users_frames(caught.value.__cause__)[-1].function == "<lambda>"


def test_a_function_that_asks_for_an_array_fails_as_it_does() -> None:
    def make(index: np.ndarray[Any, Any], seed: int) -> dict[str, Any]:
        raise ConnectionError("later")

    with pytest.raises(ConnectionError, match="later"):
        read(sources.generate(make, schema="n bigint", rows=3))


def test_a_default_bound_in_a_loop_is_not_taken_for_the_seed() -> None:
    """It had been the seed, which is 0: the rows were all 0."""
    many = [sources.generate(lambda n, k=k: {"n": n * k}, schema="n bigint", rows=3, splits=1) for k in (2, 3)]  # type: ignore[misc]
    assert [[row["n"] for row in read(source).rows] for source in many] == [[0, 2, 4], [0, 3, 6]]


def scaled(index: Any, scale: int, seed: int) -> dict[str, Any]:
    return {"n": index * scale + seed}


@pytest.mark.parametrize(
    "make",
    [
        lambda index, scale=2, seed=0: scaled(index, scale, seed),
        lambda index, *, seed: scaled(index, 2, seed),
        lambda index, columns, seed: scaled(index, 2, seed),
        lambda index, salt: scaled(index, 2, salt),
        lambda *given: scaled(given[0], 2, given[1]),
        functools.partial(scaled, scale=2),
    ],
)
def test_the_seed_goes_to_the_parameter_of_its_name_or_else_to_the_second(make: Any) -> None:
    assert read(sources.generate(make, schema="n bigint", rows=3, splits=1, seed=5)).rows == [{"n": 5}, {"n": 7}, {"n": 9}]
