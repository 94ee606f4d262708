"""Messages as bytes: what travels between the workers of one job, and between worker and driver.

    header, 32 bytes, little endian:
        magic "PNSK" | version u8 | kind u8 | zero u16 | length u32 | number u64 | payload checksum u64 | header checksum u32
    payload, `length` bytes

The payload of a batch is one Arrow IPC message without its schema, which both ends know from the plan; of a watermark or a
barrier one integer; of a control frame JSON. Nothing is ever unpickled.

1. Any changed or missing byte is a `DecodeError`: the header has a checksum of its own, so that a wrong length is noticed at once
   and not after waiting for bytes that never come.
2. Frames of a channel are numbered from 0. The receiver counts along (`Decoder`), so a lost or repeated frame is a `DecodeError`
   too.
3. A length above the cap is refused before anything is allocated. Before a peer has shown its token the cap is small.
4. Checksums guard against accidents, tokens against strangers: rows come only from peers of the same job, so their structure is
   checked (`validate()`), not each value.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from penstock.errors import ChannelError, DecodeError
from penstock.protocol.messages import Barrier, Batch, End, Idle, Message, Watermark

__all__ = [
    "CONTROL",
    "FRAME_BYTES_MAX",
    "HEADER_BYTES",
    "HELLO_BYTES_MAX",
    "Decoder",
    "Frame",
    "control_of",
    "encode",
    "encode_control",
    "message_of",
    "read_messages",
    "write_messages",
]

MAGIC: Final = b"PNSK"
VERSION: Final = 1
BATCH, WATERMARK, IDLE, BARRIER, END, CONTROL = range(1, 7)
KINDS: Final = frozenset((BATCH, WATERMARK, IDLE, BARRIER, END, CONTROL))

HEADER: Final = struct.Struct("<4sBBHIQQI")
HEADER_BYTES: Final = HEADER.size
CHECKED: Final = struct.Struct("<4sBBHIQQ")  # the part of the header that its own checksum covers
NUMBER: Final = struct.Struct("<q")
FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
HELLO_BYTES_MAX: Final = 64 * 1024
CHECKSUM_OF_NOTHING: Final = xxh3_64_intdigest(b"")

assert HEADER_BYTES == 32, "the format above says so"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it came: checked, but its payload not yet understood."""

    kind: int
    number: int
    payload: pa.Buffer


# --- writing
# -------------------------------------------------------------------------------------------------------------------------------


def header(kind: int, number: int, length: int, checksum: int) -> bytes:
    """The first 32 bytes of a frame."""
    if length > FRAME_BYTES_MAX:
        raise ChannelError(
            f"a message of {length:,} bytes is more than the {FRAME_BYTES_MAX:,} a channel carries: one of its rows is too large"
        )
    checked = CHECKED.pack(MAGIC, VERSION, kind, 0, length, number, checksum)
    return checked + (xxh3_64_intdigest(checked) & 0xFFFFFFFF).to_bytes(4, "little")


def encode(message: Message, number: int) -> list[bytes | memoryview]:
    """A message as buffers to be sent one after the other; rows are not copied."""
    match message:
        case Batch(payload):
            body = memoryview(payload.serialize())
            return [header(BATCH, number, body.nbytes, xxh3_64_intdigest(body)), body]
        case Watermark(time):
            return [marker(WATERMARK, number, NUMBER.pack(time))]
        case Barrier(epoch):
            return [marker(BARRIER, number, NUMBER.pack(epoch))]
        case Idle():
            return [header(IDLE, number, 0, CHECKSUM_OF_NOTHING)]
        case End():
            return [header(END, number, 0, CHECKSUM_OF_NOTHING)]


def marker(kind: int, number: int, payload: bytes) -> bytes:
    """A small frame in one piece."""
    return header(kind, number, len(payload), xxh3_64_intdigest(payload)) + payload


def encode_control(value: dict[str, Any], number: int) -> bytes:
    """A control frame."""
    return marker(CONTROL, number, json.dumps(value, separators=(",", ":"), allow_nan=False).encode())


def write_messages(messages: Iterable[Message]) -> bytes:
    """Messages as one run of bytes, numbered from 0."""
    return b"".join(piece for number, message in enumerate(messages) for piece in encode(message, number))


# --- reading
# -------------------------------------------------------------------------------------------------------------------------------


class Decoder:
    """Bytes in pieces of any size, frames out.

    Small frames are cut out of what `feed` is given. Of a large one, the part that is still missing can be received straight into
    its place: `room()` and `took()`.
    """

    __slots__ = ("_have", "_head", "_header", "_payload", "_view", "bytes_max", "number")

    def __init__(self, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.number = 0  # of the next frame
        self._head = b""  # an incomplete header
        self._header: tuple[int, int, int, int] | None = None  # kind, length, number, checksum of the payload
        self._payload: Any = None
        self._view: memoryview = memoryview(b"")
        self._have = 0

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames that are complete now."""
        view = memoryview(data)
        frames: list[Frame] = []
        while True:
            if self._header is None:
                need = HEADER_BYTES - len(self._head)
                self._head += bytes(view[:need])
                view = view[need:]
                if len(self._head) < HEADER_BYTES:
                    return frames
                self._begin(self._head)
            taken = min(self.missing, len(view))
            if taken:
                self._view[self._have : self._have + taken] = view[:taken]
                self._have += taken
                view = view[taken:]
            if self.missing:
                return frames
            frames.append(self._complete())

    @property
    def missing(self) -> int:
        """How many bytes of the frame under way are still to come; 0 if its header is not there yet."""
        return self._header[1] - self._have if self._header else 0

    @property
    def need(self) -> int:
        """How many bytes the next step needs: the rest of the header, or of the payload. Never more than one frame."""
        return self.missing if self._header else HEADER_BYTES - len(self._head)

    def room(self) -> memoryview:
        """Where the missing bytes go."""
        return self._view[self._have :]

    def took(self, count: int) -> list[Frame]:
        """`count` bytes were put into `room()`."""
        self._have += count
        return [] if self.missing else [self._complete()]

    def finish(self) -> None:
        """The stream has ended; it must not end within a frame."""
        if self._head or self._header is not None:
            raise DecodeError(f"the stream ends within frame {self.number}")

    def _begin(self, head: bytes) -> None:
        magic, version, kind, zero, length, number, checksum, own = HEADER.unpack(head)
        if magic != MAGIC:
            raise DecodeError(f"this is no frame of ours: it starts with {magic!r}")
        if own != xxh3_64_intdigest(head[: CHECKED.size]) & 0xFFFFFFFF:
            raise DecodeError(f"the header of frame {self.number} is damaged")
        if version != VERSION:
            raise DecodeError(f"a frame of format {version}, and this version reads {VERSION}")
        if kind not in KINDS or zero:
            raise DecodeError(f"frame {self.number} has the unknown kind {kind}")
        if number != self.number:
            raise DecodeError(f"frame {number} came where {self.number} was due")
        if length > self.bytes_max:
            raise DecodeError(f"frame {number} has {length:,} bytes, more than the {self.bytes_max:,} allowed here")
        self._head = b""
        self._header = (kind, length, number, checksum)
        # Arrow's memory: rows are used where they were received, and are aligned as its kernels like it.
        self._payload = pa.allocate_buffer(length)
        self._view = memoryview(self._payload).cast("B") if length else memoryview(b"")
        self._have = 0

    def _complete(self) -> Frame:
        assert self._header is not None
        kind, _, number, checksum = self._header
        if xxh3_64_intdigest(self._view) != checksum:
            raise DecodeError(f"the payload of frame {number} is damaged")
        frame = Frame(kind, number, self._payload)
        self._header, self._payload, self._view = None, None, memoryview(b"")
        self.number += 1
        return frame


def message_of(frame: Frame, schema: pa.Schema) -> Message:
    """The message in a frame of a channel whose rows have `schema`."""
    match frame.kind:
        case 1:
            return batch_of(frame, schema)
        case 2:
            return Watermark(number_of(frame))
        case 3:
            nothing_of(frame)
            return Idle()
        case 4:
            return Barrier(number_of(frame))
        case 5:
            nothing_of(frame)
            return End()
    raise DecodeError(f"frame {frame.number} is no message for a task")


def batch_of(frame: Frame, schema: pa.Schema) -> Batch:
    """Rows, checked for structure."""
    try:
        rows = pa.ipc.read_record_batch(frame.payload, schema)
        rows.validate()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DecodeError(f"frame {frame.number} holds no rows of this channel: {error}") from None
    return Batch(rows, rows.num_rows, frame.payload.size)


def number_of(frame: Frame) -> int:
    """The one integer of a watermark or a barrier."""
    if frame.payload.size != NUMBER.size:
        raise DecodeError(f"frame {frame.number} has {frame.payload.size} bytes and should have {NUMBER.size}")
    return int(NUMBER.unpack(frame.payload)[0])


def nothing_of(frame: Frame) -> None:
    """An empty payload."""
    if frame.payload.size:
        raise DecodeError(f"frame {frame.number} has {frame.payload.size} bytes and should have none")


def control_of(frame: Frame) -> dict[str, Any]:
    """The JSON object in a control frame."""
    if frame.kind != CONTROL:
        raise DecodeError(f"frame {frame.number} is no control frame")
    try:
        value = json.loads(frame.payload.to_pybytes())
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"frame {frame.number} holds no JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("say"), str):
        raise DecodeError(f"frame {frame.number} says nothing")
    return value


def read_messages(data: bytes | memoryview, schema: pa.Schema) -> Iterator[Message]:
    """The messages that `write_messages` made."""
    decoder = Decoder()
    frames = decoder.feed(data)
    decoder.finish()
    for frame in frames:
        yield message_of(frame, schema)
