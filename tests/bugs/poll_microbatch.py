"""A source that keeps the contract ("poll never blocks") by asking its server in a thread. How far does it get, by delay and runner?

poll_microbatch.py RUNNER DELAY_S EPOCHS_EVERY
"""

import json
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa

import penstock as pen
from penstock import sinks
from penstock.connectors.connector import Chunk, Reader, Source, SourceContext

TOTAL = 5_000
WITHIN_S = 60
SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("price", pa.float64())])


@dataclass(frozen=True)
class Http(Source):
    """Rows of a server that has 200 of them for each question."""

    url: str
    name: str = "http"
    schema: pa.Schema = SCHEMA
    bounded: bool = True

    def splits(self) -> tuple[str, ...]:
        return ("0",)

    def open(self, split: str, position: Any, context: SourceContext) -> Reader:
        return HttpReader(self.url, position or 0, context)


class HttpReader(Reader):
    """Asks in a thread, for a few answers ahead, so that `poll` need not wait."""

    def __init__(self, url: str, position: int, context: SourceContext) -> None:
        self.url, self.position, self.columns = url, position, list(context.columns)
        self.answers: list[Any] = []
        self.stopped = threading.Event()
        threading.Thread(target=self.ask, daemon=True).start()

    def ask(self) -> None:
        at = self.position
        while not self.stopped.is_set():
            if len(self.answers) > 5:
                time.sleep(0.01)
                continue
            try:
                with urllib.request.urlopen(f"{self.url}?after={at}", timeout=30) as response:
                    got = json.load(response)
            except OSError as error:
                self.answers.append(error)
                return
            at += len(got["rows"])
            self.answers.append((at, got))
            if got["end"]:
                return

    def poll(self, rows_max: int) -> Chunk | None:
        if not self.answers:
            return None
        got = self.answers.pop(0)
        if isinstance(got, Exception):
            raise got
        self.position, answer = got
        rows = pa.RecordBatch.from_pylist(answer["rows"], schema=SCHEMA).select(self.columns)
        return Chunk(rows if rows.num_rows else None, self.position, ended=answer["end"])

    def backlog(self) -> bool:
        return bool(self.answers)

    def close(self) -> None:
        self.stopped.set()


def serve(delay_s: float) -> str:
    """A server that takes its time; where it is."""

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(delay_s)
            after = int(self.path.partition("after=")[2])
            rows = [{"id": i, "k": f"k{i % 5}", "price": i * 0.5} for i in range(after, min(after + 200, TOTAL))]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"rows": rows, "end": after + len(rows) >= TOTAL}).encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


def main(runner: str, delay_s: float, every: str) -> None:
    out = sinks.memory("out")
    p = pen.Pipeline("polled")
    p.read(Http(serve(delay_s))).write(out)
    made: Any = {
        "local": lambda: pen.Local(snapshot_every=every),
        "microbatch": lambda: pen.MicroBatch(parallelism=1, snapshot_every=every),
        "batch": lambda: pen.Batch(parallelism=1),
        "continuous": lambda: pen.Continuous(parallelism=1, snapshot_every=every),
    }[runner]()
    job, began = p.start(made), time.monotonic()
    while not job.done and time.monotonic() - began < WITHIN_S:
        time.sleep(0.1)
    status, found = job.status(), [row["id"] for row in out.rows()]
    print(
        f"{runner}, an answer after {delay_s} s: {status.state}, {len(found)} rows of {TOTAL}, {len(set(found))} different ones"
    )
    print(f"after {time.monotonic() - began:.1f} s and {status.epoch} epochs", file=sys.stderr)
    if not job.done:
        job.cancel()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
