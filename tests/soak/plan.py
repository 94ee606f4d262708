"""What is killed, where and in which order. One seed, one plan.

A **step** is one fault and the recovery from it. A worker can be killed while it restores only if something makes it restore, so
the step `restore.before` holds two kills: a worker at a random moment, and another (in the micro-batch runner, where tasks live
for an epoch only, the driver) on the way back.

    kind       what happens                                                   where
    worker     SIGKILL to a Python worker                                     at a named point, or while it reads rows
    executor   SIGKILL to an executor's JVM                                   local-cluster, at random moments
    driver     SIGKILL to the driver and its JVM; started again afterwards    at a named point, or at random moments
    zombie     SIGSTOP until others took over, then SIGCONT                   a worker; or a driver whose lock is lost
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

LOCAL, CLUSTER = "local[8]", "local-cluster[2,1,1024]"
WORKER_POINTS = ("source.read", "barrier.aligned", "store.before", "store.between", "compact.merged", "store.after", "ack.before")
DRIVER_POINTS = ("publish.before", "publish.after", "commit.before", "commit.after", "collect.before")
RESTORE = "restore.before"
RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Step:
    """One fault."""

    kind: str  # worker, executor, driver, zombie or zombie driver
    point: str = RANDOM

    @property
    def kills(self) -> int:
        """How many signals it takes."""
        return 2 if self.point == RESTORE else 1


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job and the faults it has to take."""

    name: str
    runner: str
    master: str
    steps: tuple[Step, ...]
    conf: dict[str, str] = field(default_factory=dict)  # of Spark

    @property
    def kills(self) -> int:
        """Over all steps."""
        return sum(step.kills for step in self.steps)


def points(kind: str, names: tuple[str, ...]) -> list[Step]:
    """A step at each point."""
    return [Step(kind, name) for name in names]


def full() -> list[JobPlan]:
    """Every kind of kill, every point twice, both runners: 32 workers, 8 executors, 13 drivers, 8 zombies."""
    zombies = [Step("zombie")] * 3 + [Step("zombie driver")]
    both = points("worker", WORKER_POINTS) + points("driver", DRIVER_POINTS) + zombies
    cluster = [Step("executor")] * 4 + [Step("worker")] * 2 + [Step("driver")]
    # The two restore steps hold a worker at a random moment each; in the micro-batch runner the second victim is the driver.
    return [
        JobPlan("continuous", "continuous", LOCAL, (*both, *[Step("worker", RESTORE)] * 2, *[Step("worker")] * 3)),
        JobPlan("microbatch", "microbatch", LOCAL, (*both, Step("driver", RESTORE), *[Step("worker")] * 2)),
        JobPlan("continuous-cluster", "continuous", CLUSTER, tuple(cluster)),
        JobPlan("microbatch-cluster", "microbatch", CLUSTER, tuple(cluster), {"spark.speculation": "true"}),
    ]


def choose(
    jobs: list[JobPlan], *, runner: str | None = None, master: str | None = None, kinds: set[str] | None = None
) -> list[JobPlan]:
    """The part of a plan that was asked for."""
    chosen = []
    for job in jobs:
        if (runner in (None, job.runner)) and (master is None or job.master.startswith(master + "[")):
            steps = tuple(step for step in job.steps if kinds is None or step.kind in kinds)
            chosen.append(replace(job, steps=steps))
    return [job for job in chosen if job.steps]


def shuffled(jobs: list[JobPlan], rng: random.Random) -> list[JobPlan]:
    """The same steps of each job in another order."""
    return [replace(job, steps=tuple(rng.sample(job.steps, len(job.steps)))) for job in jobs]


def rounds(jobs: list[JobPlan], kills: int, rng: random.Random) -> Iterator[JobPlan]:
    """Jobs with just so many kills in all: part of the plan, or the plan again and again."""
    while kills > 0:
        fits = [(job, step) for job in jobs for step in job.steps]
        taken: dict[str, list[Step]] = {job.name: [] for job in jobs}
        for job, step in rng.sample(fits, len(fits)):
            if step.kills <= kills:
                taken[job.name].append(step)
                kills -= step.kills
        if not any(taken.values()):
            return
        yield from (replace(job, steps=tuple(taken[job.name])) for job in jobs if taken[job.name])
