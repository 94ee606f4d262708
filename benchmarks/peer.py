"""The peer: the same work in plain Structured Streaming, written as one would write it for speed.

No Python touches a row: generated rows come from Spark's own `rate-micro-batch` source and become events by expressions that
compile to Java; files are read by Spark's JSON reader with the schema given. The campaign comes from a broadcast join.

1. Update mode and `foreachBatch`: each batch hands the counts that changed to the driver, which keeps the last ones.
2. There are twenty batches of generated rows, and ten of files: as many as epochs in the micro-batch runner. Fewer and larger
   ones would be faster, for the price of later results.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measure import Run, Stopwatch, difference
from benchmarks.workload import ROWS_PER_MS, START_US, Counts, expected
from penstock.connectors.adevents import campaigns

BATCHES = 20
FILES_PER_BATCH = 2
SCHEMA = "user_id string, page_id string, ad_id string, ad_type string, event_type string, at long, ip_address string"


def run_generated(spark: Any, rows: int) -> Run:
    """Count events made from row numbers."""
    batch = -(-rows // BATCHES)
    assert batch * BATCHES == rows, f"{rows} rows are not {BATCHES} batches"
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", batch).option("numPartitions", 2).load()
    return run(spark, events(spark, source), rows, batches=BATCHES)


def run_files(spark: Any, folder: Path, rows: int) -> Run:
    """Count events read from JSON lines."""
    from pyspark.sql import functions as F

    files = len(list(folder.iterdir()))
    assert files % FILES_PER_BATCH == 0, f"{files} files are not whole batches"
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).json(str(folder))
    timed = source.select("ad_id", "event_type", F.timestamp_micros("at").alias("at"))
    return run(spark, timed, rows, batches=files // FILES_PER_BATCH, available_now=True)


def events(spark: Any, numbers: Any) -> Any:
    """Row numbers as events, the very ones that `workload` has."""
    from pyspark.sql import functions as F

    spark.conf.set("spark.sql.ansi.enabled", "false")  # multiplication wraps around
    # One literal that folds into an array: a thousand literals would be planned anew in every batch.
    ads = F.split(F.lit(",".join(campaigns().column("ad_id").to_pylist())), ",")
    kinds = F.array(F.lit("view"), F.lit("click"), F.lit("purchase"))
    bits = F.col("value") * F.lit(signed(0x9E3779B97F4A7C15)) + F.lit(signed(0x9E3779B97F4A7C15))
    mixed = numbers.select("value", bits.alias("bits"))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = F.col("bits").bitwiseXOR(F.shiftrightunsigned("bits", shift)) * F.lit(signed(factor))
        mixed = mixed.select("value", bits.alias("bits"))
    mixed = mixed.select("value", F.col("bits").bitwiseXOR(F.shiftrightunsigned("bits", 31)).alias("bits"))
    low, high = F.col("bits").bitwiseAND(F.lit(0xFFFFFFFF)), F.shiftrightunsigned("bits", 32)
    return mixed.select(
        F.element_at(ads, (F.shiftrightunsigned(low * 1000, 32) + 1).cast("int")).alias("ad_id"),
        F.element_at(kinds, (F.shiftrightunsigned(high * 3, 32) + 1).cast("int")).alias("event_type"),
        F.timestamp_micros(F.lit(START_US) + F.col("value") * (1000 // ROWS_PER_MS)).alias("at"),
    )


def signed(number: int) -> int:
    """The same 64 bits as a signed number."""
    return number - (1 << 64) if number >= 1 << 63 else number


def run(spark: Any, source: Any, rows: int, *, batches: int, available_now: bool = False) -> Run:
    """Count, and stop after so many batches of equal size."""
    from pyspark.sql import functions as F

    table = campaigns()
    lookup = spark.createDataFrame(
        list(zip(table["ad_id"].to_pylist(), table["campaign_id"].to_pylist())), "ad_id string, campaign_id string"
    )
    lookup = lookup.cache()
    lookup.count()
    views = source.filter("event_type = 'view'").select("ad_id", "at").withWatermark("at", "0 seconds")
    counts = views.join(F.broadcast(lookup), "ad_id").groupBy("campaign_id", F.window("at", "10 seconds").alias("w")).count()
    result = counts.select("campaign_id", F.unix_micros("w.start").alias("start"), "count")
    found: Counts = Counter()
    finished = threading.Event()

    def each(changed: Any, batch: int) -> None:
        if batch < batches:
            for name, start, count in changed.collect():
                found[name, start] = count
            watch.commit((batch + 1) * rows // batches)
        if batch + 1 >= batches:
            finished.set()

    with tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as checkpoint:
        writer = result.writeStream.outputMode("update").option("checkpointLocation", checkpoint).foreachBatch(each)
        watch = Stopwatch()
        query = (writer.trigger(availableNow=True) if available_now else writer).start()
        while not finished.wait(0.2):
            if not query.isActive:
                raise RuntimeError(f"the query ended early: {query.exception()}")
        query.stop()
    problem = difference(found, expected(rows))
    return Run(rows, watch.commits, not problem, problem)
