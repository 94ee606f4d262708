"""`Pipeline`: what the user wrote, under one name. It collects sinks and yields a plan; runners take it from there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from penstock.api import joins
from penstock.api.arguments import at_line
from penstock.api.stream import Stream
from penstock.api.where import CellRun, cell_run, user_line
from penstock.connectors.connector import Source
from penstock.errors import Fix, PlanError, brief
from penstock.names import check_name
from penstock.plan import logical
from penstock.plan.explain import explain_plan
from penstock.plan.lookup import Table
from penstock.plan.physical import PhysicalPlan, compile_plan
from penstock.policy import Policy, policy_of

log = logging.getLogger("penstock")

default_runner: Callable[[], Any] | None = None
"""Set by `penstock` itself: what `run()` uses when no runner is given. (The API knows no runner.)"""


class Pipeline:
    """A named set of streams from sources to sinks.

    >>> import penstock as pen
    >>> from penstock import sinks, sources
    >>> out = sinks.memory("doc-totals")
    >>> p = pen.Pipeline("doc")
    >>> _ = (
    ...     p.read(sources.memory([{"user": "a", "price": 3}, {"user": "a", "price": 4}], schema="user string, price bigint"))
    ...     .key_by("user").aggregate(total="sum(price)", name="totals").write(out)
    ... )
    >>> _ = p.run(pen.Local())
    >>> out.rows()
    [{'user': 'a', 'total': 7}]
    """

    def __init__(self, name: str, *, on_error: str | Policy = "fail", max_parallelism: int = 128) -> None:
        self.name = check_name(name, "a pipeline", where=user_line())
        self.policy = at_line(lambda: policy_of(on_error))
        if not 1 <= max_parallelism <= 32768:
            raise PlanError(f"max_parallelism={max_parallelism} is out of range (1 to 32768)", where=user_line())
        self.on_error, self.max_parallelism = self.policy.then, max_parallelism
        self._writes: list[tuple[logical.Write, CellRun | None]] = []

    def read(self, source: Source, *, name: str | None = None, on_error: str | None = None) -> Stream:
        """The rows of a source. `on_error`: what becomes of records that cannot be decoded, if not what the pipeline says."""
        if not isinstance(source, Source):
            raise PlanError(
                f"read needs a source, and got {brief(source)}",
                fix=Fix("read.source", "Make one of it, sources.memory(rows) of rows and sources.files(path) of files"),
                where=user_line(),
            )
        label = at_line(lambda: check_name(source.name if name is None else name, "a source"))
        then = at_line(lambda: policy_of(on_error, self.policy)).then
        return Stream(self, logical.Read(where=user_line(), source=source, name=label, on_error=then))

    def table(self, source: Any, *, key: str | Sequence[str], refresh: Any = None, name: str | None = None) -> Table:
        """Rows by key, for `Stream.lookup`: a bounded source, an Arrow table or a DataFrame, read whole by each task that needs it.

        Args:
            key: the columns by which a row is found; no two rows have the same.
            refresh: read it again after so long: `"10m"`.
        """
        return joins.table(source, key=key, refresh=refresh, name=name)

    @property
    def dead_letters(self) -> Stream:
        """The rows that could not be decoded or processed: step, source, split, position, error, record, event_time."""
        return Stream(self, logical.DeadLetters(where=user_line()))

    def add(self, write: logical.Write) -> None:
        """Take up a sink; `Stream.write` calls it. A cell of a notebook that runs again replaces all that it wrote before; where
        cells cannot be told apart, a later one replaces the sink of the same name."""
        at_line(lambda: check_name(write.name, "a sink"))
        run, kept = cell_run(), []
        for old, before in self._writes:
            again = run.is_rerun_of(before) if run and before else False
            if again is None and old.name == write.name:
                log.warning("sink %r takes the place of that of %s", write.name, old.where)
            elif not again:
                kept.append((old, before))
        self._writes = [*kept, (write, run)]

    def plan(self) -> PhysicalPlan:
        """What will run."""
        if not self._writes:
            raise PlanError(
                f"pipeline {self.name!r} writes nothing",
                fix=Fix("pipeline.sink", "End a stream with a sink. Write: .write(sinks.console())"),
            )
        dead_last = sorted(
            (write for write, _ in self._writes),
            key=lambda write: any(isinstance(n, logical.DeadLetters) for n in logical.walk((write,))),
        )
        return compile_plan(self.name, dead_last, max_parallelism=self.max_parallelism)

    def explain(self, runner: Any = None) -> str:
        """The logical and physical plan and the guarantee, as text."""
        return explain_plan(self.plan(), None if runner is None else runner.describe())

    def run(self, runner: Any = None, *, restore: Any = "latest") -> Any:
        """Run until bounded input ends, or Ctrl-C stops it gracefully. Returns the job."""
        return self._runner(runner).run(self, restore=restore)

    def start(self, runner: Any = None, *, restore: Any = "latest") -> Any:
        """Start, and return the `Job`. What keeps it from starting is raised: storage that is held, a restore that does not fit."""
        return self._runner(runner).start(self, restore=restore)

    def _runner(self, runner: Any) -> Any:
        if runner is None:
            assert default_runner is not None, "penstock sets the default runner"
            return default_runner()
        if not hasattr(runner, "start"):
            raise PlanError(
                f"{brief(runner)} is no runner",
                fix=Fix("run.runner", "Write: pen.Local(), or pen.MicroBatch(), or pen.Continuous()"),
                where=user_line(),
            )
        return runner
