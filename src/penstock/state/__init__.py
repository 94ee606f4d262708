"""What a task remembers: keyed tables and timers, and the files they become.

Read in this order:

1. `xxh64`      the hash, over whole columns.
2. `keygroups`  key -> hash -> group -> task; the canonical key types.
3. `columns`    Arrow columns as numpy arrays, and back.
4. `runs`       the file format: immutable sorted Arrow runs, looked up by search.
5. `history`    a state as a list of runs; freezing, storing, compacting.
6. `table`      `KeyedTable`: values by key.
7. `timers`     `TimerTable`: keys by due time.
8. `backend`    which kind of table a run uses.
9. `packing`    rows as bytes, and back.
10. `rocksdb`   `RocksTable`: a `KeyedTable` with a working copy in RocksDB.
"""
