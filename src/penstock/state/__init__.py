"""What a task remembers: keyed tables and timers, and the files they become.

Read in this order:

1. `xxh64`      the hash, over whole columns.
2. `keygroups`  key -> hash -> group -> task; the canonical key types.
3. `columns`    Arrow columns as numpy arrays, and back.
4. `texts`      columns of strings, without a Python object for each.
5. `index`      from the hash of a key to where it is, for whole batches; `near` the same for few.
6. `runfile`    the file format: what is in a file of a run.
7. `runs`       immutable sorted Arrow runs, looked up by search.
8. `history`    a state as a list of runs; freezing, storing, compacting.
9. `spec`       what a table holds.
10. `overlay`   the rows of a table that are in memory.
11. `table`     `KeyedTable`: values by key.
12. `timers`    `TimerTable`: keys by due time.
13. `backend`   which kind of table a run uses.
14. `packing`   rows as bytes, and back.
15. `rocksdb`   `RocksTable`: a `KeyedTable` with a working copy in RocksDB.
"""
