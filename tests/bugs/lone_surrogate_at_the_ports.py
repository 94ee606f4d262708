"""Somebody on this machine greets every port that a running job listens on, with a token that no encoding has. Does the job go on?"""

import contextlib
import os
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

import penstock as pen
from penstock import sinks, sources

STRANGERS = 7  # on each port


def numbers(index: Any, seed: int) -> dict[str, Any]:
    return {"n": index}


def is_ours(process: int) -> bool:
    """Whether it is this process, or one that it has started, directly or not."""
    while process not in (0, os.getpid()):
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process != 0


def listening() -> set[int]:
    """Ports on which this job's Python processes listen. Spark has some of its own, which are not Penstock's to defend."""
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    ports = {line[9]: int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A"}
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "comm").read_text().startswith("python") and is_ours(int(process.name)):
                found |= {ports[name[8:-1]] for name in open_files(process) if name.startswith("socket:") and name[8:-1] in ports}
    return found


def open_files(process: Path) -> Iterator[str]:
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # of this very look, say
            yield os.readlink(descriptor)


def greeting(payload: bytes) -> bytes:
    head = struct.pack("<4sBBHIQQ", b"PNSK", 1, 6, 0, len(payload), 0, xxh3_64_intdigest(payload))
    return head + struct.pack("<I", xxh3_64_intdigest(head) & 0xFFFFFFFF) + payload


def main() -> None:
    p = pen.Pipeline("greeted")
    rows = p.read(sources.generate(numbers, schema="n bigint not null", rate=2_000))
    rows.key_by("n % 7 as key").aggregate(n=pen.count(), name="counts").write(sinks.memory("greeted"))
    before = listening()
    with tempfile.TemporaryDirectory() as storage:
        job = p.start(pen.Continuous(parallelism=2, storage=storage, snapshot_every="200ms"))
        deadline = time.monotonic() + 60
        while job.status().epoch < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        ports = listening() - before
        print("more than two ports listen:", len(ports) > 2)
        for port in ports:
            for _ in range(STRANGERS):
                with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
                    stranger.sendall(greeting(b'{"say":"hello","token":"\\ud800"}'))
        epoch = job.status().epoch
        while job.status().epoch < epoch + 5 and job.status().state == "running" and time.monotonic() < deadline:
            time.sleep(0.05)
        status = job.status()
        print("state", status.state, "restarts", status.restarts, "checkpoints went on:", status.epoch >= epoch + 5)
        job.cancel()


if __name__ == "__main__":
    main()
