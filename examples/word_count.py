"""Count words as they arrive on a socket.

In one terminal serve lines of text, in another count them:

    nc -lk 9999
    penstock run examples/word_count.py                          # on Spark, in micro-batches
    penstock run examples/word_count.py --runner continuous      # on Spark, row by row
    penstock run examples/word_count.py --runner local           # without Spark

or `python examples/word_count.py`. Each second prints the words that were counted in it, with their count so far. Ctrl-C stops.
"""

from collections.abc import Iterator

import penstock as pen
from penstock import sinks, sources


def words(line: str) -> Iterator[str]:
    yield from line.split()


pipeline = (
    pen.Pipeline("word-count")
    .read(sources.socket("localhost", 9999))  # one column, value: string
    .flat_map(words)  # str in, str out: again one column, value
    .key_by(word="value")
    .aggregate(n=pen.count(), name="counts")  # a running count: an updated row for each row
    .write(sinks.console())  # write returns the pipeline
)

if __name__ == "__main__":
    pipeline.run()  # on Spark, pen.MicroBatch(); or run(pen.Continuous(parallelism=4)), or run(pen.Local()) without Spark
