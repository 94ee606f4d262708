"""What a process function should do, without Penstock: a dictionary per key, and a search for the next timer.

Rows carry commands, timers have them by name (`TIMERS`). Times are in microseconds. What comes out is a list per key of what was sent,
in order: (output, text, time), and which rows and timers failed.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from typing import Any

Command = list[Any]
S = 1_000_000
END = 2**63 - 1
TTL, BRIEF = 6 * S, 5 * S

TIMERS: dict[str, list[Command]] = {
    "a": [["push", 1], ["tell"]],
    "b": [["tell"], ["timer", "event", "a", 2 * S]],
    "c3": [["put", "c", 3], ["timer", "event", "c2", S], ["tell"]],
    "c2": [["put", "c", 2], ["timer", "processing", "c1", S], ["timer", "event", "c1", 0], ["tell"]],
    "c1": [["drop", "c"], ["side"]],
    "back": [["timer_at", "event", "a", -90 * S], ["timer_at", "processing", "a", -90 * S], ["tell"]],
    "kill": [["cancel", "event", "a"], ["cancel", "processing", "b"], ["tell"]],
    "oops": [["push", 9], ["timer", "event", "a", 0], ["tell"], ["raise"]],
    "misfit": [["best", 99], ["misfit"]],
    "same": [["fresh", 7], ["draw"], ["tell"]],
}


class Failed(Exception):
    pass


def fresh_key() -> dict[str, Any]:
    return {"value": 0, "list": [], "map": {}, "best": None, "total": None, "fresh": None, "brief": None, "timers": {}}


class Model:
    """All keys of one step."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.keys: dict[Any, dict[str, Any]] = defaultdict(fresh_key)
        self.sent: dict[Any, list[tuple[str, str, int]]] = defaultdict(list)
        self.dead: Counter[Any] = Counter()
        self.late: list[Any] = []
        self.waiting: list[tuple[int, int, Any, list[Command]]] = []  # (time, number, key, commands)
        self.watermark: int | None = None  # that callbacks see
        self.passed: dict[str, int | None] = {"event": None, "processing": None}  # up to when timers have fired
        self.now = 0
        self.over: set[str] = set()
        self.number = 0

    # -- what happens

    def row(self, key: Any, time: int, commands: list[Command]) -> None:
        self.number += 1
        if not self.ordered:
            self.call(key, "row", commands, time, time)
        elif time <= at_least(self.passed["event"], time - 1):
            self.late.append((key, time))
        else:
            self.waiting.append((time, self.number, key, commands))

    def advance(self, time: int) -> None:
        self.watermark = time
        ready = sorted(w for w in self.waiting if w[0] <= time) if self.ordered else []
        self.waiting = [w for w in self.waiting if w[0] > time]
        for at, _, key, commands in ready:
            self.fire("event", at - 1, key)
            self.call(key, "row", commands, at, at)
        for key in list(self.keys):
            self.fire("event", time, key)
        self.passed["event"] = time

    def tick(self, now: int) -> None:
        self.now = now
        for key in list(self.keys):
            self.fire("processing", now, key)
        self.passed["processing"] = now

    def end(self) -> None:
        self.watermark = END
        for clock in ("event", "processing"):
            self.over.add(clock)
            for key in list(self.keys):
                self.fire(clock, END, key)

    # -- how

    def fire(self, clock: str, until: int, key: Any) -> None:
        while True:
            timers = self.keys[key]["timers"]
            ready = sorted((due, at, name) for (c, name), (due, at, _) in timers.items() if c == clock and due <= until)
            if not ready:
                return
            due, at, name = ready[0]
            _, _, time = timers.pop((clock, name))
            if clock == "event":
                self.call(key, f"{clock} {name} {at}", TIMERS[name], at, due)
            else:
                if self.watermark is not None and time <= self.watermark < END:
                    time = self.watermark + 1
                self.call(key, f"{clock} {name} {at}", TIMERS[name], time, time)

    def call(self, key: Any, what: str, commands: list[Command], time: int, moment: int) -> None:
        before, sent = copy.deepcopy(self.keys[key]), len(self.sent[key])
        expiry = at_least(self.passed["event"], moment)
        try:
            for command in commands:
                self.do(key, what, command, time, moment, expiry)
            if ["misfit"] in commands:  # known when what was sent is looked at
                raise Failed("RowError")
        except Failed as error:
            self.keys[key] = before
            del self.sent[key][sent:]
            self.dead[key, str(error), what.partition(" ")[0] != "row"] += 1

    def do(self, key: Any, what: str, command: Command, time: int, moment: int, expiry: int) -> None:
        state = self.keys[key]
        match command:
            case ["set", n]:
                state["value"] = n
            case ["clear"]:
                state["value"] = 0
            case ["push", n]:
                state["list"].append(n)
            case ["unpush"]:
                state["list"] = state["list"][:-1]
            case ["put", name, n]:
                state["map"][name] = n
            case ["drop", name]:
                state["map"].pop(name, None)
            case ["best", n]:
                state["best"] = n if state["best"] is None else max(n, state["best"])
            case ["add", n]:
                state["total"] = (state["total"] or 0) + n
            case ["fresh", n]:
                state["fresh"] = n, expiry + TTL
            case ["brief", n]:
                state["brief"] = n, self.now + BRIEF
            case ["timer" | "timer_at" as how, clock, name, n]:
                base = 0 if how == "timer_at" else self.now if clock == "processing" else time
                self.set_timer(state, clock, name, base + n, moment, expiry)
            case ["cancel", clock, name]:
                state["timers"].pop((clock, name), None)
            case ["tell"] | ["emit"] | ["side"]:
                text = self.text(state, what, time, expiry)
                self.sent[key].append(("side" if command == ["side"] else "main", text, moment))
            case ["raise"]:
                raise Failed("ValueError")

    def set_timer(self, state: dict[str, Any], clock: str, name: str, at: int, moment: int, expiry: int) -> None:
        if clock in self.over:
            state["timers"].pop((clock, name), None)
            return
        passed = self.passed[clock]
        due = at if passed is None else max(at, passed + 1)
        if clock == "event" and self.ordered:
            due = max(due, expiry)
        state["timers"][clock, name] = due, at, moment

    def text(self, state: dict[str, Any], what: str, time: int, expiry: int) -> str:
        fresh, brief = state["fresh"], state["brief"]
        told = [
            state["value"],
            state["list"],
            list(state["map"].items()),
            state["best"],
            state["total"],
            None if fresh is None or fresh[1] <= expiry else fresh[0],
            None if brief is None or brief[1] <= self.now else brief[0],
        ]
        return f"{what} {told} time={time} watermark={self.watermark} now={self.now}"


def at_least(floor: int | None, time: int) -> int:
    return time if floor is None else max(time, floor)
