"""Files as a source: dealing, watching, changes, and resuming in every format."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import sources
from penstock.connectors import lines
from penstock.connectors.connector import Source
from penstock.errors import ConfigError, CorruptError, RestoreError, StorageError

from .reading import check_resume, context, read, read_all

SCHEMA = "n bigint not null, word string, price double"
FIXTURE = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def row(number: int) -> dict[str, Any]:
    return {"n": number, "word": None if number % 7 == 3 else f"wörd {number}" * (number % 4), "price": number / 4}


def write(path: Path, rows: list[dict[str, Any]], *, group: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in rows))
        return
    schema = pa.schema([("n", pa.int64()), ("word", pa.string()), ("price", pa.float64())])
    table = pa.Table.from_pylist(rows, schema=schema)
    if path.suffix == ".csv":
        pv.write_csv(table, path)
    else:
        pq.write_table(table, path, row_group_size=group)


def folder_of(path: Path, suffix: str, *, counts: tuple[int, ...] = (11, 0, 5, 1, 9)) -> list[dict[str, Any]]:
    rows = []
    for index, count in enumerate(counts):
        these = [row(index * 100 + number) for number in range(count)]
        rows += these
        write(path / f"part-{index}{suffix}", these)
    return rows


def by_number(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda each: each["n"])


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
def test_every_row_of_every_file_comes_once(tmp_path: Path, suffix: str) -> None:
    rows = folder_of(tmp_path, suffix)
    source = sources.files(tmp_path, schema=SCHEMA)
    assert source.bounded
    assert source.replayable
    assert by_number(read_all(source).rows) == rows
    assert by_number(read_all(pickle.loads(pickle.dumps(source)), rows_max=2).rows) == rows


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
@pytest.mark.usefixtures("small_blocks")
@given(rows_max=st.integers(1, 12), again_max=st.integers(1, 30))
@FIXTURE
def test_resuming_after_any_chunk_gives_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, rows_max: int, again_max: int
) -> None:
    folder = tmp_path_factory.mktemp("in")
    folder_of(folder, suffix, counts=(11, 0, 5))
    check_resume(sources.files(folder, schema=SCHEMA, splits=2), rows_max=rows_max, again_max=again_max)


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
def test_only_the_columns_in_use_are_decoded(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"a{suffix}", [row(number) for number in range(5)], group=5)
    if suffix != ".parquet":
        # A price that is no number stays unnoticed as long as nobody wants it.
        text = (tmp_path / f"a{suffix}").read_text()
        (tmp_path / f"a{suffix}").write_text(text.replace("0.25", '"cheap"'))
    source = sources.files(tmp_path, schema=SCHEMA, splits=1)
    assert read(source, columns=("n",)).rows == [{"n": number} for number in range(5)]
    assert read(source, columns=("n",)).bad == []
    assert len(read(source).bad) == (suffix != ".parquet")
    chunk = source.open("0", None, context(source, columns=())).poll(100)
    assert chunk is not None
    assert chunk.batch is not None
    assert (chunk.batch.num_rows, chunk.batch.num_columns) == (5, 0)


def test_files_are_dealt_by_name_and_read_in_its_order(tmp_path: Path) -> None:
    for number in range(20):
        write(tmp_path / f"{number:02d}.json", [row(number)])
    source = sources.files(tmp_path, schema=SCHEMA, splits=3)
    lanes = [[each["n"] for each in read(source, split).rows] for split in source.splits()]
    assert all(lane == sorted(lane) for lane in lanes)
    assert sorted(itertools.chain(*lanes)) == list(range(20))
    assert sum(bool(lane) for lane in lanes) == 3


def test_hidden_and_temporary_files_are_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "a.json", [row(1)])
    for name in (".b.json", "_c.json", "d.json.tmp", "_staging/e.json"):
        write(tmp_path / name, [])
        (tmp_path / name).write_text("not json")
    for path in (tmp_path, f"{tmp_path}/**/*"):
        assert read_all(sources.files(path, schema=SCHEMA, format="json")).rows == [row(1)]


def test_a_glob_may_span_folders(tmp_path: Path) -> None:
    write(tmp_path / "epoch=1/part-a.parquet", [row(1)])
    write(tmp_path / "epoch=2/part-a.parquet", [row(2)])
    source = sources.files(tmp_path / "epoch=*/part-*.parquet", name="again")
    assert source.schema.names == ["n", "word", "price"]
    assert by_number(read_all(source).rows) == [row(1), row(2)]


def watch_all(source: Source, positions: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for split in source.splits():
        seen = read(source, split, positions.get(split))
        assert not seen.ended
        rows += seen.rows
        positions[split] = seen.positions[-1] if seen.positions else positions.get(split)
    return rows


def test_watching_finds_new_files_wherever_they_sort(tmp_path: Path) -> None:
    write(tmp_path / "m.json", [row(1)])
    source = sources.files(tmp_path, schema=SCHEMA, watch="10ms", splits=2)
    assert not source.bounded
    positions: dict[str, Any] = {}
    assert watch_all(source, positions) == [row(1)]
    write(tmp_path / "a.json", [row(2)])
    write(tmp_path / "z.json", [row(3)])
    assert by_number(watch_all(source, positions)) == [row(2), row(3)]
    assert watch_all(source, positions) == []


def test_an_open_reader_finds_new_files_too(tmp_path: Path) -> None:
    source = sources.files(tmp_path, schema=SCHEMA, format="json", watch="10ms", splits=1)
    reader = source.open("0", None, context(source))
    assert reader.poll(10) is None
    assert not reader.backlog()
    write(tmp_path / "a.json", [row(1)])
    time.sleep(0.02)
    assert reader.backlog()
    chunk = reader.poll(10)
    assert chunk is not None
    assert chunk.batch is not None
    assert chunk.batch.to_pylist() == [row(1)]


def test_while_watching_half_a_line_is_waited_for(tmp_path: Path) -> None:
    line = json.dumps(row(1)) + "\n"
    path = tmp_path / "a.json"
    path.write_text(line + line[:10])
    source = sources.files(tmp_path, schema=SCHEMA, watch="10ms", splits=1)
    first = read(source)
    assert first.rows == [row(1)]
    reader = source.open("0", first.positions[-1], context(source))
    assert reader.poll(10) is None
    assert not reader.backlog()
    path.write_text(line * 2)
    assert reader.backlog()
    reader.close()
    assert read(source, position=first.positions[-1]).rows == [row(1)]


def test_a_file_that_changes_after_it_was_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / "a.json", [row(1)])
    source = sources.files(tmp_path, schema=SCHEMA, watch="10ms", splits=1)
    position = read(source).positions[-1]
    write(tmp_path / "a.json", [row(1), row(2)])
    with pytest.raises(StorageError, match=r"'a.json'.* had \d+ bytes when it was read"):
        read(source, position=position)
    (tmp_path / "a.json").unlink()
    assert read(source, position=position).rows == []


def test_a_file_that_is_cut_or_gone_while_half_read_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.json", [row(number) for number in range(5)])
    source = sources.files(tmp_path, schema=SCHEMA, splits=1)
    position = read(source, rows_max=2).positions[1]
    assert position["file"] == "a.json"
    os.truncate(tmp_path / "a.json", 30)
    with pytest.raises(StorageError, match=r"'a.json' was read up to byte"):
        read(source, position=position)
    (tmp_path / "a.json").unlink()
    with pytest.raises(StorageError, match=r"'a.json' is gone"):
        read(source, position=position)


def test_the_number_of_splits_is_fixed(tmp_path: Path) -> None:
    write(tmp_path / "a.json", [row(1)])
    position = read(sources.files(tmp_path, schema=SCHEMA, splits=1)).positions[-1]
    with pytest.raises(RestoreError, match="Write: splits=1"):
        read(sources.files(tmp_path, schema=SCHEMA, splits=2), position=position)


def test_compressed_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(StorageError, match="is compressed"):
        sources.files(tmp_path / "a.json.gz", schema=SCHEMA)
    with pytest.raises(StorageError, match="is compressed"):
        read_all(sources.files(tmp_path, schema=SCHEMA, format="json"))


def test_what_cannot_be_told_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot tell the format"):
        sources.files(tmp_path, schema=SCHEMA)
    with pytest.raises(ConfigError, match="do not say which columns"):
        sources.files(tmp_path / "*.json")
    with pytest.raises(ConfigError, match="no Parquet file yet"):
        sources.files(tmp_path / "*.parquet")
    with pytest.raises(ConfigError, match="without '://'"):
        sources.files("s3://bucket/in", schema=SCHEMA)
    with pytest.raises(ConfigError, match="format='xml'"):
        sources.files(tmp_path, format="xml", schema=SCHEMA)
    with pytest.raises(StorageError, match="no folder"):
        read(sources.files(tmp_path / "gone/*.json", schema=SCHEMA))


def test_the_name_is_the_folders_or_the_files_own(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    assert sources.files(tmp_path / "orders/*.json", schema=SCHEMA).name == "orders"
    (tmp_path / "orders/campaigns.csv").touch()
    assert sources.files(tmp_path / "orders/campaigns.csv", schema=SCHEMA).name == "campaigns"


def test_parquet_files_must_have_the_columns_and_fitting_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([1, None, 3], pa.int32())}), tmp_path / "a.parquet")
    source = sources.files(tmp_path, schema="n bigint not null", splits=1)
    seen = read(source)
    assert seen.rows == [{"n": 1}, {"n": 3}]
    assert [bad.position for bad in seen.bad] == [{"file": "a.parquet", "offset": [0, 1]}]
    check_resume(source, rows_max=1, again_max=1)
    with pytest.raises(StorageError, match="no column 'word'"):
        read(sources.files(tmp_path, schema=SCHEMA, splits=1))
    pq.write_table(pa.table({"n": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(StorageError, match="does not fit"):
        read(source)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and so on")
    with pytest.raises(CorruptError, match="cannot be read as Parquet"):
        read(source)


def test_a_path_without_anything_there_is_an_error_unless_it_is_watched(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is nothing at"):
        sources.files(tmp_path / "later", format="json", schema="n bigint")
    later = sources.files(tmp_path / "later", format="json", schema="n bigint", watch="10ms")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "a.json").write_text('{"n": 1}\n')
    assert [name for lane in range(4) for name in later.listing(lane)] == ["a.json"]
