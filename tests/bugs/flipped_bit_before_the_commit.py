"""A bit flips in a file of output that is prepared, and whose epoch was published; then the job starts again and commits it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import penstock as pen
from penstock import sinks, sources
from penstock.errors import PenstockError

ROWS = 100_000


def numbers(index: Any, seed: int) -> dict[str, Any]:
    return {"n": index}


def run() -> None:
    p = pen.Pipeline("flipped")
    p.read(sources.generate(numbers, schema="n bigint not null", rows=ROWS, rate=5_000)).write(sinks.files("out"))
    p.run(pen.Local(storage="store", snapshot_every="100ms", restarts=0))


def main() -> None:
    Path("fault").write_text(json.dumps({"point": "commit.before", "epoch": 2, "signal": "KILL"}))
    subprocess.run([sys.executable, __file__, "run"], env={**os.environ, "PENSTOCK_FAULT_FILE": "fault"}, check=False)
    part = next(Path("out/_staging").glob("*/2-*/part-*"))
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 4
    part.write_bytes(data)
    try:
        run()
    except PenstockError as error:
        print("refused:", str(error).splitlines()[0])
    shown = list(Path("out").glob("epoch=2/part-*"))
    print("epoch 2 is shown:", bool(shown))
    for path in shown:
        print(pq.ParquetFile(path).read().num_rows, "rows of it")


if __name__ == "__main__":
    run() if sys.argv[1:] == ["run"] else main()
