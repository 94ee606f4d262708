"""The checkpoints of one job and the files they need: what is kept, what is deleted, and copies to take away.

Tasks write state files under names nobody else can write, `state/<term>-<attempt>-<epoch>-<uid>.arrow`; a
published manifest names those that count. Every other file is garbage, but a file that is being written for
the next manifest looks just like garbage. Age cannot tell them apart (a slow upload is old, too), the name
can:

1. A file is **reachable** if a retained manifest names it. The `keep` newest manifests are retained.
2. A reachable file is never deleted. Names only pass from the newest manifest to the next one, so a file that
   has become unreachable never comes back.
3. After a publish (`collect`): the files that only expired manifests named.
4. At the start of an attempt (`sweep`): unreachable files of earlier terms and attempts. Whoever still writes
   those can no longer publish.
5. At a clean end (`sweep_all`): all unreachable files, when nobody writes any more.

Order of `collect`: name the head (see `protocol.terms`), delete the expired slots, then the files. Cut off
anywhere, each manifest left in the log still has its files, and what was not yet deleted is swept at the next
start.

A **savepoint** is a folder of its own: copies of all files under the same relative paths, then
`savepoint.json`, created last. Without that file it is no savepoint, so one that was cut off cannot be loaded
by mistake. It can be moved, copied, and outlives the job.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from penstock.checkpoints.envelope import Json
from penstock.checkpoints.log import Log, Published
from penstock.checkpoints.manifest import Manifest, decode_savepoint, encode_savepoint
from penstock.checkpoints.storage import Store, is_temporary, open_store
from penstock.errors import CorruptError, Fix, MissingError, RestoreError, StorageError
from penstock.names import check_name
from penstock.protocol.terms import Claim
from penstock.state import runfile

__all__ = ["SAVEPOINT", "Repository", "checked_file", "open_savepoint", "read_savepoint", "state_path"]

SAVEPOINT = "savepoint.json"
TAKEN = Fix("savepoint.taken", "Choose another folder")
_STATE = re.compile(r"state/([0-9]{8,18})-([0-9]{4,18})-[0-9]{10,18}-.+")


def state_path(term: int, attempt: int, epoch: int, uid: str) -> str:
    """The name of a state file. `uid` is new for every file, so that nobody else ever writes this name.

    >>> state_path(7, 2, 41, "9b1e")
    'state/00000007-0002-0000000041-9b1e.arrow'
    """
    return f"state/{term:08d}-{attempt:04d}-{epoch:010d}-{uid}.arrow"


def _settled_path(manifest: Manifest) -> str:
    return f"settled/{manifest.lineage}-{manifest.term:08d}-{manifest.epoch:010d}.json"


class Repository:
    """The checkpoints of one pipeline in its own folder `store`, of which the `keep` newest stay."""

    def __init__(self, store: Store, pipeline: str, *, keep: int = 3) -> None:
        assert keep >= 1, f"keep={keep}: the newest checkpoint must stay"
        self.store = store
        self.pipeline = check_name(pipeline, "a pipeline")
        self.keep = keep
        self.log = Log(store)
        self._retained: list[Published] = []  # oldest first
        self._origin: Manifest | None = None  # adopted and not yet followed by a checkpoint of our own
        self._doomed: set[str] = set()  # expired, and still to be deleted
        self._pinned: list[Manifest] = []  # being copied into a savepoint, perhaps by another thread
        self._guard = threading.Lock()

    def claim(self, holder: Mapping[str, Json]) -> Claim:
        """Take over the job: see `Log.claim`."""
        claim = self.log.claim(holder)
        self._retained = self.log.history()[::-1]
        newest = self.newest()
        if newest is not None and newest.pipeline != self.pipeline:
            raise RestoreError(
                f"{self.store.url} holds checkpoints of pipeline {newest.pipeline!r}, not of {self.pipeline!r}",
                fix=Fix(
                    "storage.other-pipeline",
                    f"Use another storage, or rename the folder back to {newest.pipeline!r}",
                ),
            )
        return claim

    def newest(self) -> Manifest | None:
        """The checkpoint to go on from. What it lists as pending was committed if the job that stopped there said so."""
        if not self._retained:
            return None
        manifest = self._retained[-1].manifest
        settled = manifest.pending and self.store.read(_settled_path(manifest)) is not None
        return replace(manifest, pending=()) if settled else manifest

    def mark_settled(self) -> None:
        """Note that all output of the newest checkpoint is committed: no later one will say it, since the job has stopped.

        Without the note the next start commits it once more, which does no harm; but it could not do without the sink.
        """
        path = _settled_path(self._retained[-1].manifest) if self._retained else None
        if path is not None and self._retained[-1].manifest.pending:
            self.store.create(path, b"{}")
        for old in self.store.list("settled"):
            if old != path:
                self.store.delete(old)

    def publish(self, manifest: Manifest) -> None:
        """Publish a checkpoint: when this returns, its epoch may be committed.

        Raises as `Log.publish` does.
        """
        assert manifest.pipeline == self.pipeline, f"a manifest of {manifest.pipeline!r} in the log of {self.pipeline!r}"
        self._retained.append(self.log.publish(manifest))
        if self._origin is not None:
            self._doomed.update(self._origin.files())
            self._origin = None

    def collect(self) -> int:
        """Delete what expired by the last publish; how many files of state.

        Call it after a publish; it may be cut off anywhere.
        """
        expired, retained = self._retained[: -self.keep], self._retained[-self.keep :]
        if expired:
            self.log.truncate(retained[0].slot)  # slots before files: no manifest in the log may name a missing file
        with self._guard:
            self._retained = retained
            for published in expired:
                self._doomed.update(published.manifest.files())
            doomed = sorted(self._doomed - self._reachable())
            for path in doomed:
                self.store.delete(path)
            # What a savepoint is still copying stays doomed until it is done; what a retained manifest names
            # will expire with it.
            copying = {path for manifest in self._pinned for path in manifest.files()}
            self._doomed &= copying
        return len(doomed)

    def sweep(self, before: tuple[int, int]) -> int:
        """Delete unreachable files of terms and attempts before (term, attempt) `before`; how many."""
        assert before[0] <= self.log.term, f"sweeping up to term {before[0]} under term {self.log.term}"
        deleted = self._sweep(before)
        for folder in ("log", "terms", "heads"):
            for path in self.store.list(folder):
                if is_temporary(path):
                    self.store.delete(path)
        return deleted

    def sweep_all(self) -> int:
        """Delete every unreachable file of our own and earlier terms; how many.

        Only when no task is running.
        """
        return self._collect_if_published() + self._sweep((self.log.term + 1, 0))

    def _collect_if_published(self) -> int:
        """`collect`, unless this term has published nothing and so may delete no slot."""
        newest = self._retained[-1] if self._retained else None
        return self.collect() if newest is not None and newest.manifest.term == self.log.term else 0

    def adopt(self, manifest: Manifest, source: Store, attempt: int) -> Manifest:
        """Copy a savepoint's files into this job under names of our term; the manifest that names them."""
        names = {path: state_path(self.log.term, attempt, manifest.epoch, secrets.token_hex(8)) for path in manifest.files()}
        _copy(manifest, source, self.store, names)
        adopted = _renamed(manifest, names)
        self._origin = adopted
        return adopted

    def write_savepoint(self, manifest: Manifest, target: Store) -> None:
        """Copy a checkpoint and its files into `target`. Loadable once this returns, and not before."""
        assert not manifest.pending, "a savepoint is taken once its epoch's commit is confirmed: it carries no committables"
        assert not manifest.in_flight, "a savepoint is aligned: pipelines may change between it and the next start"
        if target.read(SAVEPOINT) is not None:
            raise StorageError(f"{target.url} already holds a savepoint", fix=TAKEN)
        data = encode_savepoint(manifest)
        with self._pin(manifest):
            _copy(manifest, self.store, target, {path: path for path in manifest.files()})
        if not target.create(SAVEPOINT, data):
            raise StorageError(f"{target.url}: another savepoint was written there at the same time", fix=TAKEN)

    @contextlib.contextmanager
    def _pin(self, manifest: Manifest) -> Iterator[None]:
        with self._guard:
            self._pinned.append(manifest)
        try:
            yield
        finally:
            with self._guard:
                self._pinned.remove(manifest)

    def _reachable(self) -> set[str]:
        manifests = [published.manifest for published in self._retained] + self._pinned
        if self._origin is not None:
            manifests.append(self._origin)
        return {path for manifest in manifests for path in manifest.files()}

    def _sweep(self, before: tuple[int, int]) -> int:
        deleted = 0
        with self._guard:
            reachable = self._reachable()
            for path in self.store.list("state"):
                name = _STATE.fullmatch(path)
                if name and (int(name[1]), int(name[2])) < before and path not in reachable:
                    self.store.delete(path)
                    deleted += 1
        return deleted


def open_savepoint(path: str | Path) -> tuple[Manifest, Store]:
    """A savepoint's manifest, and the store its files are in.

    All files are there and have the right length.
    """
    store = open_store(path)
    return read_savepoint(store), store


def read_savepoint(store: Store) -> Manifest:
    """The savepoint in `store`: RestoreError if there is none, CorruptError if it is damaged."""
    data = store.read(SAVEPOINT)
    if data is None:
        if store.list("state"):
            raise RestoreError(
                f"the savepoint in {store.url} was never finished: it has files of state and no {SAVEPOINT}",
                fix=Fix("savepoint.unfinished", "Take another savepoint, and give its folder"),
            )
        raise RestoreError(
            f"there is no savepoint in {store.url}: no {SAVEPOINT}",
            fix=Fix("savepoint.none", "Give the folder that job.savepoint(...) wrote"),
        )
    manifest = decode_savepoint(data, f"{store.url}/{SAVEPOINT}")
    if manifest.pending:
        raise CorruptError(f"{store.url}/{SAVEPOINT}: manifest.pending is not empty, and a savepoint never carries committables")
    if manifest.in_flight:
        raise CorruptError(f"{store.url}/{SAVEPOINT}: manifest.in_flight is not empty, and a savepoint is always aligned")
    for handle in manifest.handles():
        checked_file(store, handle, contents=False)
    return manifest


def _copy(manifest: Manifest, source: Store, target: Store, names: Mapping[str, str]) -> None:
    handles = {str(handle["path"]): handle for handle in manifest.handles()}
    for path, name in names.items():
        target.write(name, checked_file(source, handles[path], contents=True), read_soon=False)


def checked_file(store: Store, handle: Mapping[str, Json], *, contents: bool) -> pa.Buffer:
    """The bytes a handle names. A damaged file must not be passed on under a new, trusted name."""
    path = f"{store.url}/{handle['path']}"
    try:
        data = store.open(handle["path"])
    except MissingError as error:
        raise CorruptError(f"a file of state is missing: {error}") from error
    if data.size != handle["bytes"]:
        raise CorruptError(f"{path} has {data.size} bytes; it was written with {handle['bytes']}")
    if contents and runfile.checksum(data) != handle["checksum"]:
        raise CorruptError(f"{path} was altered: its checksum is not {handle['checksum']}")
    return data


def _renamed(manifest: Manifest, names: Mapping[str, str]) -> Manifest:
    operators = tuple(
        replace(
            operator,
            states=tuple(
                replace(
                    state,
                    handles=tuple({**handle, "path": names[handle["path"]]} for handle in state.handles),
                )
                for state in operator.states
            ),
        )
        for operator in manifest.operators
    )
    return replace(manifest, operators=operators)
