"""What the acknowledgements of one epoch say together."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.protocol.messages import TaskAck


def in_flight(acks: Mapping[str, TaskAck]) -> bool:
    """Whether a snapshot holds rows that were sent and not yet processed."""
    return any(ack.in_flight for ack in acks.values())


def torn_reads(acks: Mapping[str, TaskAck]) -> str:
    """Which task read the output of an attempt that is not the acknowledged one; empty if none."""
    for task, ack in acks.items():
        for upstream, uid in ack.consumed.items():
            if upstream in acks and acks[upstream].uid != uid:
                return f"{task} read {upstream} as {uid}, and {acks[upstream].uid} was acknowledged"
    return ""
