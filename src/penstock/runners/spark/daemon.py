"""The process that Spark forks its Python workers from, with everything they need imported before the first of them.

    spark.python.daemon.module = penstock.runners.spark.daemon

Spark's own daemon imports next to nothing, so that each worker imports this package, numpy and Arrow by itself: half a second and more
for every process, at a job's start and again after a worker was lost. Here it is done once, and a worker is a fork away.

1. Spark's reason not to is that libraries may start threads when they are imported, and threads do not survive a fork. Numpy starts
   none where Spark says that a worker has one core (`OMP_NUM_THREADS`); of Arrow it is one of its allocator's, which knows of forks.
   Nothing of the user's is imported.
2. What is there before the fork is frozen: no collection looks at it again, so that processes go on sharing its memory.
3. Standard output belongs to Spark, which reads from it where to connect to.
4. Spark hangs up on workers that were idle for a minute. They try to answer, and Spark's daemon would print a traceback for each.
"""

from __future__ import annotations

import gc
import importlib
import sys
import traceback
from types import SimpleNamespace

__all__ = ["IMPORTED", "print_failure"]

IMPORTED = (
    "pyspark.worker",
    "pyarrow.acero",
    "penstock.runners.continuous.worker",
    "penstock.runners.spark.levels",
)


def main() -> None:
    """Import, and be Spark's daemon from then on."""
    from pyspark import daemon

    daemon.traceback = SimpleNamespace(**{**vars(traceback), "print_exc": print_failure})
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    daemon.manager()


def print_failure() -> None:
    """In a worker: why it ends. That Java has hung up is no failure: whoever cares was told another way."""
    if not isinstance(sys.exception(), BrokenPipeError):
        traceback.print_exc()


if __name__ == "__main__":
    main()
