"""Process functions: a user's class with declared state and timers, and what runs it needs of them.

values      what a state holds: a Python type, and how its values get into a column and back
states      the declared states: `ValueState`, `ListState`, `MapState`, `ReducingState`, `AggregatingState`, `BroadcastState`
output      `Output`, a declared side output
function    `ProcessFunction`, its `Context` and `Timer`, and the `Spec` that is read off a class before anything runs
initial     values that states start from, given as a table
withstate   `map_with_state` and `update_state_by_key` as process functions
"""
