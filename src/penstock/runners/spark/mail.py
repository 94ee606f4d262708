"""How messages travel between the levels of an epoch: as rows of Spark, whatever the pipeline's rows look like.

    target int | channel int | seq long | payload binary

1. A channel is `exchange x tasks + sending task`. Its frames are numbered: first the sender's uid, then messages, the last of
   them the barrier. Spark promises no order, so frames are sorted; a missing, repeated or damaged one is a `DecodeError`.
2. In an epoch each channel carries `[batches..., Watermark or Idle, (End), Barrier]`: of several watermarks only the last is
   sent, after all rows. Channels are played one after the other, so time moves once, when the last channel's watermark is
   there: rows of epoch n meet the time of epoch n - 1, and timers fire in the epoch in which they became due.
3. Frames for deeper levels pass through. So do reports (acknowledgements): they reach the driver only if every task on their
   way succeeded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.plan.physical import Exchange
from penstock.protocol.messages import Barrier, Batch, End, Idle, Message, Watermark
from penstock.runners.spark import frames
from penstock.runners.spark.orders import Facts, Report

__all__ = ["FAILURES", "FRAME_ROWS", "REPORTS", "SCHEMA", "Inbox", "Outbox", "Outlet", "channel_of"]

FRAME_ROWS = "target int, channel int, seq long, payload binary"
SCHEMA = pa.schema([("target", pa.int32()), ("channel", pa.int32()), ("seq", pa.int64()), ("payload", pa.binary())])

REPORTS = -1  # the channel of what tasks tell the driver
FAILURES = -2  # reports that end the epoch: sent to every partition
OUTBOX_BYTES = 4 * 1024 * 1024  # handed to Spark at a time


class Inbox:
    """The frames that came for one partition of a level."""

    def __init__(self, facts: Facts, level: int) -> None:
        incoming = [e for stage in facts.plan.stages if stage.level == level for e in stage.incoming]
        self._mine = pa.array([channel_of(e, source, facts) for e in incoming for source in range(facts.parallelism)], pa.int32())
        self._frames: dict[int, list[tuple[int, pa.Buffer]]] = defaultdict(list)
        self.target = -1
        self.failed = False

    def take_in(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Keep what is for this level, and give back what goes further."""
        for batch in batches:
            if not batch.num_rows:
                continue
            self.target = batch.column(0)[0].as_py()
            mine = pc.is_in(batch.column(1), self._mine)
            for row in pc.indices_nonzero(mine).to_pylist():
                payload = batch.column(3)[row].as_buffer()
                self._frames[batch.column(1)[row].as_py()].append((batch.column(2)[row].as_py(), payload))
            others = batch.filter(pc.invert(mine))
            if others.num_rows:
                self.failed = self.failed or FAILURES in others.column(1).to_pylist()
                yield pa.RecordBatch.from_arrays(others.columns, schema=SCHEMA)

    def frames(self, channel: int) -> Iterator[frames.Frame]:
        """The frames of a channel in order, without a gap."""
        decoder = frames.Decoder()
        for _, payload in sorted(self._frames.pop(channel, ()), key=lambda numbered: numbered[0]):
            yield from decoder.feed(memoryview(payload).cast("B"))
        decoder.finish()


class Outbox:
    """Frames on their way to Spark."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, bytes]] = []
        self._bytes = 0
        self.sent = 0  # bytes, in all

    def put(self, target: int, channel: int, seq: int, payload: bytes) -> None:
        """Add a frame."""
        self._rows.append((target, channel, seq, payload))
        self._bytes += len(payload)
        self.sent += len(payload)

    def report(self, target: int, channel: int, seq: int, report: Report) -> None:
        """Add what a task tells the driver."""
        self.put(target, channel, seq, frames.encode_control(report.to_json(), 0))

    @property
    def full(self) -> bool:
        """Whether it is time to hand them over."""
        return self._bytes >= OUTBOX_BYTES

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Hand them over."""
        if self._rows:
            columns = [pa.array(column, field.type) for column, field in zip(zip(*self._rows), SCHEMA)]
            self._rows, self._bytes = [], 0
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class Outlet:
    """One outgoing channel of a task. Time is told once, after the rows and before what ends the epoch."""

    def __init__(self, outbox: Outbox, channel: int, target: int, uid: str) -> None:
        self._outbox, self._channel, self._target = outbox, channel, target
        self._seq = 1
        self._time: Watermark | None = None
        self._idle = False
        outbox.put(target, channel, 0, frames.encode_control({"say": "uid", "uid": uid}, 0))

    def push(self, message: Message) -> None:
        """Send it, now or before the barrier."""
        match message:
            case Watermark():
                self._time, self._idle = message, False
            case Idle():
                self._idle = True
            case Batch():
                self._idle = False  # rows wake a channel
                self._send(message)
            case End():
                self._time, self._idle = None, False  # the end of all time
                self._send(message)
            case Barrier():
                if self._time is not None:
                    self._send(self._time)
                if self._idle:
                    self._send(Idle())
                self._send(message)

    def _send(self, message: Message) -> None:
        self._outbox.put(self._target, self._channel, self._seq, b"".join(frames.encode(message, self._seq)))
        self._seq += 1


def channel_of(exchange: Exchange, source: int, facts: Facts) -> int:
    """The number of a channel in the frames of an epoch."""
    return exchange.id * facts.parallelism + source
