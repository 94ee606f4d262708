"""Throughput and latency of Penstock, beside plain Structured Streaming on the same Spark: `python -m benchmarks.run`."""
