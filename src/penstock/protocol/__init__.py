"""When a task snapshots, and what makes a snapshot count: pure state machines, standard library only.

Read `messages` (the vocabulary), then `task` (one task's barriers and time), `coordinator` (epochs) and `terms` (who may
publish). Nothing here knows the time, a thread, a socket or a row: time arrives in events, a batch is an opaque payload, and
every input and output can be compared, logged and replayed.
"""
