"""The file sink: whole epochs or nothing, whatever step a commit dies at."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import sinks, sources
from penstock.connectors.connector import Json, SinkContext, Verdict
from penstock.connectors.filesink import FileSink
from penstock.errors import ConfigError, CorruptError, StorageError
from penstock.schema import to_schema

from .reading import read_all

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("word", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(10, 2)),
    ]
)


def place(uid: str = "u0", lineage: str = "line") -> SinkContext:
    return SinkContext("out", lineage, uid, Path("/nowhere"), SCHEMA)


def batch(*numbers: int) -> pa.RecordBatch:
    arrays = [
        pa.array(numbers, pa.int64()),
        pa.array([None if number % 3 == 0 else f'wörd "{number}",' for number in numbers], pa.string()),
        pa.array([number * 1_000_003 for number in numbers], pa.int64()).cast(SCHEMA.field("at").type),
        pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(10, 2)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def prepare(sink: FileSink, epoch: int, *, lineage: str = "line", writers: int = 2) -> list[Json]:
    """Epoch n holds the numbers 10n .. 10n+3, from two writers."""
    found: list[Json] = []
    for index in range(writers):
        writer = sink.writer(place(f"u{index}-{epoch}", lineage))
        writer.write(batch(10 * epoch + 2 * index))
        writer.write(batch(10 * epoch + 2 * index + 1))
        found += writer.prepare(epoch)
        writer.close()
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def numbers_of(epoch: int) -> list[int]:
    return [10 * epoch + number for number in range(4)]


def visible(path: Path, format: str = "parquet") -> list[list[int]]:
    """The numbers in each directory a reader sees, in order of epochs."""
    folders = sorted(path.glob("epoch=*"), key=lambda each: int(each.name[6:].split("-")[0]))
    found = []
    for folder in folders:
        source = sources.files(folder / f"part-*.{format}", schema=SCHEMA, name="again")
        found.append(sorted(row["n"] for row in read_all(source).rows))
    return found


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_what_was_written_is_read_back(tmp_path: Path, format: str) -> None:
    sink = sinks.files(tmp_path / "out", format=format)
    writer = sink.writer(place())
    for start in range(0, 30, 10):
        writer.write(batch(*range(start, start + 10)))
    committables = writer.prepare(1)
    assert committables[0]["rows"] == 30
    assert visible(tmp_path / "out") == []
    assert sink.committer(place()).commit(1, committables, 0) is Verdict.DONE
    source = sources.files(tmp_path / f"out/epoch=*/part-*.{format}", schema=SCHEMA, name="again")
    assert sorted(read_all(source).rows, key=lambda row: row["n"]) == batch(*range(30)).to_pylist()


def test_an_epoch_is_one_directory_and_committed_once(tmp_path: Path) -> None:
    sink = sinks.files(tmp_path)
    committer = sink.committer(place())
    assert committer.committed() is None
    for epoch in (3, 4):
        committables = prepare(sink, epoch)
        assert committer.commit(epoch, committables, 0) is Verdict.DONE
        assert committer.commit(epoch, committables, 1) is Verdict.ALREADY
    assert sink.committer(place()).commit(3, committables=committables_of(tmp_path, 3), attempt=0) is Verdict.ALREADY
    assert visible(tmp_path) == [numbers_of(3), numbers_of(4)]
    assert sink.committer(place("x", "other")).committed() == ("line", 4)
    marker = json.loads((tmp_path / "epoch=3/_epoch.json").read_text())
    assert marker["lineage"] == "line"
    assert sum(part["rows"] for part in marker["parts"]["3"]) == 4
    assert list((tmp_path / "_staging/line").iterdir()) == []


def committables_of(path: Path, epoch: int) -> list[Json]:
    marker = json.loads((path / f"epoch={epoch}/_epoch.json").read_text())
    parts = marker["parts"][str(epoch)]
    return [{"folder": "gone", "part": part["name"], **{key: part[key] for key in ("rows", "bytes", "xxh64")}} for part in parts]


def test_an_epoch_without_rows_makes_no_directory(tmp_path: Path) -> None:
    sink = sinks.files(tmp_path / "out")
    writer = sink.writer(place())
    writer.write(batch())
    assert writer.prepare(1) == []
    writer.close()
    assert sink.committer(place()).commit(1, [], 0) is Verdict.DONE
    assert not (tmp_path / "out").exists()


def test_another_lineages_epoch_is_not_touched(tmp_path: Path) -> None:
    for roll in (1, 3):
        sink = sinks.files(tmp_path / str(roll), roll=roll)
        first = sink.committer(place())
        first.commit(5, prepare(sink, 5), 0)
        first.commit(7, prepare(sink, 7), 0)
        first.close()
        other = prepare(sink, 5, lineage="other")
        with pytest.raises(StorageError, match=r"written by lineage line, and lineage other"):
            sink.committer(place(lineage="other")).commit(5, other, 0)
        with pytest.raises(StorageError, match="other rows for epoch 5"):
            sink.committer(place()).commit(5, prepare(sink, 5, writers=1), 0)
    (tmp_path / "1/epoch=6").mkdir()
    sink = sinks.files(tmp_path / "1")
    sixth = prepare(sink, 6)
    with pytest.raises(StorageError, match="not written by Penstock"):
        sink.committer(place()).commit(6, sixth, 0)


def test_parts_that_are_gone_or_cut_are_noticed(tmp_path: Path) -> None:
    sink = sinks.files(tmp_path)
    committables = prepare(sink, 1)
    part = tmp_path / "_staging/line" / committables[1]["folder"] / committables[1]["part"]
    os.truncate(part, 10)
    with pytest.raises(CorruptError, match="10 bytes"):
        sink.committer(place()).commit(1, committables, 0)
    part.unlink()
    with pytest.raises(StorageError, match="is gone"):
        sink.committer(place()).commit(1, committables, 0)
    assert visible(tmp_path) == []


def test_an_epoch_is_committed_to_the_folder_that_it_was_prepared_in(tmp_path: Path) -> None:
    before, now = sinks.files(tmp_path / "before", roll=3), sinks.files(tmp_path / "now")
    fifth, sixth = prepare(before, 5), prepare(before, 6)
    committer = now.committer(place())
    for verdict in (Verdict.DONE, Verdict.ALREADY):
        assert [committer.commit(5, fifth, 0), committer.commit(6, sixth, 0)] == [verdict, verdict]
    committer.commit(7, prepare(now, 7), 0)
    committer.close()
    assert (visible(tmp_path / "before"), visible(tmp_path / "now")) == ([numbers_of(5), numbers_of(6)], [numbers_of(7)])


@pytest.mark.parametrize("shown", [True, False])
def test_an_epoch_of_a_folder_that_was_moved_is_committed_where_it_is_now(tmp_path: Path, shown: bool) -> None:
    before, now = sinks.files(tmp_path / "before"), sinks.files(tmp_path / "now")
    committables = prepare(before, 5)
    if shown:
        before.committer(place()).commit(5, committables, 0)
    os.rename(tmp_path / "before", tmp_path / "now")
    assert now.committer(place()).commit(5, committables, 0) is (Verdict.ALREADY if shown else Verdict.DONE)
    assert visible(tmp_path / "now") == [numbers_of(5)]
    assert not (tmp_path / "before").exists()


def test_an_epoch_that_is_not_found_leaves_no_folders_behind(tmp_path: Path) -> None:
    committables = [
        {key: value for key, value in each.items() if key != "path"} for each in prepare(sinks.files(tmp_path / "a"), 5)
    ]
    with pytest.raises(StorageError, match=r"now/_staging/line/.* is gone: it was prepared for epoch 5 "):
        sinks.files(tmp_path / "now").committer(place()).commit(5, committables, 0)
    assert not (tmp_path / "now").exists()


def test_sweeping_keeps_what_is_pending_and_nothing_else(tmp_path: Path) -> None:
    sink = sinks.files(tmp_path)
    pending = prepare(sink, 1)
    prepare(sink, 2)
    killed = sink.writer(place("killed"))
    killed.write(batch(99))
    committer = sink.committer(place())
    committer.sweep(pending)
    assert sorted(path.name for path in (tmp_path / "_staging/line").iterdir()) == ["1-u0-1", "1-u1-1"]
    assert committer.commit(1, pending, 0) is Verdict.DONE
    assert visible(tmp_path) == [numbers_of(1)]


def test_a_writer_that_is_closed_leaves_nothing_unprepared(tmp_path: Path) -> None:
    writer = sinks.files(tmp_path).writer(place())
    writer.write(batch(1))
    writer.close()
    assert list((tmp_path / "_staging/line").iterdir()) == []


def test_parts_of_an_aborted_epoch_can_be_committed_with_the_next(tmp_path: Path) -> None:
    sink = sinks.files(tmp_path)
    writer = sink.writer(place())
    writer.write(batch(1))
    aborted = writer.prepare(1)
    writer.write(batch(2))
    assert sink.committer(place()).commit(2, [*aborted, *writer.prepare(2)], 0) is Verdict.DONE
    assert visible(tmp_path) == [[1, 2]]


def test_rolling_gathers_epochs_and_closing_shows_the_rest(tmp_path: Path) -> None:
    sink = sinks.files(tmp_path, roll=3)
    committer = sink.committer(place())
    for epoch in range(1, 6):
        assert committer.commit(epoch, prepare(sink, epoch), 0) is Verdict.DONE
        assert committer.committed() == ("line", epoch)
    assert sorted(path.name for path in tmp_path.glob("epoch=*")) == ["epoch=1-3"]
    committer.close()
    assert sorted(path.name for path in tmp_path.glob("epoch=*")) == ["epoch=1-3", "epoch=4-5"]
    assert visible(tmp_path) == [numbers_of(1) + numbers_of(2) + numbers_of(3), numbers_of(4) + numbers_of(5)]
    assert list((tmp_path / "_rolled/line").iterdir()) == []


def test_what_a_lineage_gathered_and_could_not_show_is_shown_by_the_next(tmp_path: Path) -> None:
    sink = sinks.files(tmp_path, roll=10)
    for epoch in (1, 2):
        sink.committer(place()).commit(epoch, prepare(sink, epoch), 0)  # and killed: never closed
    heir = sink.committer(place(lineage="heir"))
    assert heir.committed() == ("line", 2)
    assert heir.commit(3, prepare(sink, 3, lineage="heir"), 0) is Verdict.DONE
    assert visible(tmp_path) == [numbers_of(1) + numbers_of(2)]
    heir.close()
    assert visible(tmp_path) == [numbers_of(1) + numbers_of(2), numbers_of(3)]


class Crash(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches a kill."""


STEPS = [(os, "rename"), (os, "link"), (os, "fsync"), (shutil, "rmtree"), (Path, "mkdir"), (Path, "unlink")]


def crash_at(patch: pytest.MonkeyPatch, step: int, *, after: bool) -> Callable[[], int]:
    """Every call that changes the disk counts; number `step` dies, before or after it took effect."""
    counter = [0]

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            counter[0] += 1
            if counter[0] == step and not after:
                raise Crash
            result = real(*args, **options)
            if counter[0] == step:
                raise Crash
            return result

        return call

    for owner, name in STEPS:
        patch.setattr(owner, name, wrap(getattr(owner, name)))
    return lambda: counter[0]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("roll", [1, 2])
def test_a_crash_between_any_two_steps_leaves_whole_epochs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, roll: int, after: bool
) -> None:
    # A process is killed here, not the machine: nothing needs to reach the disk, and hundreds of syncs take their time.
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    step = 0
    while True:
        step += 1
        path = tmp_path / str(step)
        sink = sinks.files(path, format="json", roll=roll)
        epochs = {epoch: prepare(sink, epoch) for epoch in (1, 2, 3)}
        crashed = False
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, step, after=after)
            try:
                commit_all(sink, epochs)
            except Crash:
                crashed = True
        groups = [[1], [2], [3]] if roll == 1 else [[1, 2], [3]]
        for numbers in visible(path, "json"):
            assert numbers in [list(itertools.chain(*map(numbers_of, group))) for group in groups]
        # Start again: sweep, then commit everything that may be pending.
        sink.committer(place()).sweep([item for items in epochs.values() for item in items])
        verdicts = commit_all(sink, epochs)
        assert set(verdicts) <= {Verdict.DONE, Verdict.ALREADY}
        assert list(itertools.chain(*visible(path, "json"))) == numbers_of(1) + numbers_of(2) + numbers_of(3)
        if not crashed:
            assert step > 10
            return


def commit_all(sink: FileSink, epochs: dict[int, list[Json]]) -> Sequence[Verdict]:
    committer = sink.committer(place())
    verdicts = [committer.commit(epoch, items, 0) for epoch, items in epochs.items()]
    committer.close()
    return verdicts


def test_without_hard_links_parts_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    sink = sinks.files(tmp_path)
    assert sink.committer(place()).commit(1, prepare(sink, 1), 0) is Verdict.DONE
    assert visible(tmp_path) == [numbers_of(1)]


def test_options_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Formats: parquet, json, csv"):
        sinks.files(tmp_path, format="orc")
    with pytest.raises(ConfigError, match="roll=0"):
        sinks.files(tmp_path, roll=0)
    with pytest.raises(ConfigError, match="without '://'"):
        sinks.files("s3://lake/out")
    binary = pa.schema([("b", pa.binary())])
    writer = sinks.files(tmp_path, format="json").writer(SinkContext("out", "line", "u", tmp_path, binary))
    with pytest.raises(ConfigError, match="binary"):
        writer.write(pa.record_batch({"b": [b"x"]}))


def test_json_is_written_as_spark_writes_it_and_read_back(tmp_path: Path) -> None:
    schema = to_schema("x double, l array<float>, m map<string, struct<y: double>>")
    rows: list[dict[str, Any]] = [
        {"x": math.nan, "l": [math.inf, None, -math.inf], "m": [("a", {"y": math.nan}), ("b", None)]},
        {"x": 1.5, "l": [], "m": []},
        {"x": None, "l": None, "m": None},
    ]
    context = SinkContext("out", "line", "u0", Path("/nowhere"), schema)
    sink = sinks.files(tmp_path / "out", format="json")
    writer = sink.writer(context)
    writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    assert sink.committer(context).commit(1, writer.prepare(1), 1) is Verdict.DONE
    (part,) = (tmp_path / "out").glob("epoch=1/part-*")
    assert part.read_text().splitlines() == [
        '{"x":"NaN","l":["Infinity",null,"-Infinity"],"m":{"a":{"y":"NaN"},"b":null}}',
        '{"x":1.5,"l":[],"m":{}}',
        '{"x":null,"l":null,"m":null}',
    ]
    assert repr(read_all(sources.files(part, schema=schema)).rows) == repr(rows)
