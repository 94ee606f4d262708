"""One file being read, whatever its format: what `files.py` asks of a format, and what it gets.

1. `offset` (JSON) says how far the file was read. Opening the file again at an offset that was given out continues exactly there.
2. A `Piece` holds rows and the bad records that stand before or between them; each is given out once.
3. `finished` is true once everything was given out and the file has nothing more, as far as one can tell now.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import pyarrow as pa

from penstock.connectors.connector import BadRecord, Json

__all__ = ["FileReader", "Piece", "Undecodable", "check_utf8", "pick"]


class Undecodable(Exception):
    """These bytes are not rows of the schema. Never leaves this package: it becomes a `BadRecord` in the end."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one file, none of them empty-handed: `batch` is None where there were bad records only."""

    batch: pa.RecordBatch | None
    bad: tuple[BadRecord, ...] = ()


class FileReader(abc.ABC):
    """The rows of one file after an offset."""

    offset: Json

    @abc.abstractmethod
    def read(self, rows_max: int) -> Piece | None:
        """The next rows, or None if there are none now. Afterwards `offset` is the place behind them."""

    @property
    @abc.abstractmethod
    def finished(self) -> bool:
        """Whether everything was given out."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The file's bytes: what is remembered of a finished file."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the file."""


def pick(schema: pa.Schema, columns: tuple[str, ...]) -> pa.Schema:
    """The fields to decode for `columns`. Counting rows needs no column, but a decoder needs one to count by: the first."""
    return pa.schema([schema.field(name) for name in columns or schema.names[:1]])


def check_utf8(block: bytes) -> None:
    """Undecodable, unless these bytes are UTF-8."""
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Undecodable(f"not UTF-8: {error.reason} at byte {error.start}") from error
