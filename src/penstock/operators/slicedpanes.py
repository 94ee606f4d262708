"""Panes of windows that overlap: rows are folded into slices, and slices into the windows, so a row costs the same in one or sixty.

That works where no window has to know at which row it fires: nothing but time fires before the watermark, and what each late row
fires is sent as one. In all other cases `PaneAggregate` gives each row to each of its windows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate import ROWS_COLUMN, WINDOW_COLUMN
from penstock.operators.groups import Groups
from penstock.operators.operator import Origin, Out, keep
from penstock.operators.panes import PAIR, Ints, PaneAggregate, Panes, Rules, with_windows
from penstock.operators.sessions import fires_by_rows
from penstock.state.columns import gathered
from penstock.triggers import EACH_ROW, AfterWatermark
from penstock.windows import Sliding


class SlicedPanes(PaneAggregate):
    """As `PaneAggregate`, for windows that overlap."""

    def process(self, batch: pa.RecordBatch, origin: Origin | None) -> Iterator[Out]:
        """Set rows aside whose last window has closed, fold the others into slices, and these into their windows."""
        shape, times = self._shape, self._times(batch)
        assert isinstance(shape, Sliding)
        late = self._closed(batch, shape.last_start_of(times) + shape.size)
        good = ~late
        if late.any():
            yield from self._set_aside(keep(batch, late))
        yield from self._refuse(batch, good, origin)
        slices = pa.field(WINDOW_COLUMN, pa.int64(), nullable=False)
        rows = keep(batch.append_column(slices, pa.array(shape.slice_of(times))), good)
        parts, _ = self._accumulators.partial(rows, [*self._names, WINDOW_COLUMN])
        numbers, starts, ends = shape.assign(parts.column(WINDOW_COLUMN).to_numpy())
        windowed = with_windows(gathered(parts.drop_columns([WINDOW_COLUMN]), numbers), starts, ends)
        yield from self._work(keep(windowed, ~self._closed(windowed, ends)))

    def _sizes(self, windowed: pa.RecordBatch, groups: Groups) -> Ints:
        sizes = np.zeros(len(groups.first), np.int64)
        np.add.at(sizes, groups.of, windowed.column(ROWS_COLUMN).to_numpy())
        return sizes

    def _next(self, panes: Panes, left: Ints) -> tuple[Ints, Ints]:
        return left, np.where(panes.passed, left, 1)  # after the watermark each row is a firing

    def _folded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self._accumulators.merge(rows, [PAIR])


def in_slices(rules: Rules) -> bool:
    """Whether the rows of these windows can be folded into slices first."""
    trigger = rules.trigger
    late = trigger.or_each_row if isinstance(trigger, AfterWatermark) else trigger
    counts = rules.emit != "append" and (fires_by_rows(trigger) or (late != EACH_ROW and fires_by_rows(late)))
    return isinstance(rules.shape, Sliding) and rules.emit != "delta" and not rules.retracts and not counts
