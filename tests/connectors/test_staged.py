"""Sinks whose rows wait in the job directory: foreach_batch, memory and console."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import sinks
from penstock.connectors import staged
from penstock.connectors.connector import Json, Sink, SinkContext, Verdict
from penstock.connectors.foreach import Epoch
from penstock.errors import BadNameError, CorruptError, FunctionError, StorageError

SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64())])


def place(job_dir: Path, *, lineage: str = "line", uid: str = "u0", keys: tuple[str, ...] = ()) -> SinkContext:
    return SinkContext("out", lineage, uid, job_dir, SCHEMA, keys)


def prepare(sink: Sink, job_dir: Path, epoch: int, *writers: list[tuple[str, int]], lineage: str = "line") -> list[Json]:
    found: list[Json] = []
    for index, rows in enumerate(writers):
        writer = sink.writer(place(job_dir, lineage=lineage, uid=f"u{index}"))
        for user, number in rows:
            writer.write(pa.record_batch([[user], [number]], schema=SCHEMA))
        found += writer.prepare(epoch)
        writer.close()
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


class Calls:
    def __init__(self, fail: int = 0) -> None:
        self.seen: list[tuple[list[dict[str, Any]], Epoch]] = []
        self.fail = fail

    def __call__(self, rows: pa.RecordBatchReader, epoch: Epoch) -> None:
        self.seen.append((rows.read_all().to_pylist(), epoch))
        if len(self.seen) <= self.fail:
            raise ConnectionError("the other side is away")


def test_the_function_gets_the_rows_of_each_epoch_once(tmp_path: Path) -> None:
    calls = Calls()
    sink = sinks.foreach_batch(calls, name="out")
    committer = sink.committer(place(tmp_path))
    for epoch in (1, 2):
        committables = prepare(sink, tmp_path, epoch, [("ann", epoch), ("bob", 2)], [], [("eve", 3)])
        assert len(committables) == 2
        assert committer.commit(epoch, committables, 0) is Verdict.DONE
        assert committer.commit(epoch, committables, 1) is Verdict.ALREADY
        assert sink.committer(place(tmp_path)).commit(epoch, committables, 2) is Verdict.ALREADY
    assert [(epoch.number, epoch.attempt) for _, epoch in calls.seen] == [(1, 0), (2, 0)]
    assert calls.seen[1][0] == [{"user": "ann", "n": 2}, {"user": "bob", "n": 2}, {"user": "eve", "n": 3}]
    assert committer.committed() == ("line", 2)
    assert [path.name for path in (tmp_path / "staging/out").iterdir()] == ["delivered.json"]


def test_an_epoch_without_rows_is_no_call(tmp_path: Path) -> None:
    calls = Calls()
    sink = sinks.foreach_batch(calls, name="out")
    assert sink.committer(place(tmp_path)).commit(1, prepare(sink, tmp_path, 1, [], []), 0) is Verdict.DONE
    assert calls.seen == []


def test_a_call_that_fails_is_made_again_with_the_same_rows_and_token_even_after_later_epochs(tmp_path: Path) -> None:
    calls = Calls(fail=1)
    sink = sinks.foreach_batch(calls, name="out")
    first = prepare(sink, tmp_path, 1, [("ann", 1)])
    second = prepare(sink, tmp_path, 2, [("bob", 2)])
    committer = sink.committer(place(tmp_path))
    with pytest.raises(FunctionError) as raised:
        committer.commit(1, first, 0)
    assert isinstance(raised.value.__cause__, ConnectionError)
    assert committer.commit(2, second, 0) is Verdict.DONE
    assert committer.commit(1, first, 1) is Verdict.DONE
    assert committer.commit(1, first, 2) is Verdict.ALREADY
    assert committer.commit(2, second, 1) is Verdict.ALREADY
    assert committer.committed() == ("line", 2)
    assert calls.seen[0][0] == calls.seen[2][0]
    assert calls.seen[0][1].token == calls.seen[2][1].token


def test_tokens_differ_between_epochs_sinks_and_lineages(tmp_path: Path) -> None:
    calls = Calls()
    sink = sinks.foreach_batch(calls, name="out")
    for lineage, epoch in (("a", 1), ("a", 2), ("b", 1)):
        committables = prepare(sink, tmp_path, epoch, [("ann", 1)], lineage=lineage)
        assert sink.committer(place(tmp_path, lineage=lineage)).commit(epoch, committables, 0) is Verdict.DONE
    assert len({epoch.token for _, epoch in calls.seen}) == 3


def test_a_crash_between_delivery_and_its_mark_repeats_the_call_and_after_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Crash

    calls = Calls()
    sink = sinks.foreach_batch(calls, name="out")
    committables = prepare(sink, tmp_path, 1, [("ann", 1)], [("bob", 2)])
    with monkeypatch.context() as patch:
        patch.setattr(staged, "write_mark", die)
        with pytest.raises(Crash):
            sink.committer(place(tmp_path)).commit(1, committables, 0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", die)
        with pytest.raises(Crash):
            sink.committer(place(tmp_path)).commit(1, committables, 1)
    assert len(calls.seen) == 2
    assert calls.seen[0][0] == calls.seen[1][0]
    assert sink.committer(place(tmp_path)).commit(1, committables, 2) is Verdict.ALREADY
    assert len(calls.seen) == 2
    assert [path.name for path in (tmp_path / "staging/out").iterdir()] == ["delivered.json"]


def test_every_byte_of_a_staged_file_matters(tmp_path: Path) -> None:
    calls = Calls()
    sink = sinks.foreach_batch(calls, name="out")
    committables = prepare(sink, tmp_path, 1, [("ann", 1)])
    path = tmp_path / "staging/out" / committables[0]["file"]
    whole = path.read_bytes()
    committer = sink.committer(place(tmp_path))
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 0x10]) + whole[index + 1 :])
        with pytest.raises(CorruptError, match="not what was prepared"):
            committer.commit(1, committables, 0)
    os.truncate(path, len(whole) - 1)
    with pytest.raises(CorruptError):
        committer.commit(1, committables, 0)
    path.unlink()
    with pytest.raises(StorageError, match="is gone"):
        committer.commit(1, committables, 0)
    assert calls.seen == []


def test_sweeping_keeps_what_is_pending_and_nothing_else(tmp_path: Path) -> None:
    sink = sinks.foreach_batch(Calls(), name="out")
    pending = prepare(sink, tmp_path, 1, [("ann", 1)])
    prepare(sink, tmp_path, 2, [("bob", 1)])
    sink.writer(place(tmp_path, uid="killed")).write(pa.record_batch([["x"], [1]], schema=SCHEMA))
    committer = sink.committer(place(tmp_path))
    committer.sweep(pending)
    assert [path.name for path in (tmp_path / "staging/out").iterdir()] == ["1-u0.arrow"]
    assert committer.commit(1, pending, 0) is Verdict.DONE


def test_what_a_sink_promises_is_said() -> None:
    def save(rows: pa.RecordBatchReader, epoch: Epoch) -> None: ...

    assert sinks.foreach_batch(save).name == "save"
    assert sinks.foreach_batch(save).kind == "at-least-once"
    assert sinks.foreach_batch(save, idempotent=True).kind == "idempotent"
    assert sinks.foreach_batch(save).accepts == {"append", "update", "retract"}
    assert sinks.console().describe() == "console, at-least-once"
    assert sinks.memory().kind == "transactional"
    assert pickle.loads(pickle.dumps(sinks.memory("x", key="a"))) == sinks.memory("x", key=["a"])
    with pytest.raises(BadNameError, match="cannot be the name of a sink"):
        sinks.memory("../x")


def test_memory_keeps_appended_rows_once(tmp_path: Path) -> None:
    sink = sinks.memory("appended")
    sink.clear()
    assert sink.rows() == []
    assert sink.table() is None
    for epoch in (1, 2):
        committables = prepare(sink, tmp_path, epoch, [("ann", epoch)])
        path = tmp_path / "staging/out" / committables[0]["file"]
        data = path.read_bytes()
        sink.committer(place(tmp_path)).commit(epoch, committables, 0)
        # As if the process had died before it could note the delivery.
        path.write_bytes(data)
        (tmp_path / "staging/out/delivered.json").unlink()
        sink.committer(place(tmp_path)).commit(epoch, committables, 1)
    assert sinks.memory("appended").rows() == [{"user": "ann", "n": 1}, {"user": "ann", "n": 2}]
    table = sink.table()
    assert table is not None
    assert table.schema == SCHEMA
    sink.clear()
    assert sink.rows() == []


@pytest.mark.parametrize("keys_of", ["stream", "sink"])
def test_memory_keeps_the_last_row_per_key_of_an_update_stream(tmp_path: Path, keys_of: str) -> None:
    sink = sinks.memory("updated", key="user" if keys_of == "sink" else None)
    sink.clear()
    context = place(tmp_path, keys=("user",) if keys_of == "stream" else ())
    for epoch in (1, 2):
        committables = prepare(sink, tmp_path, epoch, [("ann", epoch), ("ann", epoch * 10)], [("bob", 5)] if epoch == 1 else [])
        sink.committer(context).commit(epoch, committables, 0)
    assert sink.rows() == [{"user": "ann", "n": 20}, {"user": "bob", "n": 5}]
    sink.clear()


def test_the_console_shows_the_first_rows_of_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = sinks.console(rows=2)
    sink.committer(place(tmp_path)).commit(7, prepare(sink, tmp_path, 7, [("[ann]", 1), ("bob", 2), ("eve", 3)]), 0)
    sink.committer(place(tmp_path)).commit(8, [], 0)
    shown = capsys.readouterr().out
    assert "out, epoch 7" in shown
    assert "[ann]" in shown
    assert "eve" not in shown
    assert "2 of 3 rows" in shown
    assert "epoch 8" not in shown
