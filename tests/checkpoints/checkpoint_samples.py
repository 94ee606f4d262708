"""Manifests and files to test with."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.checkpoints.manifest import (
    FieldEntry,
    Manifest,
    OperatorEntry,
    PendingEntry,
    SinkEntry,
    SourceEntry,
    SplitEntry,
    StateEntry,
)
from penstock.checkpoints.storage import Store
from penstock.state import runfile

SCHEMA = (FieldEntry(1, "n", "int64", False),)


def handle(path: str, data: bytes = b"rows") -> dict[str, Any]:
    return {
        "path": path,
        "kind": "run",
        "first_group": 0,
        "last_group": 127,
        "rows": 1,
        "bytes": len(data),
        "checksum": runfile.checksum(pa.py_buffer(data)),
        "min_due": None,
        "max_due": None,
    }


def write_file(store: Store, path: str, data: bytes = b"rows") -> dict[str, Any]:
    store.write(path, data)
    return handle(path, data)


def step(name: str = "counts", handles: tuple[dict[str, Any], ...] = (), **changes: Any) -> OperatorEntry:
    fields: dict[str, Any] = {
        "kind": "window",
        "keys": (("ad", "string"),),
        "inputs": ("clicks",),
        "params": {"size_us": 10_000_000},
        "states": (StateEntry("windows", "value", SCHEMA, handles=handles, floors=((0, 127, -5),)),),
        "watermarks": ((0, 63, 10), (64, 127, 20)),
    }
    return OperatorEntry(name, **{**fields, **changes})


def manifest(epoch: int = 1, term: int = 1, *, handles: tuple[dict[str, Any], ...] = (), **changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "pipeline": "ads",
        "lineage": "abc123",
        "attempt": 1,
        "runner": "local",
        "created_us": 1_700_000_000_000_000,
        "processing_time_us": 1_700_000_000_000_001,
        "fingerprint": "f00d",
        "max_parallelism": 128,
        "penstock": "0.1.0",
        "operators": (step(handles=handles),),
        "sources": (SourceEntry("clicks", "files", {"0": SplitEntry({"file": "a.csv", "row": 3}, watermark=-1)}),),
        "sinks": (SinkEntry("out", "files"),),
        "counters": {"clicks.rows_in": 3},
    }
    return Manifest(epoch=epoch, term=term, **{**fields, **changes})


PENDING = (PendingEntry(1, "out", ({"dir": "_staging/x"},)),)
