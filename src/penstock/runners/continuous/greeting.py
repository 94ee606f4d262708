"""Who a connection is, before anything else that it says is believed.

Every port of a job can be reached by anybody on the machine. The first frame of a connection is a greeting:
the attempt's token and stamp, and what the connection is for. Until it has come and is right, the other end is
a *stranger*:

1. No more is read of it than its greeting, and a greeting is small (`HELLO_BYTES_MAX`).
2. Whatever its bytes are, `Introduction.hear` returns, or raises `DecodeError`. A token is any text that JSON
   can write, lone surrogates included, so it is compared as bytes that every text has.
3. Should listening to a stranger raise anything else, the port hangs up on it all the same: what a stranger
   does ends its own connection, and nothing beyond it.
4. A stranger that is silent is hung up on after `GREETING_S`. Where `STRANGERS_MAX` of them wait, the oldest one
   goes: a process of the job speaks at once, so that it is heard however many strangers hold connections open.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import DecodeError
from penstock.protocol.messages import Stamp
from penstock.runners.spark.frames import HELLO_BYTES_MAX, Decoder, control_of

__all__ = ["GREETING_S", "STRANGERS_MAX", "Channel", "Credentials", "Introduction", "channel_in", "is_worth_telling", "worker_in"]

GREETING_S: Final = 5.0  # how long a stranger may take to say who it is
STRANGERS_MAX: Final = 256

Channel = tuple[int, int, int]
"""(exchange, source task, target task)."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a process of the job shows to another: the token of this attempt, and its stamp."""

    token: str
    stamp: Stamp

    def greeting(self, **more: Any) -> dict[str, Any]:
        """The first message on a connection."""
        stamp = self.stamp
        return {"say": "hello", "token": self.token, "stamp": [stamp.lineage, stamp.term, stamp.attempt], **more}

    def accepts(self, greeting: Mapping[str, Any]) -> bool:
        """Whether it comes from a process of this very attempt. Any JSON object has an answer."""
        token, stamp = greeting.get("token"), self.stamp
        if greeting.get("say") != "hello" or not isinstance(token, str):
            return False
        known = hmac.compare_digest(token.encode("utf-8", "surrogatepass"), self.token.encode())
        return known and greeting.get("stamp") == [stamp.lineage, stamp.term, stamp.attempt]


class Introduction:
    """What a connection says until it is known. `decoder` reads what comes after."""

    __slots__ = ("_credentials", "decoder")

    def __init__(self, credentials: Credentials) -> None:
        self.decoder = Decoder(HELLO_BYTES_MAX)
        self._credentials = credentials

    @property
    def need(self) -> int:
        """How many bytes may be read now: what follows the greeting is for whoever it turns out to be."""
        return self.decoder.need

    def hear(self, data: bytes) -> dict[str, Any] | None:
        """The greeting of a process of this attempt, or None while bytes of it are missing. Everything else is a `DecodeError`."""
        if not data:
            raise DecodeError("it hung up before its greeting was complete")
        frames = self.decoder.feed(data)
        if not frames:
            return None
        greeting = control_of(frames[0])
        if len(frames) > 1 or not self._credentials.accepts(greeting):
            raise DecodeError("it is no process of this attempt")
        return greeting


def channel_in(greeting: Mapping[str, Any]) -> Channel | None:
    """The channel that a greeting is for; None if it names none."""
    channel = greeting.get("exchange"), greeting.get("source"), greeting.get("target")
    return channel if all(type(part) is int for part in channel) else None  # type: ignore[return-value]


def worker_in(greeting: Mapping[str, Any], workers: int) -> int | None:
    """The number of the worker that greets the driver, one of `workers`; None if it does not say all that a worker says."""
    match greeting:
        case {"worker": int(worker), "address": [str(), int()], "uid": str(), "pid": int()} if type(worker) is int:
            return worker if 0 <= worker < workers else None
    return None


def is_worth_telling(refused: int) -> bool:
    """Whether the log shall hear that so many were refused: of the first, and then as often as their number doubles."""
    return refused & (refused - 1) == 0
