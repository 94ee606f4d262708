"""Frames: what was written comes back, and nothing else does."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from penstock.errors import ChannelError, DecodeError
from penstock.protocol.messages import TIME_MAX, TIME_MIN, Barrier, Batch, End, Idle, Message, Watermark
from penstock.runners.spark import frames
from penstock.runners.spark.frames import Decoder, control_of, encode, encode_control, message_of, read_messages, write_messages

SCHEMA = pa.schema(
    [pa.field("ad", pa.string(), nullable=False), pa.field("n", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))]
)
ROWS = pa.record_batch(
    [pa.array(["a", "b", ""]), pa.array([1, None, -3]), pa.array([0, 1, 2], SCHEMA.field("at").type)], schema=SCHEMA
)


def batch(rows: pa.RecordBatch) -> Batch:
    return Batch(rows, rows.num_rows, rows.nbytes)


MESSAGES: list[Message] = [
    batch(ROWS),
    Watermark(TIME_MIN),
    Watermark(TIME_MAX),
    Idle(),
    Barrier(7),
    batch(ROWS.slice(1, 1)),
    batch(ROWS.slice(0, 0)),
    End(),
]


def same(a: Message, b: Message) -> bool:
    if isinstance(a, Batch) and isinstance(b, Batch):
        return bool(a.payload.equals(b.payload)) and a.rows == b.rows
    return a == b


def all_same(a: list[Message], b: list[Message]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def test_what_is_written_is_read() -> None:
    assert all_same(list(read_messages(write_messages(MESSAGES), SCHEMA)), MESSAGES)


@pytest.mark.parametrize("size", [1, 3, 31, 32, 33, 1000])
def test_the_size_of_the_pieces_does_not_matter(size: int) -> None:
    data = write_messages(MESSAGES)
    decoder, found = Decoder(), []
    for start in range(0, len(data), size):
        found += decoder.feed(data[start : start + size])
    decoder.finish()
    assert all_same([message_of(frame, SCHEMA) for frame in found], MESSAGES)


def test_a_large_frame_is_received_into_its_place() -> None:
    data = memoryview(write_messages([batch(ROWS), End()]))
    decoder = Decoder()
    assert decoder.feed(data[:40]) == []
    missing = decoder.missing
    decoder.room()[:] = data[40 : 40 + missing]
    (frame,) = decoder.took(missing)
    assert same(message_of(frame, SCHEMA), batch(ROWS))
    assert [message_of(f, SCHEMA) for f in decoder.feed(data[40 + missing :])] == [End()]


def test_every_flipped_byte_is_noticed() -> None:
    data = write_messages([batch(ROWS), Watermark(5), Barrier(3), Idle(), End()])
    for place in range(len(data)):
        for bits in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[place] ^= bits
            with pytest.raises(DecodeError):
                list(read_messages(bytes(damaged), SCHEMA))


def test_a_damaged_header_is_noticed_before_its_payload_came() -> None:
    whole = encode_control({"say": "hello"}, 0)
    for place in range(frames.HEADER_BYTES):
        damaged = bytearray(whole[: frames.HEADER_BYTES])
        damaged[place] ^= 0x10
        with pytest.raises(DecodeError):
            Decoder().feed(bytes(damaged))


def test_every_cut_is_noticed() -> None:
    data = write_messages([batch(ROWS), Watermark(5)])
    whole = {0, sum(memoryview(piece).nbytes for piece in encode(batch(ROWS), 0))}
    for cut in range(len(data)):
        decoder = Decoder()
        decoder.feed(data[:cut])
        if cut in whole:
            decoder.finish()
        else:
            with pytest.raises(DecodeError, match="ends within"):
                decoder.finish()


def test_a_lost_or_repeated_frame_is_noticed() -> None:
    first, second = encode_control({"say": "a"}, 0), encode_control({"say": "b"}, 1)
    for data in (second, first + first, first + encode_control({"say": "c"}, 2)):
        with pytest.raises(DecodeError, match="was due"):
            Decoder().feed(data)


def test_random_bytes_are_no_frames() -> None:
    chance = random.Random(7)
    for _ in range(300):
        with pytest.raises(DecodeError):
            Decoder().feed(chance.randbytes(64))


def test_a_length_above_the_cap_is_refused_before_anything_is_allocated() -> None:
    huge = frames.CHECKED.pack(frames.MAGIC, frames.VERSION, frames.BATCH, 0, 2**32 - 1, 0, 0)
    head = huge + (frames.xxh3_64_intdigest(huge) & 0xFFFFFFFF).to_bytes(4, "little")
    with pytest.raises(DecodeError, match="allowed here"):
        Decoder().feed(head)
    with pytest.raises(DecodeError, match="allowed here"):
        Decoder(bytes_max=10).feed(encode_control({"say": "more than ten bytes"}, 0))
    with pytest.raises(ChannelError, match="too large"):
        frames.header(frames.BATCH, 0, frames.FRAME_BYTES_MAX + 1, 0)


def test_rows_of_another_schema_are_refused() -> None:
    data = b"".join(encode(batch(pa.record_batch({"x": [1.5, 2.5]})), 0))
    with pytest.raises(DecodeError, match="holds no rows"):
        list(read_messages(data, SCHEMA))


@pytest.mark.parametrize("kind", [frames.BATCH, frames.WATERMARK, frames.IDLE, frames.BARRIER, frames.END, frames.CONTROL])
def test_a_frame_with_the_wrong_payload_is_refused(kind: int) -> None:
    (frame,) = Decoder().feed(frames.marker(kind, 0, b"xyz"))
    with pytest.raises(DecodeError):
        message_of(frame, SCHEMA)


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"{}", b'{"say":1}', b"\xff\xfe", b"[" * 50_000])
def test_a_control_frame_says_something(payload: bytes) -> None:
    (frame,) = Decoder().feed(frames.marker(frames.CONTROL, 0, payload))
    with pytest.raises(DecodeError):
        control_of(frame)


def test_control_frames_are_json() -> None:
    (frame,) = Decoder().feed(encode_control({"say": "ack", "epoch": 3, "text": "é"}, 0))
    assert control_of(frame) == {"say": "ack", "epoch": 3, "text": "é"}
    assert json.loads(frame.payload.to_pybytes())["epoch"] == 3
    with pytest.raises(DecodeError, match="no control frame"):
        control_of(Decoder().feed(b"".join(encode(Idle(), 0)))[0])
