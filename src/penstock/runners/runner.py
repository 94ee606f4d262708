"""`Runner`: how a pipeline is run. Subclasses say where tasks live; the rest is the same for all."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock.errors import ConfigError, Fix
from penstock.plan.physical import PhysicalPlan
from penstock.runners.attempts import Attempts
from penstock.runners.conductor import Conductor
from penstock.runners.job import Job, graceful_interrupt
from penstock.runners.options import Options, resolve
from penstock.runners.restoring import asked
from penstock.state.backend import RocksDB, require


class Runner:
    """Base of all runners. Options are keyword-only and may be left out: see `runners.options`."""

    name: ClassVar[str]
    task_outlives_epoch: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        self._given = options

    def run(self, pipeline: Any, *, restore: Any = "latest") -> Job:
        """Run until bounded input ends or Ctrl-C stops it gracefully."""
        job = self._launch(pipeline, restore)
        with graceful_interrupt(job):
            while not job.done:  # in slices, so that signals are seen
                job.conductor.halted.wait(0.2)
        job.wait()
        return job

    def start(self, pipeline: Any, *, restore: Any = "latest") -> Job:
        """Start. Returns once storage is claimed, what to start from is decided and the sinks are checked; raises if that fails."""
        job = self._launch(pipeline, restore)
        try:
            job.wait_until_begun()
        except KeyboardInterrupt:
            job.cancel()
            raise
        return job

    def _launch(self, pipeline: Any, restore: Any) -> Job:
        restore = asked(restore)
        plan = pipeline.plan()
        options = self.options(plan.name)
        require(options.state)
        return Job(self.conductor(plan, options, restore))

    def options(self, pipeline: str) -> Options:
        """The options of a run, each with where it comes from."""
        options = resolve(pipeline, {name: value for name, value in self._given.items() if value is not None})
        if isinstance(options.state, RocksDB) and not self.task_outlives_epoch:
            raise ConfigError(
                f'state="rocksdb" ({options.origins["state"]}) cannot be used by {type(self).__name__}: its tasks end with their'
                " epoch, and would copy all of the state into RocksDB for each one",
                fix=Fix(
                    "rocksdb.runner",
                    "Columnar tables hold more than fits in memory, too; RocksDB is for a runner whose tasks stay. "
                    'Write: state="columnar", or pen.Continuous(state="rocksdb")',
                ),
            )
        return options

    def describe(self, pipeline: str = "") -> dict[str, object]:
        """Name and options, for explain()."""
        return {"name": self.name, **self.options(pipeline).describe()}

    def conductor(self, plan: PhysicalPlan, options: Options, restore: Any) -> Conductor:
        """The conductor of a run."""
        return Conductor(
            plan,
            options,
            runner=self.name,
            parallelism=self.parallelism(options),
            restore=restore,
            make_attempts=self.attempts,
        )

    def parallelism(self, options: Options) -> int:
        """Tasks per stage."""
        return options.parallelism or 1

    def attempts(self, conductor: Conductor) -> Attempts:
        """How this runner runs attempts."""
        raise NotImplementedError
