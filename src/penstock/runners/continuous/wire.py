"""What a worker and the driver say to each other, as JSON objects: `{"say": what, ...}` in control frames.

    worker -> driver    hello (token, stamp, worker, uid, data address, identity)    ready    beat    ack    decline    ended
    failed driver -> worker    peers (addresses and uids of all)    trigger    completed    aborted    exit

Acknowledgements carry the whole stamp: the driver hears only those of the attempt under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from penstock.errors import DecodeError
from penstock.protocol.messages import Stamp, TaskAck

ACK_FIELDS = tuple(field.name for field in fields(TaskAck))


def stamp_json(stamp: Stamp) -> list[Any]:
    """A stamp as JSON."""
    return [stamp.lineage, stamp.term, stamp.attempt]


def stamp_of(value: Any) -> Stamp:
    """A stamp from JSON."""
    match value:
        case [str(lineage), int(term), int(attempt)]:
            return Stamp(lineage, term, attempt)
    raise DecodeError(f"{value!r} is no stamp")


def ack_json(ack: TaskAck) -> dict[str, Any]:
    """An acknowledgement as JSON: all of it is JSON already."""
    return {name: getattr(ack, name) for name in ACK_FIELDS}


def ack_of(value: Any) -> TaskAck:
    """An acknowledgement from JSON."""
    if not isinstance(value, Mapping) or set(value) != set(ACK_FIELDS) or not isinstance(value["uid"], str):
        raise DecodeError("this is no acknowledgement")
    return TaskAck(**value)
