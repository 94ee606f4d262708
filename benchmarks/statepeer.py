"""The peer of keyed state: Spark's `transformWithState` from Python, with the RocksDB state store.

A count per key: one `get` and one `update` for each key of a batch. Every batch holds the same keys, each once. Batches are large, so
that what a batch costs in itself counts little; the first one, in which Python starts, is left out. The row form, not the pandas form:
pandas would make a data frame per key. It needs the protobuf package, which Penstock does not.
"""

from __future__ import annotations

import importlib
import tempfile
import threading
from typing import Any

from benchmarks.measure import Stopwatch
from benchmarks.systems import PARALLELISM, USUAL_JAVA, session

BATCHES = 4
CONF = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.shuffle.partitions": str(PARALLELISM),
}


def run(keys: int) -> dict[str, Any]:
    """Keys per second."""
    if not available():
        return {"rates": {}, "figures": {"transformWithState": "needs the protobuf package"}, "verified": True, "note": ""}
    commits, counts = count(session(java=USUAL_JAVA), keys)
    since, until = commits[0][0], commits[-1][0]
    rate = (BATCHES - 1) * keys / (until - since)
    right = len(counts) == keys and set(counts.values()) == {BATCHES}
    note = "" if right else f"{len(counts)} keys, counts {sorted(set(counts.values()))[:5]} instead of {keys} with {BATCHES}"
    rates = {"transformWithState": round(rate)}
    figures = {
        "keys, batches of all of them": f"{keys:,}, {BATCHES}, the first not counted",
        "get and update": f"{rate / 1e3:.1f} thousand keys per second",
    }
    return {"rates": rates, "figures": figures, "verified": right, "note": note}


def available() -> bool:
    """Whether Spark finds what it needs."""
    try:
        importlib.import_module("google.protobuf")
    except ImportError:
        return False
    return True


def count(spark: Any, keys: int) -> tuple[list[tuple[float, int]], dict[int, int]]:
    """When each batch was done, and the last count of each key."""
    from pyspark.sql import functions as F

    before = {name: spark.conf.get(name, None) for name in CONF}
    for name, value in CONF.items():
        spark.conf.set(name, value)
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", keys).option("numPartitions", PARALLELISM).load()
    grouped = source.select((F.col("value") % keys).alias("key")).groupBy("key")
    counted = grouped.transformWithState(processor(), "key long, n long", "Update", "None")
    counts: dict[int, int] = {}
    finished = threading.Event()

    def each(changed: Any, batch: int) -> None:
        if batch < BATCHES:
            counts.update((key, n) for key, n in changed.collect())
            watch.commit((batch + 1) * keys)
        if batch + 1 >= BATCHES:
            finished.set()

    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as checkpoint:
        writer = counted.writeStream.outputMode("update").option("checkpointLocation", checkpoint).foreachBatch(each)
        watch = Stopwatch()
        query = writer.start()
        while not finished.wait(0.2):
            if not query.isActive:
                raise RuntimeError(f"the query ended early: {query.exception()}")
        query.stop()
    for name, value in before.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)
    return watch.commits, counts


def processor() -> Any:
    """The count, as Spark wants it."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.n = handle.getValueState("n", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            old = self.n.get()
            n = (old[0] if old else 0) + sum(1 for _ in rows)
            self.n.update((n,))
            yield Row(key=key[0], n=n)

        def close(self) -> None:
            pass

    return Count()
