"""What a checkpoint says: everything needed to go on, from any runner, at any parallelism.

A manifest is a consistent cut through the job: how far each source was read, what each step remembers (as
files), how far event time had come, and what each sink has prepared and not yet confirmed. It is JSON, so
that a person can read it::

    {"lineage":"3f9c…","parent":null,"term":7,"attempt":2,"epoch":41,"runner":"continuous","pipeline":"ad-counts",
     "operators":[{"name":"counts","kind":"window","version":1,"keys":[["ad","string"]],"inputs":["clicks"],
                   "params":{"size_us":10000000},"watermarks":[[0,127,1699999995000000]],
                   "states":[{"name":"windows","kind":"value","schema":[[1,"n","int64",false]],
                              "floors":[[0,127,1699999990000000]],"ttl_us":null,"changes":"append",
                              "handles":[{"path":"state/00000007-0002-0000000041-9b1e.arrow","kind":"run",…}]}]}],
     "sources":[{"name":"clicks","kind":"files","splits":{"0":{
                 "position":{"file":"a.csv","row":100},"position_version":1,"watermark":1699999995000000,
                 "idle":false,"last_active_us":1700000000000000,"ended":false}}}],
     "sinks":[{"name":"out","kind":"files","state":null}],
     "pending":[{"epoch":41,"sink":"out","committables":[…]}],
     "finished":false, "cut":"aligned", "in_flight":[], "counters":{"clicks.rows_in":1000}, …}

An **unaligned** cut has rows in flight as well: they had been sent to a step and not yet processed by it. Each entry is a file of
them, named like files of state, for the keys of some groups::

     "in_flight":[{"step":"counts","input":0,"columns":[["ad","string",true]],"first_group":0,"last_group":63,
                   "path":"state/00000007-0002-0000000041-77aa.arrow","kind":"frames","rows":640,…}]

1. **Identity is a name**: of a step, state, source, split or sink. Nothing is shaped by the parallelism: no
   task number is a key anywhere. What belongs to keys is said per range of key groups, `[first, last,
   value]`, both ends included.
2. Files are named by relative paths, so a savepoint folder can be moved.
3. `pending` lists every published epoch whose commit is unconfirmed, this one included, oldest first.
   Recovery commits all of them.
4. `runner`, `penstock` and `created_us` are information. Nothing is decided by them.
5. `finished`: the input ended and all windows were closed; event time is at its end. Going on from it makes
   every row late.
6. Reading checks every field; CorruptError names the file and the field. Writing reads back what it is about
   to write.

The bytes around it (length, checksum, versions) are the business of `envelope`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from penstock.checkpoints.envelope import UNALIGNED, Envelope, Fields, Json, canonical, seal, unseal
from penstock.checkpoints.storage import check_path
from penstock.errors import CorruptError, StorageError
from penstock.names import NAME

__all__ = [
    "AppliedEntry",
    "Columns",
    "FieldEntry",
    "InFlightEntry",
    "Manifest",
    "OperatorEntry",
    "PendingEntry",
    "Range",
    "SinkEntry",
    "SourceEntry",
    "SplitEntry",
    "StateEntry",
    "columns_of",
    "decode_savepoint",
    "encode_savepoint",
]

STATE_KINDS = ("value", "list", "map", "timer", "broadcast", "operator-list")
CHANGES = ("append", "upsert", "retract")
CUTS = ("aligned", UNALIGNED)
HASH_ID = "xxh64-42-v1"
PARALLELISM_MAX = 1 << 15

Range: TypeAlias = tuple[int, int, int]  # first key group, last key group, value
Columns: TypeAlias = tuple[tuple[str, str, bool], ...]  # name, type, nullable
T = TypeVar("T")


@functools.cache
def _software() -> str:
    try:
        return importlib.metadata.version("penstock")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, slots=True)
class FieldEntry:
    """One column of a state. `id` stays when the column is renamed."""

    id: int
    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One state of a step: its columns and the files that hold it.

    `floors`: what has fired, per key group.
    """

    name: str
    kind: str
    schema: tuple[FieldEntry, ...]
    handles: tuple[Mapping[str, Json], ...] = ()
    floors: tuple[Range, ...] = ()
    ttl_us: int | None = None
    changes: str = "append"


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """One step.

    `keys`: (column, canonical type); `params`: what changes the meaning of its state (window size, allowed
    lateness), and under "keeps" what of an aggregate is kept, where its columns do not say: of some, and since there is that.
    """

    name: str
    kind: str
    version: int = 1
    keys: tuple[tuple[str, str], ...] = ()
    inputs: tuple[str, ...] = ()
    params: Json = None
    states: tuple[StateEntry, ...] = ()
    watermarks: tuple[Range, ...] = ()

    @property
    def keeps(self) -> Mapping[str, str]:
        """What its aggregates and states keep."""
        return self.params.get("keeps", {}) if isinstance(self.params, Mapping) else {}

    @property
    def shape(self) -> Json:
        """The parameters of the step as a whole."""
        if not isinstance(self.params, Mapping) or "keeps" not in self.params:
            return self.params
        return {name: value for name, value in self.params.items() if name != "keeps"} or None


@dataclass(frozen=True, slots=True)
class SplitEntry:
    """How far one split was read, and how far its event time had come (None: no row yet)."""

    position: Json
    position_version: int = 1
    watermark: int | None = None
    idle: bool = False
    last_active_us: int | None = None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """One source and its splits, by id."""

    name: str
    kind: str
    splits: Mapping[str, SplitEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SinkEntry:
    """One sink. `state`: what its writers keep between epochs, if anything."""

    name: str
    kind: str
    state: Json = None


@dataclass(frozen=True, slots=True)
class CountedFrom:
    """An aggregate that was added to a step at `epoch`: windows open then lack what came before.

    `until`: the event time at which the last of them has closed; None: that is not known.
    """

    step: str
    aggregate: str
    epoch: int
    until: int | None = None


@dataclass(frozen=True, slots=True)
class AppliedEntry:
    """What `pen.Restore` said of a name (`option`: "rename", "drop" or "start_empty"), done when a job went on from `epoch`."""

    option: str
    name: str
    new: str | None
    epoch: int

    @property
    def request(self) -> tuple[str, str, str | None]:
        """What was said, whenever it was."""
        return self.option, self.name, self.new

    def text(self) -> str:
        """As a person would say it."""
        return f"{self.option} {self.name}{'' if self.new is None else f' to {self.new}'}, from epoch {self.epoch} on"


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """What one epoch prepared in one sink: published, and its commit not yet confirmed."""

    epoch: int
    sink: str
    committables: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class InFlightEntry:
    """Rows on their way to input `input` of step `step`, for the keys of groups first..last: a file of frames, in order."""

    step: str
    input: int
    columns: Columns
    first_group: int
    last_group: int
    path: str
    kind: str
    rows: int
    bytes: int
    checksum: str

    @classmethod
    def of(cls, entry: Mapping[str, Json]) -> InFlightEntry:
        """From what a task acknowledged."""
        return cls(**{**entry, "columns": columns_of(entry["columns"])})

    def to_json(self) -> dict[str, Json]:
        """As JSON: what `of` is given."""
        return {**dataclasses.asdict(self), "columns": [list(column) for column in self.columns]}


def columns_of(texts: Json) -> Columns:
    """Columns from JSON."""
    return tuple((name, type_, nullable) for name, type_, nullable in texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One checkpoint. See the module's text for the fields."""

    pipeline: str
    lineage: str
    term: int
    attempt: int
    epoch: int
    runner: str
    created_us: int
    processing_time_us: int
    fingerprint: str
    max_parallelism: int
    parent: tuple[str, int] | None = None
    ancestors: tuple[tuple[str, int], ...] = ()  # the parent's parent and so on; left out of the text if there is none
    hash_id: str = HASH_ID
    finished: bool = False
    cut: str = "aligned"
    penstock: str = field(default_factory=_software)
    operators: tuple[OperatorEntry, ...] = ()
    sources: tuple[SourceEntry, ...] = ()
    sinks: tuple[SinkEntry, ...] = ()
    pending: tuple[PendingEntry, ...] = ()
    in_flight: tuple[InFlightEntry, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    counted_from: tuple[CountedFrom, ...] = ()
    applied: tuple[AppliedEntry, ...] = ()

    def handles(self) -> Iterator[Mapping[str, Json]]:
        """Every handle of every state, and of rows in flight. After a rescale several may name one file."""
        for operator in self.operators:
            for state in operator.states:
                yield from state.handles
        for entry in self.in_flight:
            yield entry.to_json()

    def files(self) -> tuple[str, ...]:
        """Paths of the files this checkpoint needs, sorted, each once."""
        return tuple(sorted({str(handle["path"]) for handle in self.handles()}))

    def to_json(self) -> Json:
        """The manifest as JSON: the fields under their own names; those that are newer than the format, only if they say anything."""
        body: dict[str, Json] = _json(self)
        for newer in ("ancestors", "counted_from", "applied"):
            if not body[newer]:
                del body[newer]
        return body

    def to_text(self) -> str:
        """Canonical JSON text: the body of a log record."""
        return _checked(self)[1].decode()

    @classmethod
    def from_json(cls, value: Json, path: str, *, lenient: bool = False) -> Manifest:
        """Read a manifest back.

        CorruptError names `path` and the field for anything that is not as `to_json` writes it.
        """
        return _read_manifest(Fields(value, "manifest", path, lenient=lenient))


def encode_savepoint(manifest: Manifest) -> bytes:
    """The bytes of `savepoint.json`."""
    body, _ = _checked(manifest)
    return seal(Envelope("savepoint", 0, manifest.term, "", body))


def decode_savepoint(data: bytes, path: str) -> Manifest:
    """The manifest in `savepoint.json`, or CorruptError."""
    found = unseal(data, path)
    if found.kind != "savepoint":
        raise CorruptError(f"{path}: holds a {found.kind[:80]!r} record, expected a savepoint")
    return Manifest.from_json(found.body, path, lenient=found.lenient)


def _checked(manifest: Manifest) -> tuple[Json, bytes]:
    """JSON and text of a manifest, read back: one that nobody can load must not follow one that somebody can."""
    body = manifest.to_json()
    text = canonical(body, "manifest")
    Manifest.from_json(body, f"(epoch {manifest.epoch}, about to be written)")
    return body, text


@functools.cache
def _names(kind: type) -> tuple[str, ...] | None:
    """Of the fields of an entry; None for what is no entry."""
    return tuple(entry.name for entry in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def _json(value: Json) -> Json:
    """Entries as objects, each field under its own name; a column, of which there are many, as a list."""
    kind: type = type(value)
    if kind is str or kind is int:
        return value
    if kind is FieldEntry:
        return [value.id, value.name, value.type, value.nullable]
    names = _names(kind)
    if names is not None:
        return {name: _json(getattr(value, name)) for name in names}
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _json(item) for key, item in value.items()}
    return value


def _read_manifest(take: Fields) -> Manifest:
    groups = take.integer("max_parallelism", 1, PARALLELISM_MAX)
    epoch = take.integer("epoch", 0)
    parent = take.json("parent")
    parent = None if parent is None else _fork(take, parent, "manifest.parent")
    elders = take.items("ancestors") if "ancestors" in take.value else []
    manifest = Manifest(
        pipeline=_name(take, "pipeline"),
        lineage=_name(take, "lineage"),
        parent=parent,
        ancestors=tuple(_fork(take, item, where) for item, where in elders),
        term=take.integer("term", 0),
        attempt=take.integer("attempt", 0),
        epoch=epoch,
        runner=take.text("runner"),
        penstock=take.text("penstock"),
        created_us=take.integer("created_us"),
        processing_time_us=take.integer("processing_time_us"),
        finished=take.flag("finished"),
        cut=take.one_of("cut", CUTS),
        fingerprint=take.text("fingerprint"),
        max_parallelism=groups,
        hash_id=take.text("hash_id"),
        operators=_named(take, "operators", lambda inner: _operator(inner, groups)),
        sources=_named(take, "sources", _source),
        sinks=_named(
            take,
            "sinks",
            lambda inner: SinkEntry(_name(inner, "name"), inner.text("kind"), inner.json("state")),
        ),
        pending=_each(take, "pending", lambda inner: _pending(inner, epoch)),
        in_flight=_each(take, "in_flight", lambda inner: _in_flight(inner, groups)),
        counters={
            name: take.as_integer(count, f"manifest.counters.{name[:80]}") for name, count in take.object("counters").items()
        },
        counted_from=_each(take, "counted_from", _counted_from) if "counted_from" in take.value else (),
        applied=_each(take, "applied", _applied) if "applied" in take.value else (),
    )
    if bool(manifest.in_flight) != (manifest.cut == UNALIGNED):
        take.refuse(f"manifest.cut is {manifest.cut}, with {len(manifest.in_flight)} files of rows in flight")
    if manifest.in_flight and manifest.finished:
        take.refuse("manifest.in_flight is not empty, and a finished job has nothing in flight")
    if any(later.epoch < earlier.epoch for earlier, later in zip(manifest.pending, manifest.pending[1:])):
        take.refuse("manifest.pending is not in the order of its epochs")
    take.done()
    return manifest


def _fork(take: Fields, value: Json, where: str) -> tuple[str, int]:
    """A lineage, and the epoch at which another was forked from it."""
    (lineage, name), (number, whole) = take.as_items(value, where, 2)
    return _as_name(take, lineage, name), take.as_integer(number, whole, 0)


def _operator(take: Fields, groups: int) -> OperatorEntry:
    keys = [take.as_items(item, where, 2) for item, where in take.items("keys")]
    return OperatorEntry(
        name=_name(take, "name"),
        kind=take.text("kind"),
        version=take.integer("version", 1),
        keys=tuple((take.as_text(*column), take.as_text(*type_)) for column, type_ in keys),
        inputs=tuple(take.as_text(item, where) for item, where in take.items("inputs")),
        params=take.json("params"),
        states=_named(take, "states", lambda inner: _state(inner, groups)),
        watermarks=_ranges(take, "watermarks", groups),
    )


def _state(take: Fields, groups: int) -> StateEntry:
    return StateEntry(
        name=_name(take, "name"),
        kind=take.one_of("kind", STATE_KINDS),
        schema=tuple(_column(take, item, where) for item, where in take.items("schema")),
        handles=_each(take, "handles", lambda inner: _handle(inner, groups)),
        floors=_ranges(take, "floors", groups),
        ttl_us=take.optional("ttl_us", 0),
        changes=take.one_of("changes", CHANGES),
    )


def _column(take: Fields, value: Json, where: str) -> FieldEntry:
    id, name, type_, nullable = take.as_items(value, where, 4)
    return FieldEntry(take.as_integer(*id, 0), take.as_text(*name), take.as_text(*type_), take.as_flag(*nullable))


def _handle(take: Fields, groups: int) -> Mapping[str, Json]:
    """A handle stays the JSON object that `state` made; what everybody relies on is checked."""
    try:
        check_path(take.text("path"))
    except StorageError as error:
        take.refuse(f"{take.where}.path: {error}")
    take.text("kind")
    first = take.integer("first_group", 0, groups - 1)
    take.integer("last_group", first, groups - 1)
    take.integer("rows", 0)
    take.integer("bytes", 0)
    take.text("checksum")
    low = take.optional("min_due")
    high = take.optional("max_due")
    if (low is None) != (high is None) or (low is not None and high is not None and low > high):
        take.refuse(f"{take.where}: min_due is {low} and max_due is {high}")
    return take.value


def _in_flight(take: Fields, groups: int) -> InFlightEntry:
    columns = [take.as_items(item, where, 3) for item, where in take.items("columns")]
    try:
        path = check_path(take.text("path"))
    except StorageError as error:
        take.refuse(f"{take.where}.path: {error}")
    first = take.integer("first_group", 0, groups - 1)
    return InFlightEntry(
        step=_name(take, "step"),
        input=take.integer("input", 0),
        columns=tuple((take.as_text(*name), take.as_text(*type_), take.as_flag(*null)) for name, type_, null in columns),
        first_group=first,
        last_group=take.integer("last_group", first, groups - 1),
        path=path,
        kind=take.one_of("kind", ("frames",)),
        rows=take.integer("rows", 1),
        bytes=take.integer("bytes", 1),
        checksum=take.text("checksum"),
    )


def _source(take: Fields) -> SourceEntry:
    name, kind = _name(take, "name"), take.text("kind")
    splits = {}
    for id, value in take.object("splits").items():
        inner = take.inner(value, f"{take.where}.splits.{id[:80]}")
        splits[id] = SplitEntry(
            position=inner.json("position"),
            position_version=inner.integer("position_version", 1),
            watermark=inner.optional("watermark"),
            idle=inner.flag("idle"),
            last_active_us=inner.optional("last_active_us"),
            ended=inner.flag("ended"),
        )
        inner.done()
    return SourceEntry(name, kind, splits)


def _pending(take: Fields, newest: int) -> PendingEntry:
    return PendingEntry(
        epoch=take.integer("epoch", 0, newest),
        sink=_name(take, "sink"),
        committables=tuple(item for item, _ in take.items("committables")),
    )


def _counted_from(take: Fields) -> CountedFrom:
    return CountedFrom(_name(take, "step"), take.text("aggregate"), take.integer("epoch", 0), take.optional("until"))


def _applied(take: Fields) -> AppliedEntry:
    option, new = take.one_of("option", ("rename", "drop", "start_empty")), take.json("new")
    if (new is not None) != (option == "rename"):
        take.refuse(f"{take.where}.new is {new!r} of a {option}")
    return AppliedEntry(option, take.text("name"), new and take.as_text(new, f"{take.where}.new"), take.integer("epoch", 0))


def _ranges(take: Fields, name: str, groups: int) -> tuple[Range, ...]:
    """Key group ranges with a value each: ascending, not overlapping."""
    found: list[Range] = []
    least = 0
    for item, where in take.items(name):
        first, last, value = take.as_items(item, where, 3)
        start = take.as_integer(*first, least, groups - 1)
        end = take.as_integer(*last, start, groups - 1)
        found.append((start, end, take.as_integer(*value)))
        least = end + 1
    return tuple(found)


def _each(take: Fields, name: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
    found = []
    for item, where in take.items(name):
        inner = take.inner(item, where)
        found.append(read(inner))
        inner.done()
    return tuple(found)


def _named(take: Fields, name: str, read: Callable[[Fields], T]) -> tuple[T, ...]:
    """Like `_each`, and no two may have the same name: names are identities."""
    names = set()
    for item, where in take.items(name):
        own = take.inner(item, where).text("name")
        if own in names:
            take.refuse(f"{where}.name is {own[:80]!r} for the second time")
        names.add(own)
    return _each(take, name, read)


def _name(take: Fields, name: str) -> str:
    return _as_name(take, take.json(name), f"{take.where}.{name}")


def _as_name(take: Fields, value: Json, where: str) -> str:
    text = take.as_text(value, where)
    if not NAME.fullmatch(text):
        take.refuse(f"{where} is {text[:80]!r}, which is not a name")
    return text
