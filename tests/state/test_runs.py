"""Runs: what is written is what is read, whatever happens to the bytes, and searching finds exactly what is there."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from files_in_memory import FilesInMemory
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptError
from penstock.state import runfile
from penstock.state import runs as runs_module
from penstock.state.keygroups import hash_keys
from penstock.state.runfile import Handle, checksum, encode_run, forget_validated, order_of, run_schema
from penstock.state.runs import Run, find, merge_runs, open_run
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

KEYS = pa.schema([("k", pa.string())])
VALUES = pa.schema([("v", pa.int64())])
SCHEMA = run_schema(KEYS, VALUES)
Row = tuple[int, int, str | None, int, int | None]


@pytest.fixture(autouse=True)
def _check_files_again() -> None:
    forget_validated()


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    """Rows of (group, hash, key, op, value)."""
    rows = sorted(rows, key=lambda row: row[:2])
    columns = list(zip(*rows)) if rows else [()] * 5
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, SCHEMA)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def handle_of(data: pa.Buffer, batch: pa.RecordBatch, path: str = "state/a.arrow") -> Handle:
    groups = batch.column(0).to_pylist()
    return Handle(path, "run", min(groups), max(groups), batch.num_rows, data.size, checksum(data))


SMALL = batch_of([(0, 5, "a", 1, 10), (0, 5, "b", 1, None), (1, 2, None, 0, None), (3, 9, "héé", 1, -1)])


def stored(batch: pa.RecordBatch = SMALL, version: bytes = b"1") -> tuple[Handle, FilesInMemory]:
    files = FilesInMemory()
    files.write("state/a.arrow", *encode_run(batch, {b"penstock.run": version}))
    return handle_of(files.open("state/a.arrow"), batch), files


def test_a_run_reads_back_as_it_was_written() -> None:
    handle, files = stored()
    assert open_run(handle, files, SCHEMA).batch.equals(SMALL)


def test_rows_of_a_file_that_nobody_searches_stay_in_their_order_and_are_sorted_by_whoever_opens_it() -> None:
    rows = SMALL.take(pa.array([3, 1, 0, 2]))
    files, run = FilesInMemory(), Run.unsorted(rows)
    files.write("state/a.arrow", *run.encoded(searched=False))
    assert pa.ipc.open_file(files.open("state/a.arrow")).get_batch(0).to_pylist() == rows.to_pylist()
    handle = handle_of(files.open("state/a.arrow"), rows)
    for found in (open_run(handle, files, SCHEMA), run.written(handle, files, SCHEMA, searched=False), run):
        assert found.batch.column(1).to_pylist() == [5, 5, 2, 9]
        assert sorted(map(str, found.batch.to_pylist())) == sorted(map(str, SMALL.to_pylist()))
        assert found.batch.schema.metadata == SCHEMA.metadata


def test_a_file_that_is_searched_or_too_large_to_be_held_in_memory_is_written_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_hash(searched: bool) -> int:
        data = b"".join(
            memoryview(piece) for piece in Run.unsorted(SMALL.take(pa.array([3, 1, 0, 2]))).encoded(searched=searched)
        )
        return int(pa.ipc.open_file(data).get_batch(0).column(1)[0].as_py())

    assert (first_hash(searched=False), first_hash(searched=True)) == (9, 5)
    monkeypatch.setattr(runs_module, "UNSORTED_BYTES_MAX", 10)
    assert first_hash(searched=False) == 5


def test_a_run_lets_go_of_its_rows_and_reads_them_again() -> None:
    handle, files = stored()
    run = open_run(handle, files, SCHEMA)
    assert run.hashes.tolist() == [5, 5, 2, 9]
    run.let_go()
    assert run.batch.equals(SMALL)
    assert run.hashes.tolist() == [5, 5, 2, 9]


def test_a_slice_is_written_without_the_rest() -> None:
    handle, files = stored(SMALL.slice(1, 2))
    assert open_run(handle, files, SCHEMA).batch.to_pylist() == SMALL.to_pylist()[1:3]


def test_every_flipped_byte_is_noticed() -> None:
    handle, files = stored()
    data = files.contents[handle.path].to_pybytes()
    for at in range(len(data)):
        files.contents[handle.path] = pa.py_buffer(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(CorruptError, match=r"state/a\.arrow"):
            open_run(handle, files, SCHEMA)


def test_every_truncation_and_an_extra_byte_are_noticed() -> None:
    handle, files = stored()
    data = files.contents[handle.path].to_pybytes()
    for cut in [*(data[:length] for length in range(len(data))), data + b"\0"]:
        files.contents[handle.path] = pa.py_buffer(cut)
        with pytest.raises(CorruptError, match=r"state/a\.arrow"):
            open_run(handle, files, SCHEMA)


def test_a_truncated_file_is_noticed_even_if_it_was_checked_before() -> None:
    handle, files = stored()
    open_run(handle, files, SCHEMA)
    files.contents[handle.path] = files.contents[handle.path].slice(0, 100)
    with pytest.raises(CorruptError, match="100 bytes"):
        open_run(handle, files, SCHEMA)


def test_a_file_is_checked_once() -> None:
    handle, files = stored()
    open_run(handle, files, SCHEMA)
    before = dict(runfile._validated)
    open_run(handle, files, SCHEMA)
    assert list(runfile._validated) == list(before) == [(handle.path, handle.checksum)]


def test_the_memory_of_checked_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runfile, "_VALIDATED_MAX", 3)
    handle, _ = stored()
    for number in range(10):
        runfile.remember_validated(dataclasses.replace(handle, path=f"{number}"))
    assert [path for path, _ in runfile._validated] == ["7", "8", "9"]


def damaged(batch: pa.RecordBatch, **changes: Any) -> tuple[Handle, FilesInMemory]:
    handle, files = stored(batch)
    return dataclasses.replace(handle, **changes), files


def test_a_file_that_is_no_run_of_this_state_is_refused() -> None:
    other = run_schema(KEYS, pa.schema([("v", pa.float64())]))
    handle, files = stored()
    with pytest.raises(CorruptError, match=r"v int64.*expected.*v double"):
        open_run(handle, files, other)
    unsorted = SMALL.take(pa.array([3, 1, 0, 2]))
    cases = [
        (damaged(unsorted), "not sorted"),
        (stored(SMALL, b"3"), "format"),
        (damaged(SMALL, rows=5), "4 rows, expected 5"),
    ]
    for (handle, files), message in cases:
        with pytest.raises(CorruptError, match=message):
            open_run(handle, files, SCHEMA)
    garbage = pa.py_buffer(b"not arrow at all")
    files.contents[handle.path] = garbage
    with pytest.raises(CorruptError, match="no run"):
        open_run(handle_of(garbage, SMALL), files, SCHEMA)


def test_damage_with_a_right_checksum_opens_or_is_refused_but_never_anything_else() -> None:
    handle, files = stored()
    data = files.contents[handle.path].to_pybytes()
    for at in range(len(data)):
        changed = pa.py_buffer(data[:at] + bytes([data[at] ^ 0x81]) + data[at + 1 :])
        files.contents[handle.path] = changed
        try:
            run = open_run(dataclasses.replace(handle, checksum=checksum(changed)), files, SCHEMA)
        except CorruptError:
            continue
        run.batch.to_pylist()


# -- handles


def test_a_handle_survives_json() -> None:
    handle, _ = stored()
    timers = dataclasses.replace(handle, kind="timers", min_due=-5, max_due=7)
    for each in (handle, timers):
        assert Handle.from_json(json.loads(json.dumps(each.to_json()))) == each


@pytest.mark.parametrize(
    "change",
    [
        {"path": "/etc/passwd"},
        {"path": "a/../../b"},
        {"path": ""},
        {"path": "a\\b"},
        {"path": 3},
        {"kind": "sst"},
        {"kind": ["run"]},
        {"first_group": -1},
        {"first_group": 9},
        {"last_group": "3"},
        {"rows": True},
        {"rows": 1.0},
        {"bytes": None},
        {"checksum": "xyz"},
        {"checksum": "A" * 32},
        {"min_due": 3},
        {"kind": "timers"},
        {"kind": "timers", "min_due": 3, "max_due": 2},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_handle_that_was_not_written_by_us_is_refused(change: dict[str, Any]) -> None:
    handle, _ = stored()
    with pytest.raises(CorruptError):
        Handle.from_json(handle.to_json() | change)


def test_an_incomplete_handle_is_refused() -> None:
    handle, _ = stored()
    for name in handle.to_json():
        with pytest.raises(CorruptError):
            Handle.from_json({key: value for key, value in handle.to_json().items() if key != name})
    for other in (None, [], "x"):
        with pytest.raises(CorruptError):
            Handle.from_json(other)


def test_a_handle_is_narrowed_to_the_groups_of_a_task() -> None:
    handle, _ = stored()
    narrow = handle.within(range(1, 3))
    assert narrow is not None
    assert (narrow.first_group, narrow.last_group) == (1, 2)
    assert handle.within(range(4, 9)) is None


# -- lookup and merge against a plain model

rows_of_runs = st.lists(
    st.dictionaries(
        # Few hashes, so that most keys collide.
        st.sampled_from([(g, h, k) for g in range(3) for h in (0, 1, 2**63) for k in ("a", "b", "c", None)]),
        st.tuples(st.sampled_from([0, 1]), st.none() | st.integers(0, 9)),
        min_size=1,
        max_size=14,
    ),
    min_size=1,
    max_size=4,
)


def runs_of(history: list[dict[Any, Any]]) -> list[Run]:
    return [Run.of(batch_of([(*key, op, value) for key, (op, value) in each.items()])) for each in history]


@given(rows_of_runs)
def test_find_returns_the_newest_row_of_each_key(history: list[dict[Any, Any]]) -> None:
    asked = [(g, h, k) for g in range(4) for h in (0, 1, 7, 2**63) for k in ("c", "b", None, "zz", "a")]
    groups = np.array([g for g, _, _ in asked], np.int32)
    hashes = np.array([h for _, h, _ in asked], np.uint64)
    keys = pa.record_batch({"k": pa.array([k for _, _, k in asked], pa.string())})
    runs = runs_of(history)
    which, where = find(runs, groups, hashes, keys)
    for key, run, row in zip(asked, which.tolist(), where.tolist()):
        wanted = next((i for i, each in enumerate(history) if key in each), -1)
        assert run == wanted
        if wanted >= 0:
            found = runs[run].batch.slice(row, 1).to_pylist()[0]
            assert (found["__group"], found["__hash"], found["k"]) == key
            assert (found["__op"], found["v"]) == history[wanted][key]


@given(rows_of_runs, st.sampled_from([range(3), range(1, 2), range(2, 5), range(3, 4)]), st.booleans())
def test_merge_keeps_the_newest_row_of_each_key(history: list[dict[Any, Any]], groups: range, drop: bool) -> None:
    merged = merge_runs(runs_of(history), groups, drop_deletes=drop)
    model: dict[Any, Any] = {}
    for each in reversed(history):
        model |= each
    wanted = {key: row for key, row in model.items() if key[0] in groups and (row[0] or not drop)}
    rows = [tuple(row.values()) for row in merged.to_pylist()]
    assert {row[:3]: row[3:] for row in rows} == wanted
    assert len(rows) == len(wanted)
    assert [row[:2] for row in rows] == sorted(row[:2] for row in rows)
    assert merged.schema.equals(SCHEMA, check_metadata=True)


def test_rows_outside_the_groups_of_a_handle_do_not_exist() -> None:
    handle, files = stored()
    run = open_run(dataclasses.replace(handle, first_group=1, last_group=2), files, SCHEMA)
    assert run.rows == 1
    assert run.slice(range(9)).num_rows == 1
    assert run.slice(range(3, 9)).num_rows == 0
    assert run.slice(range(1)).num_rows == 0
    keys = pa.record_batch({"k": pa.array(["a", None], pa.string())})
    which, where = find([run], np.array([0, 1], np.int32), np.array([5, 2], np.uint64), keys)
    assert which.tolist() == [-1, 0]
    assert where.tolist() == [-1, 2]


@pytest.mark.parametrize("hash_bits", [0, 3, 30, 64])
@pytest.mark.parametrize("groups_max", [1, 128, 32_768])
def test_the_order_of_rows_is_a_stable_sort(hash_bits: int, groups_max: int) -> None:
    random = np.random.default_rng(hash_bits)
    groups = random.integers(0, groups_max, 5_000).astype(np.int32)
    hashes = random.integers(0, 2**64, 5_000, dtype=np.uint64) >> np.uint64(min(64 - hash_bits, 63))
    for rows in (0, 1, 5_000):
        assert order_of(groups[:rows], hashes[:rows]).tolist() == np.lexsort((hashes[:rows], groups[:rows])).tolist()
    crowded = hashes | np.uint64(0xFFFFFF << 40)  # all share their first bits
    assert order_of(groups, crowded).tolist() == np.lexsort((crowded, groups)).tolist()


@pytest.mark.parametrize("rows", [1, 7, 5_000])
def test_a_filter_never_hides_a_key_and_mostly_spares_the_search(rows: int) -> None:
    table = KeyedTable(StateSpec("x", pa.schema([("k", pa.int64())]), pa.schema([])), range(128), 128)
    keys = pa.record_batch({"k": pa.array(range(rows))})
    table.put_many(keys, pa.RecordBatch.from_arrays([], schema=pa.schema([])))
    (run,) = table.freeze(1).runs
    assert run.may_hold(run.hashes).all()
    others = hash_keys(pa.record_batch({"k": pa.array(range(rows, rows + 10_000))}))
    assert run.may_hold(others).mean() < 0.2
    assert len(run._filter()[0]) <= 2 * rows + 1
