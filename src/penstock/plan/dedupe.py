"""`drop_duplicates`: the first row of each key, for as long as the key is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import Fix
from penstock.eventtime import NEEDS_TIME, duration_text
from penstock.plan.joins import BOUND_MAX
from penstock.plan.keyed import KeyedRows, StateLayout, late_rows
from penstock.plan.logical import Node, Used


@dataclass(frozen=True, eq=False, kw_only=True)
class DropDuplicates(KeyedRows):
    """The first row of each key; a key is forgotten after `within` of event time (None: never)."""

    within: int | None
    kind = "drop_duplicates"
    verb = "drop_duplicates"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input.changes == "retract":
            columns = ", ".join(f'"{name}"' for name in self.by)
            raise self.error(
                "rows of this stream can be withdrawn, and drop_duplicates cannot take back that it let one through",
                fix=Fix(
                    "dedupe.of-changes", f'Count instead. Write: .key_by({columns}).aggregate(n=pen.count(), name="{self.name}")'
                ),
            )
        if self.within is not None and not self.input.timed:
            raise self.error(
                f'within="{duration_text(self.within)}" is about event time, and this stream has none',
                fix=Fix("dedupe.time", f"Leave within= out, and keys are remembered for ever; or: {NEEDS_TIME.text}"),
            )
        if self.within is not None and not 0 <= self.within <= BOUND_MAX:
            raise self.error(
                f'within="{duration_text(self.within)}" is no length of time', fix=Fix("dedupe.within", 'Write: within="1h"')
            )
        self._like(self.input)

    def needs(self, used: Used) -> list[set[str]]:
        return [used["main"] | set(self.by) | used["late"]]

    def output(self, port: str) -> Node:
        return late_rows(self) if port == "late" else self

    def states(self) -> Sequence[StateLayout]:
        if self.within is None:
            return [self._layout("seen", (), ())]
        return [self._layout("seen", (), [pa.field("__time", pa.int64(), nullable=False)]), self._layout("timers", (), None)]

    def params(self) -> dict[str, Any] | None:
        return {"within": self.within}

    def text(self) -> str:
        within = "" if self.within is None else f" within {duration_text(self.within)}"
        return f"drop_duplicates {', '.join(self.by)}{within} name={self.name}"
