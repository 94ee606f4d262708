"""Single changes to the protocol, or to its surroundings, that break it: the explorer must find each.

A mutant is data: the function it changes, what is replaced by what, and why that is wrong. `applied` compiles the changed
source in the module it came from.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from dataclasses import dataclass

import pytest

from penstock.testing.explorer import SCOPES
from penstock.testing.parts import Scope

TASK = "penstock.protocol.task:TaskCore"
COORDINATOR = "penstock.protocol.coordinator:Coordinator"
TERMS = "penstock.protocol.terms:"
WORLD = "penstock.testing.world:World"
TASKS = "penstock.testing.tasks:Tasks"

SHORT = Scope("short crash", rows=(1, 1), epochs=2, crashes=1)
REPLAY = Scope("replay", rows=(0, 2), epochs=2, overdue=1, crashes=1)
BY_NAME = {scope.name: scope for scope in (*SCOPES, SHORT, REPLAY)}
DEEP = {"the sink does not look", "no look at the terms after publishing", "the look comes before the put"}
"""Mutants whose shortest path is long: looked for depth first."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong change. `caught` is the invariant that notices it first, in `scope`."""

    name: str
    why: str
    where: str
    changes: tuple[tuple[str, str], ...]
    scope: str
    caught: str

    def applied(self, patch: pytest.MonkeyPatch) -> Scope:
        """Make the change until the test is over; the scope to look in."""
        module_name, path = self.where.split(":")
        module = importlib.import_module(module_name)
        *owners, name = path.split(".")
        owner = getattr(module, owners[0]) if owners else module
        source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
        for old, new in self.changes:
            assert source.count(old) == 1, f"{self.name}: {old!r} is not once in {self.where}"
            source = source.replace(old, new)
        made: dict[str, object] = {}
        exec(compile(source, f"<mutant: {self.name}>", "exec"), module.__dict__, made)
        patch.setattr(owner, name, made[name])
        return BY_NAME[self.scope]


MUTANTS = (
    Mutant(
        "no alignment",
        "the snapshot is taken at the first barrier, so rows of slower inputs are missing from it",
        f"{TASK}._barrier",
        (("if len(self.held) == len(self._inputs):", "self.held = list(self._inputs)\n    if True:"),),
        "plain",
        "cut",
    ),
    Mutant(
        "no hold",
        "an input is read on after its barrier, into the snapshot before it",
        f"{TASK}._barrier",
        (("or (Hold(input),))", "or ())"),),
        "plain",
        "AssertionError in the core",
    ),
    Mutant(
        "the least is the greatest",
        "time runs ahead of the slowest input and its rows are late",
        "penstock.protocol.watermarks:Minimum.settle",
        (("min(live)", "max(live)"),),
        "plain",
        "time",
    ),
    Mutant(
        "barrier overtakes rows",
        "rows sent before the barrier are counted as after it",
        f"{TASKS}.send",
        (
            (
                "= (*self.channels[i, j], message)",
                "= tuple(sorted((*self.channels[i, j], message), key=lambda m: not isinstance(m, Barrier)))",
            ),
        ),
        "plain",
        "cut",
    ),
    Mutant(
        "commit before publish",
        "a crash in between leaves output that no checkpoint knows",
        f"{COORDINATOR}._acked",
        (("return (flight.publishing,)", "return (flight.publishing, *(Commit(p) for p in fresh))"),),
        "plain",
        "commit",
    ),
    Mutant(
        "one ack missing",
        "a snapshot without one task's part is no snapshot",
        f"{COORDINATOR}._acked",
        (("< len(self._tasks)", "< len(self._tasks) - 1"), ("for t in self._tasks for", "for t in flight.acks for")),
        "plain",
        "cut",
    ),
    Mutant(
        "completion is not told",
        "tasks hand in the output of a published epoch again",
        f"{COORDINATOR}._published",
        (("return (TellCompleted(flight.publishing.stamp, epoch),)", "return ()"),),
        "plain",
        "cut",
    ),
    Mutant(
        "stale acks are heard",
        "an acknowledgement of the attempt before is mixed into this one's snapshot",
        "penstock.protocol.messages:Stamp.accepts",
        (("return self == other", "return True"),),
        "late",
        "stale",
    ),
    Mutant(
        "attempts are not told apart",
        "as above, within one term",
        "penstock.protocol.messages:Stamp.accepts",
        (("return self == other", "return self.term == other.term"),),
        "late",
        "stale",
    ),
    Mutant(
        "names are used again",
        "a state file named by its epoch alone is found written, by an attempt that failed",
        f"{TASKS}.save",
        (
            (
                "return state\n",
                "self.disk = None\n    return eval(self.store.setdefault(f'{target.index}-{epoch}', repr(state).encode()))\n",
            ),
        ),
        "short crash",
        "cut",
    ),
    Mutant(
        "restore from an older checkpoint",
        "what was published, and perhaps committed, happens again",
        f"{TERMS}_walk",
        (
            (
                "record if record.kind == CHECKPOINT else head.newest",
                "head.newest or (record if record.kind == CHECKPOINT else None)",
            ),
        ),
        "short crash",
        "restore",
    ),
    Mutant(
        "pending is not carried",
        "an epoch published while the one before was uncommitted drops it",
        f"{COORDINATOR}._acked",
        (("(*self.pending, *fresh)", "fresh"),),
        "short crash",
        "output",
    ),
    Mutant(
        "pending is not replayed",
        "published and not committed before the crash: lost",
        f"{COORDINATOR}.__init__",
        (("self.pending = list(pending)", "self.pending = []"),),
        "short crash",
        "restore",
    ),
    Mutant(
        "pending is dropped with the attempt",
        "a failed attempt's published epochs are true all the same",
        f"{COORDINATOR}._fail",
        (("self._failure, self._flight = None, None", "self._failure, self._flight, self.pending = None, None, []"),),
        "short crash",
        "restore",
    ),
    Mutant(
        "newest commit first",
        "a reader sees epoch 2 without epoch 1",
        f"{COORDINATOR}._go_on",
        (
            ("self._committing = self.pending[0]", "self._committing = self.pending[-1]"),
            ("Commit(self.pending[0])", "Commit(self.pending[-1])"),
        ),
        "short crash",
        "commit",
    ),
    Mutant(
        "the sink does not look",
        "a commit repeated after a crash shows its rows twice",
        f"{WORLD}.show",
        (("if pending.epoch not in dict(self.sink):", "if True:"),),
        "short crash",
        "output",
    ),
    Mutant(
        "attempt begun while publishing",
        "whether the epoch is published decides where the next attempt starts",
        f"{COORDINATOR}._go_on",
        (("if self._flight is not None and self._flight.publishing is not None:", "if False:"),),
        "short crash",
        "AssertionError in the core",
    ),
    Mutant(
        "the end is run again",
        "a finished job has closed its windows; it cannot go on",
        f"{COORDINATOR}.__init__",
        (("if finished else None", "if False else None"),),
        "short crash",
        "restore",
    ),
    Mutant(
        "collected before the head is named",
        "who walks the log from its start finds nothing, and starts anew",
        f"{WORLD}._collect",
        (('(Call("note", (host.claim,)), *self.deletions(old))', "self.deletions(old)"),),
        "late",
        "restore",
    ),
    Mutant(
        "epoch number used again",
        "the barriers of the aborted epoch are still under way",
        f"{COORDINATOR}._abort",
        (("self._flight = None\n", "self._flight = None\n    self._next_epoch = flight.epoch\n"),),
        "hiccup",
        "AssertionError in the core",
    ),
    Mutant(
        "an error is taken for a no",
        "the checkpoint may be there although storage said it failed",
        f"{COORDINATOR}._publish_failed",
        (("flight.tries += 1\n", "self._flight = None\n"), ("return (flight.publishing,)", "return ()")),
        "hiccup",
        "restore",
    ),
    Mutant(
        "torn reads are ignored",
        "a task read rows of a run that is not the acknowledged one",
        f"{COORDINATOR}._acked",
        (("torn = torn_reads(flight.acks)", 'torn = ""'),),
        "rerun",
        "cut",
    ),
    Mutant(
        "no look at the terms after publishing",
        "a deleted log slot is created again by one who slept, and believed",
        f"{TERMS}publish",
        (("if (yield Read(term_path(claim.term + 1))) is not None:", "if False:"),),
        "zombie",
        "commit",
    ),
    Mutant(
        "the look comes before the put",
        "a successor may come between them",
        f"{TERMS}publish",
        (
            (
                "data = codec.encode(record)",
                "data = codec.encode(record)\n    late = (yield Read(term_path(claim.term + 1))) is not None",
            ),
            ("if (yield Read(term_path(claim.term + 1))) is not None:", "if late:"),
        ),
        "zombie",
        "commit",
    ),
    Mutant(
        "terms are collected too",
        "a deleted term can be claimed again, and hides a successor",
        f"{WORLD}.deletions",
        (("paths),) if paths", '(*paths, *sorted(p for p in self.store if p[0] == "t"))),) if paths'),),
        "zombie",
        "restore",
    ),
    Mutant(
        "a lost slot is not looked at",
        "the old coordinator slipped a checkpoint in; the successor must start from it",
        f"{TERMS}claim_term",
        (
            (
                "if not (yield from _created(slot_path(start.seq), data)):",
                "if (yield from _created(slot_path(start.seq), data)) is None:",
            ),
        ),
        "zombie",
        "restore",
    ),
    Mutant(
        "overtaken rows are not recorded",
        "a barrier overtakes rows, and they are in nobody's part of the snapshot",
        f"{TASK}.handle",
        (("if isinstance(message, Batch))", "if False)"),),
        "overdue",
        "cut",
    ),
    Mutant(
        "rows processed meanwhile are not recorded",
        "they were in flight when the state was frozen, and are not in it",
        f"{TASK}._arrived",
        (("if input in self.recording else ()", "if False else ()"),),
        "overdue",
        "cut",
    ),
    Mutant(
        "rows are recorded twice",
        "once when they are processed and once more when their barrier is found",
        f"{TASK}._arrived",
        (("kept = (Keep(edge, payload),) if", "kept = (Keep(edge, payload), Keep(edge, payload)) if"),),
        "overdue",
        "cut",
    ),
    Mutant(
        "rows after the barrier are recorded",
        "an input that has delivered its barrier is recorded on: those rows will be read again",
        f"{TASK}._owed",
        (
            ("self.recording.remove(input)", "pass"),
            ("return () if self.recording else", "return () if len(self.recording) > 1 else"),
        ),
        "overdue",
        "AssertionError in the core",
    ),
    Mutant(
        "the part is complete at the first barrier",
        "what is in flight on the other inputs is missing",
        f"{TASK}._owed",
        (("return () if self.recording else (Recorded(epoch),)", "self.recording = set()\n    return (Recorded(epoch),)"),),
        "overdue",
        "cut",
    ),
    Mutant(
        "inputs stay held",
        "an overdue snapshot has been taken, and nobody reads on",
        f"{TASK}._cut",
        (("released = tuple(Release(i) for i in self.held if i != input)", "released = ()"),),
        "overdue",
        "progress",
    ),
    Mutant(
        "a recording is not given up",
        "a later epoch is aligned while an aborted one is recorded",
        f"{TASK}._supersede",
        (("given_up = self._give_up() if self.recording else ()", "given_up = ()"),),
        "overdue hiccup",
        "AssertionError in the core",
    ),
    Mutant(
        "rows in flight are not restored",
        "a crash loses what had been read and not yet processed",
        f"{WORLD}._begin",
        (("for row in start.in_flight[j]:", "for row in ():"), ("len(start.in_flight[j])", "0")),
        "overdue crash",
        "cut",
    ),
    Mutant(
        "rows in flight are replayed beside new ones",
        "a later row of the same key comes first",
        f"{TASKS}._task_choices",
        ((" and (not self.targets[j].replaying or i == 0)", ""),),
        "replay",
        "order",
    ),
)
