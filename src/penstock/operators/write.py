"""The last operator of a branch: hands rows to a sink's writer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from penstock.connectors.connector import Json, Writer
from penstock.exact import exactly
from penstock.operators.operator import CHANGE_COLUMN, Operator, Origin, Out


class Write(Operator):
    """Give rows to a writer, in the sink's schema.

    Input:   rows. State: none; what was written since the last snapshot is in the writer, and `prepare` describes it.
    Output:  none.
    """

    def __init__(self, name: str, writer: Writer, schema: pa.Schema) -> None:
        super().__init__(name)
        self._writer, self._schema = writer, schema

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Write. A row that may be withdrawn says so in a column that the sink can see."""
        names = batch.schema.names
        if CHANGE_COLUMN not in names and not set(names).issuperset(self._schema.names):
            batch = batch.append_column(CHANGE_COLUMN, pa.repeat(pa.scalar(1, pa.int8()), batch.num_rows))
        arrays = [conform(batch.column(f.name if f.name in names else CHANGE_COLUMN), f.type) for f in self._schema]
        self._writer.write(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        yield from ()

    def prepare(self, epoch: int) -> Sequence[Json]:
        """Make the epoch's rows durable."""
        return self._writer.prepare(epoch)

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()


def conform(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in exactly this type: dictionaries decoded, integers widened."""
    return exactly(array, kind)
