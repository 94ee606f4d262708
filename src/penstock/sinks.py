"""Where rows go: `from penstock import sinks`.

Each function returns a `Sink`: a value that says where to write. What a sink promises is its `kind`: transactional
(exactly once), idempotent (effectively once) or at-least-once.
"""

from __future__ import annotations

import os

from penstock.connectors import console as _console
from penstock.connectors import discard as _discard
from penstock.connectors import filesink as _filesink
from penstock.connectors import foreach as _foreach
from penstock.connectors import memorysink as _memorysink

__all__ = ["console", "discard", "files", "foreach_batch", "memory"]


def console(*, rows: int = 20, name: str = "console") -> _console.ConsoleSink:
    """Print each committed epoch as a table, up to `rows` rows of it: the first, or the newest where rows replace earlier ones.

    counts.write(sinks.console())
    """
    return _console.console(rows=rows, name=name)


def discard(*, name: str = "discard") -> _discard.Discard:
    """Nowhere: rows are computed and forgotten. To see how fast a pipeline is, or to close a stream that nobody reads.

    p.dead_letters.write(sinks.discard())
    """
    return _discard.discard(name=name)


def files(
    path: str | os.PathLike[str],
    *,
    format: str = "parquet",
    roll: int = 1,
    change: str | None = None,
    name: str | None = None,
) -> _filesink.FileSink:
    """Files in a folder, exactly once: readers see whole epochs, in directories `epoch=<n>`.

        counts.write(sinks.files("out/counts", format="parquet", roll=60))
        pq.read_table(...) of glob("out/counts/epoch=*/part-*")

    Args:
        path: a folder of its own, local or mounted.
        format: "parquet", "json" (lines) or "csv".
        roll: how many epochs share a directory. More means fewer files, which appear later: after so many epochs with
            rows, or when the job stops.
        change: take streams whose rows replace or withdraw earlier ones, and say in this column which: 1 for a row that is
            added or put, -1 for one that is deleted or withdrawn.
        name: of the sink; the folder's name if left out.
    """
    return _filesink.files(path, format=format, roll=roll, change=change, name=name)


def foreach_batch(call: _foreach.Call, *, idempotent: bool = False, name: str | None = None) -> _foreach.ForeachBatch:
    """Call a function with the rows of each committed epoch, in the driver's process.

        def save(rows: pa.RecordBatchReader, epoch: pen.Epoch) -> None:
            requests.post(URL, data=encode(rows.read_all()), headers={"Idempotency-Key": epoch.token})

        counts.write(sinks.foreach_batch(save, idempotent=True), name="webhook")

    After a failure it may be called again for the same epoch, then with the same rows and the same `epoch.token`.

    Args:
        idempotent: a second call with the same token changes nothing; the pipeline is then effectively-once.
    """
    return _foreach.foreach_batch(call, idempotent=idempotent, name=name)


def memory(name: str = "memory", *, key: str | list[str] | None = None) -> _memorysink.MemorySink:
    """Keep rows in this process, under a name.

        out = sinks.memory("out")
        counts.write(out)
        out.rows()                       # a list of dicts; table() is an Arrow table, clear() forgets

    A run that starts anew replaces the rows that an earlier one left under the name; one that goes on from a checkpoint or savepoint
    adds to them. `with sinks.memory("out") as out:` begins and ends without rows, whatever else a process has run.

    Args:
        key: of an update stream the last row per key is kept; its own key if left out.
    """
    return _memorysink.memory(name, key=key)
