"""The fixes of `connectors`, and of rows: files that are read and written, and rows in memory."""

from __future__ import annotations

import gzip
import itertools
import os
import pickle
import shutil
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from datetime import time as time_of_day
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.soak.life import wait_for

import penstock as pen
from connectors.reading import read, read_all
from fixes.applying import argument, code_of, evaluate, shown
from penstock import sinks, sources
from penstock.connectors import filesink
from penstock.connectors.connector import Receiver, SinkContext, SourceContext, Verdict
from penstock.connectors.filesink import MARKER
from penstock.row import ReadOnlyError

SCHEMA = "n bigint"
UIDS = itertools.count()
"""No two writers have the same."""


def lines(path: Path, *numbers: int) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(f'{{"n": {number}}}\n' for number in numbers))
    return path


def found(source: Any, **options: Any) -> list[int]:
    return sorted(row["n"] for row in read_all(source, **options).rows)


# Files as a source.


def test_a_folder_is_given_as_a_path(tmp_path: Path) -> None:
    lines(tmp_path / "a.json", 1)
    url = tmp_path.as_uri()
    text = shown("files.path", lambda: sources.files(url, schema=SCHEMA))
    assert text == "Give the path of such a folder, without '://'"
    assert found(sources.files(url.partition("://")[2], schema=SCHEMA)) == [1]


def test_a_file_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    text = shown("files.nothing", lambda: sources.files(tmp_path / "a.json", schema=SCHEMA))
    (code,) = [text.partition("write: ")[2]]
    source = sources.files(tmp_path / "a.json", schema=SCHEMA, splits=1, **evaluate(f"dict({code})"))
    assert read(source).rows == []
    lines(tmp_path / "a.json", 1)
    assert read(source).rows == [{"n": 1}]


def test_the_format_of_files_that_do_not_show_it_is_said(tmp_path: Path) -> None:
    lines(tmp_path / "numbers", 1)
    (format,) = argument(shown("files.format", lambda: sources.files(tmp_path, schema=SCHEMA)))
    assert found(sources.files(tmp_path, schema=SCHEMA, format=format)) == [1]


@pytest.mark.parametrize("pattern", ["", "*", "*.[cj]s*"])
def test_files_of_one_of_several_formats_are_named(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    lines(tmp_path / "b.json", 2)
    text = shown("files.formats", lambda: sources.files(tmp_path / pattern, schema=SCHEMA))
    (code,) = code_of(text)
    assert found(sources.files(evaluate(code), schema=SCHEMA)) == [1]


@pytest.mark.parametrize("pattern", ["*.json", "*.csv", "*.parquet"])
def test_the_columns_of_files_that_do_not_say_them_are_written_out(tmp_path: Path, pattern: str) -> None:
    (schema,) = argument(shown("files.schema", lambda: sources.files(tmp_path / pattern)))
    (tmp_path / "a.json").write_text('{"user": "ann", "price": 2.5}\n')
    (tmp_path / "a.csv").write_text("user,price\nann,2.5\n")
    source = sources.files(tmp_path / pattern, schema=schema)
    pq.write_table(pa.table({"user": ["ann"], "price": [2.5]}), tmp_path / "a.parquet")
    assert read_all(source).rows == [{"user": "ann", "price": 2.5}]


def test_a_compressed_file_is_unpacked_or_converted(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.json.gz", "wt") as file:
        file.write('{"n": 1}\n')
    text = shown("files.compressed", lambda: sources.files(tmp_path / "a.json.gz", schema=SCHEMA))
    assert text == "Unpack it, or convert it to Parquet"
    shown("files.compressed", lambda: read_all(sources.files(tmp_path / "*", format="json", schema=SCHEMA)))
    with gzip.open(tmp_path / "a.json.gz") as packed:
        (tmp_path / "a.json").write_bytes(packed.read())
    assert found(sources.files(tmp_path / "a.json", schema=SCHEMA)) == [1]
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    assert found(sources.files(tmp_path / "a.parquet")) == [1]


def test_the_number_of_splits_stays(tmp_path: Path) -> None:
    for number in range(8):
        lines(tmp_path / f"{number}.json", number)
    position = read(sources.files(tmp_path, schema=SCHEMA, splits=1), rows_max=3).positions[3]
    text = shown("files.splits", lambda: read(sources.files(tmp_path, schema=SCHEMA, splits=2), position=position))
    (splits,) = argument(text)
    rest = read(sources.files(tmp_path, schema=SCHEMA, splits=splits), position=position)
    assert [row["n"] for row in rest.rows] == [4, 5, 6, 7]


@pytest.mark.parametrize("half", [False, True])
def test_a_file_that_was_changed_is_put_back_and_new_rows_go_into_another(tmp_path: Path, half: bool) -> None:
    lines(tmp_path / "a.json", 1, 2)
    source = sources.files(tmp_path, schema=SCHEMA, splits=1)
    position = read(source, rows_max=1).positions[0 if half else 1]
    before = (tmp_path / "a.json").read_bytes()
    if half:
        (tmp_path / "a.json").write_text('{"n": 333}\n{"n": 444}\n')
        text = shown("files.changed", lambda: read(source, position=position))
    else:
        with (tmp_path / "a.json").open("a") as file:
            file.write('{"n": 3}\n')
        text = shown("files.changed", lambda: read(source, position=position))
    assert text == "Put the file back as it was, and put new rows into a new file"
    (tmp_path / "a.json").write_bytes(before)
    lines(tmp_path / "b.json", 3)
    assert [row["n"] for row in read(source, position=position).rows] == ([2, 3] if half else [3])


# Files as a sink.


def test_a_folder_to_write_to_is_given_as_a_path(tmp_path: Path) -> None:
    url = (tmp_path / "out").as_uri()
    text = shown("file-sink.path", lambda: sinks.files(url))
    assert text == "Give the path of such a folder, without '://'"
    numbers(1, sinks.files(url.partition("://")[2]))
    assert written(tmp_path / "out") == [1]


def numbers(number: int, sink: pen.Sink) -> None:
    """A job that writes one number."""
    pen.Pipeline("p").read(sources.memory([{"n": number}])).write(sink, name="out").run(pen.Local(restarts=0))


def written(path: Path) -> list[int]:
    return sorted(row["n"] for row in shown_rows(path))


def shown_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of the epochs that readers see."""
    return [row for part in sorted(path.glob("epoch=*/part-*")) for row in pq.ParquetFile(part).read().to_pylist()]


def committed(path: Path, lineage: str, number: int) -> None:
    """What a job of that lineage does for its first epoch."""
    sink, schema = sinks.files(path), pa.schema([("n", pa.int64())])
    context = SinkContext("out", lineage, f"u{next(UIDS)}", path, schema)
    writer = sink.writer(context)
    writer.write(pa.record_batch({"n": [number]}, schema=schema))
    sink.committer(context).commit(1, writer.prepare(1), 0)


def test_an_epoch_of_another_run_is_removed_or_left_alone(tmp_path: Path) -> None:
    committed(tmp_path / "out", "first", 1)
    text = shown("file-sink.lineage", lambda: committed(tmp_path / "out", "second", 2))
    assert text == "Write to another folder, or remove the epochs that should not count"
    committed(tmp_path / "another", "second", 2)
    assert (written(tmp_path / "out"), written(tmp_path / "another")) == ([1], [2])
    shutil.rmtree(tmp_path / "out" / "epoch=1")
    committed(tmp_path / "out", "second", 2)
    assert written(tmp_path / "out") == [2]


def test_prepared_parts_are_found_where_they_were_or_put_back_or_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, moved = tmp_path / "before", tmp_path / "moved"

    def run(out: Path, restore: str = "latest", storage: str = "storage") -> None:
        p = pen.Pipeline("p")
        rows = p.read(sources.generate(lambda index, seed: {"n": index}, rate=1_000, splits=1, schema="n bigint"))
        rows.write(sinks.files(out, name="out"))
        job = p.start(pen.Local(storage=tmp_path / storage, snapshot_every="10ms", restarts=0), restore=restore)
        wait_for(lambda: job.status().epoch > 1, 30, "there are epochs")
        job.cancel()

    with monkeypatch.context() as patch:
        patch.setattr(filesink._FileCommitter, "commit", lambda *rest: Verdict.RETRY)
        run(before)
    os.rename(before, moved)
    text = shown("file-sink.gone", lambda: run(tmp_path / "other", "none"))
    assert (
        text == "Start the job once with the folder that it wrote to before, put that folder back, or begin with another storage"
    )
    run(tmp_path / "third", "none", "another storage")
    os.rename(moved, before)
    shutil.copytree(tmp_path / "storage", tmp_path / "copy")
    shutil.copytree(before, moved)
    run(tmp_path / "other", "none")
    assert list(before.glob("epoch=*")) != []
    shutil.rmtree(before)
    os.rename(moved, before)
    run(before, storage="copy")
    run(tmp_path / "fifth", "none", "copy")


def test_a_sink_has_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "epoch=1").mkdir()
    text = shown("file-sink.folder", lambda: committed(tmp_path, "first", 1))
    assert text == "Choose a folder of its own for the sink"
    assert list((tmp_path / "epoch=1").iterdir()) == []
    committed(tmp_path / "own", "first", 1)
    assert written(tmp_path / "own") == [1]
    assert (tmp_path / "own" / "epoch=1" / MARKER).exists()


def one_row(path: Path, batch: pa.RecordBatch, **options: Any) -> None:
    """A file of that row in the sink's folder, as a task writes it."""
    sink = sinks.files(path, **options)
    context = SinkContext("out", "line", f"u{next(UIDS)}", path, batch.schema)
    writer = sink.writer(context)
    writer.write(batch)
    sink.committer(context).commit(1, writer.prepare(1), 0)


def test_bytes_are_written_as_parquet_or_as_text(tmp_path: Path) -> None:
    batch = pa.record_batch({"b": pa.array([b"x"])})
    format, cast = code_of(shown("file-sink.binary", lambda: one_row(tmp_path / "no", batch, format="json")))
    one_row(tmp_path / "out", batch, **evaluate(f"dict({format})"))
    assert shown_rows(tmp_path / "out") == [{"b": b"x"}]
    stream = pen.Pipeline("p").read(sources.memory([{"b": b"x"}], schema="b binary"))
    stream.select(b=evaluate(cast)).write(sinks.files(tmp_path / "text", format="json")).run(pen.Local(restarts=0))
    (part,) = (tmp_path / "text").glob("epoch=*/part-*")
    assert part.read_text() == '{"b":"x"}\n'


def test_what_json_has_no_word_for_is_written_as_parquet(tmp_path: Path) -> None:
    batch = pa.record_batch({"at": pa.array([time_of_day(1, 2)])})
    (format,) = argument(shown("file-sink.json", lambda: one_row(tmp_path / "no", batch, format="json")))
    one_row(tmp_path / "out", batch, format=format)
    assert shown_rows(tmp_path / "out") == [{"at": time_of_day(1, 2)}]


# Files that others write, and servers.


def test_a_parquet_file_that_is_being_written_has_another_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "whole")
    data, part = (tmp_path / "whole").read_bytes(), tmp_path / "in" / "a.parquet"
    part.parent.mkdir()
    part.write_bytes(data[:-10])
    source = sources.files(part.parent, schema=SCHEMA, format="parquet", watch="10ms", splits=1)
    text = shown("parquet.unfinished", lambda: read(source))
    (end,) = [word.strip(",") for word in text.split() if word.startswith(".")]
    unfinished = part.rename(f"{part}{end}")
    assert read(source).rows == []
    unfinished.write_bytes(data)
    unfinished.rename(part)
    assert read(source).rows == [{"n": 1}]


def test_a_server_is_started_where_it_is_looked_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    source = sources.socket("127.0.0.1", port, connect_s=0.2)
    context = SourceContext(source.name, tmp_path, ("value",))

    def receive() -> Receiver:
        receiver = source.receiver(context)
        assert receiver is not None
        receiver.start()
        try:
            for _ in range(100):
                receiver.check()
                time.sleep(0.01)
        finally:
            receiver.stop()
        return receiver

    text = shown("socket.server", receive)
    assert text.startswith("Start the server that it is to read from.")
    with socket.create_server(("127.0.0.1", int(text.split()[-1]))):
        receive()


# Rows in memory.


@pytest.mark.parametrize("rows", [[], [1, 2], [{"user": "ann"}, {"n": 1}]])
def test_columns_that_cannot_be_told_are_written_out(rows: list[Any]) -> None:
    (schema,) = argument(shown("memory.schema", lambda: sources.memory(rows)))
    named = [row for row in rows if isinstance(row, dict)]
    assert sources.memory(named, schema=schema).schema.names == ["user", "n"]


def test_times_get_a_zone() -> None:
    (code,) = code_of(shown("memory.zone", lambda: sources.memory([{"at": datetime(2026, 1, 31)}])))
    at = evaluate(code)
    assert at == datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
    assert read_all(sources.memory([{"at": at}])).rows == [{"at": at}]


def test_a_row_that_is_a_tuple_can_be_copied_as_a_dict() -> None:
    schema = "user string, n bigint"
    (code,) = code_of(shown("memory.row", lambda: sources.memory([("ann", 1)], schema=schema)))
    assert read_all(sources.memory([evaluate(code)], schema=schema)).rows == [{"user": "ann", "n": 1}]


@dataclass
class Order:
    user: str
    n: int


@pytest.mark.parametrize("row", [1, ("ann",), ("a" * 200, 1), None])
def test_a_row_is_a_dict_or_a_dataclass(row: Any) -> None:
    text = shown("memory.row", lambda: sources.memory([row], schema=Order))
    assert text == "Write each row as a dict, or as an object of a dataclass"
    for good in ({"user": "ann", "n": 1}, Order("ann", 1)):
        assert read_all(sources.memory([good], schema=Order)).rows == [{"user": "ann", "n": 1}]


# Rows in a function.


def test_a_row_with_another_value_is_made_as_the_fix_says() -> None:
    row = pen.Row(user="ann", price=1)

    def change(value: Any) -> None:
        row.price = value

    for value in (2, "two", None):
        (code,) = code_of(shown("row.read-only", lambda value=value: change(value)))  # type: ignore[misc]
        assert evaluate(code, row=row) == pen.Row(user="ann", price=value)
    assert row.price == 1


def test_a_function_that_sets_a_column_is_told_which_and_works_once_it_replaces_it() -> None:
    def doubled(row: pen.Row) -> pen.Row:
        row.n = row.n * 2
        return row

    def replaced(row: pen.Row) -> pen.Row:
        return row.replace(n=row.n * 2)

    out = sinks.memory("replaced")
    out.clear()

    def run(function: Any) -> None:
        rows = pen.Pipeline("p").read(sources.memory([{"n": 1}]))
        rows.map(function, schema=SCHEMA).write(out).run(pen.Local(restarts=0))

    with pytest.raises(pen.JobError, match=r"'n' cannot be set: a row is read-only, and row\.replace makes another one"):
        run(doubled)
    run(replaced)
    assert out.rows() == [{"n": 2}]


def test_a_read_only_row_is_an_error_of_ours_and_of_pythons() -> None:
    row = pen.Row(n=1)
    with pytest.raises(AttributeError, match="'n' cannot be deleted: a row is read-only"):
        del row.n
    with pytest.raises(ReadOnlyError) as caught:
        row.n = 2
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
