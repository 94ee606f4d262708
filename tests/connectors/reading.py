"""Reading a source as a runner would: in chunks, from positions that went through JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.connectors.connector import BadRecord, Json, Source, SourceContext


@dataclass
class Seen:
    """What came out of a split, and the position after each chunk."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    positions: list[Json] = field(default_factory=list)
    rows_before: list[int] = field(default_factory=list)
    bad_before: list[int] = field(default_factory=list)
    ended: bool = False


def context(source: Source, job_dir: Path = Path("/nowhere"), columns: tuple[str, ...] | None = None) -> SourceContext:
    return SourceContext(source.name, job_dir, tuple(source.schema.names) if columns is None else columns)


def read(
    source: Source,
    split: str = "0",
    position: Json = None,
    *,
    rows_max: int = 1000,
    job_dir: Path = Path("/nowhere"),
    columns: tuple[str, ...] | None = None,
) -> Seen:
    """Everything there is now after `position`."""
    seen = Seen()
    # A position is stored as JSON; what JSON cannot hold would be lost.
    reader = source.open(split, json.loads(json.dumps(position)), context(source, job_dir, columns))
    try:
        while (chunk := reader.poll(rows_max)) is not None:
            if chunk.batch is not None:
                assert 0 < chunk.batch.num_rows <= rows_max
                assert tuple(chunk.batch.schema.names) == context(source, job_dir, columns).columns
                seen.rows += chunk.batch.to_pylist()
            seen.bad += chunk.bad
            seen.positions.append(json.loads(json.dumps(chunk.position)))
            seen.rows_before.append(len(seen.rows))
            seen.bad_before.append(len(seen.bad))
            if chunk.ended:
                seen.ended = True
                break
    finally:
        reader.close()
    return seen


def read_all(source: Source, **options: Any) -> Seen:
    """All splits of a bounded source, one after the other."""
    together = Seen(ended=True)
    for split in source.splits():
        seen = read(source, split, **options)
        assert seen.ended
        together.rows += seen.rows
        together.bad += seen.bad
    return together


def check_resume(source: Source, *, rows_max: int, again_max: int, job_dir: Path = Path("/nowhere")) -> None:
    """Stopping after any chunk and reading on from its position gives what reading straight through gives."""
    for split in source.splits():
        straight = read(source, split, rows_max=10_000, job_dir=job_dir)
        pieces = read(source, split, rows_max=rows_max, job_dir=job_dir)
        assert pieces.rows == straight.rows
        assert pieces.bad == straight.bad
        for position, rows, bad in zip(pieces.positions, pieces.rows_before, pieces.bad_before):
            rest = read(source, split, position, rows_max=again_max, job_dir=job_dir)
            assert rest.rows == straight.rows[rows:]
            assert rest.bad == straight.bad[bad:]
            assert rest.ended == straight.ended
