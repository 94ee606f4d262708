"""The states a process function declares. A declaration is a value of the class; a running function has bound copies of it.

scope        what the states of a running function share
state        `State`, the base of those by key: reading, writing back, undoing, forgetting
value        `ValueState`
collection   `ListState`, `MapState`
long         lists that are too long for their key's row
folding      `ReducingState`, `AggregatingState`
broadcast    `BroadcastState`
typed        how type checkers see them
"""

from penstock.processing.states.broadcast import BroadcastState
from penstock.processing.states.collection import ListState, MapState
from penstock.processing.states.folding import AggregatingState, ReducingState
from penstock.processing.states.scope import Keys, Scope
from penstock.processing.states.state import CLOCKS, EXPIRES, VALUE, State
from penstock.processing.states.value import ValueState

__all__ = [
    "CLOCKS",
    "EXPIRES",
    "VALUE",
    "AggregatingState",
    "BroadcastState",
    "Keys",
    "ListState",
    "MapState",
    "ReducingState",
    "Scope",
    "State",
    "ValueState",
]
