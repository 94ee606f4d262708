"""What a task remembers: keyed tables and timers, and the files they become.

Read in this order:

1. `xxh64`      the hash, over whole columns.
2. `keygroups`  key -> hash -> group -> task; the canonical key types.
3. `columns`    Arrow columns as numpy arrays, and back.
4. `texts`      columns of strings, without a Python object for each.
5. `index`      from the hash of a key to where it is, for whole batches.
6. `runs`       the file format: immutable sorted Arrow runs, looked up by search.
7. `history`    a state as a list of runs; freezing, storing, compacting.
8. `table`      `KeyedTable`: values by key.
9. `timers`     `TimerTable`: keys by due time.
10. `backend`   which kind of table a run uses.
11. `packing`   rows as bytes, and back.
12. `rocksdb`   `RocksTable`: a `KeyedTable` with a working copy in RocksDB.
"""
