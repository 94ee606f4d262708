"""What a start owes the sinks before it writes anything: outputs of earlier runs that were promised, and no others in the way.

1. An epoch that another lineage published and did not confirm is committed first, as that lineage: it was promised. A sink that says
   "not now", or fails in a way that may pass, is asked again, for as long as commits of a running job are. It was promised to the
   place where it was prepared: a sink that writes elsewhere now commits it there (see `connectors.filesink`).
2. A sink that shows epochs of a history that is not ours is refused: rows would be written again, or beside strangers'. Our history is
   our own lineage, and every lineage it was forked from up to the epoch of the fork.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.checkpoints.manifest import Manifest
from penstock.connectors.connector import Committer, Verdict
from penstock.errors import Fix, JobError, RestoreError
from penstock.passing import PATIENCE_US, Fate, fate_of, text_of
from penstock.plan.logical import Write
from penstock.plan.physical import PhysicalPlan
from penstock.protocol import coordinator as c
from penstock.runtime.assemble import sink_context
from penstock.tracebacks import Within

__all__ = ["Ancestors", "ancestors_of", "check_sinks", "pending_of", "settle"]

log = logging.getLogger("penstock")

Ancestors = tuple[tuple[str, int], ...]
"""The lineages that ours was forked from, each with the epoch of the fork; the nearest first."""

PAUSE_MAX_S = 30.0


def pending_of(manifest: Manifest) -> list[c.Pending]:
    """What a checkpoint lists as not yet committed."""
    return [c.Pending(p.epoch, p.sink, tuple(p.committables)) for p in manifest.pending]


def ancestors_of(manifest: Manifest) -> Ancestors:
    """Those of a checkpoint's lineage. Before there were forks of forks, checkpoints named the nearest only."""
    return (manifest.parent, *manifest.ancestors) if manifest.parent is not None else ()


def settle(
    manifest: Manifest,
    plan: PhysicalPlan,
    job_dir: Path,
    *,
    pause: Callable[[float], bool],
    trouble: Callable[[str], None] = lambda text: None,
) -> None:
    """Commit what another lineage published and did not confirm.

    Args:
        pause: waits for so many seconds; False if the job was cancelled meanwhile, which ends this.
        trouble: is told what is in the way.
    """
    for pending in pending_of(manifest):
        op = next(op for op in plan.writes if op.name == pending.sink)
        assert isinstance(op.node, Write)
        within = Within(op.who)
        with within:
            committer = op.node.sink.committer(sink_context(op.node, manifest.lineage, "settle", job_dir))
        try:
            _commit(committer, within, pending, pause, trouble)
        finally:
            with within:
                committer.close()


def _commit(
    committer: Committer, within: Within, pending: c.Pending, pause: Callable[[float], bool], trouble: Callable[[str], None]
) -> None:
    since, tries = time.monotonic(), 0
    while True:
        tries += 1
        error: Exception | None = None
        try:
            with within:
                verdict = committer.commit(pending.epoch, pending.committables, 0)
            if verdict is not Verdict.RETRY:
                trouble("")
                return
        except Exception as raised:
            error = raised
            fate = fate_of(raised)
            if fate is Fate.FINAL or 0 < fate.tries <= tries:
                raise
        said = text_of(error).splitlines()[0] if error is not None else "not now"
        why = f"sink {pending.sink!r} cannot take epoch {pending.epoch} of an earlier run yet: {said}"
        if time.monotonic() - since > PATIENCE_US / 1e6:
            raise JobError(
                why, fix=Fix("sinks.settle", "Start the job again once the sink answers: the epoch is committed then")
            ) from error
        log.warning("%s", why)
        trouble(why)
        if not pause(min(0.1 * 2 ** min(tries - 1, 20), PAUSE_MAX_S)):
            raise JobError(f"{why}, and the job was cancelled") from error


def check_sinks(
    committers: Mapping[str, Committer], within: Mapping[str, Within], lineage: str, ancestors: Ancestors, epoch: int
) -> None:
    """Refuse to write beside another history of outputs."""
    ours = {lineage: None, **dict(ancestors)}
    for name, committer in committers.items():
        with within[name]:
            found = committer.committed()
        if found is None:
            continue
        until = ours.get(found[0], -1)
        if until is None or found[1] <= until:
            continue
        raise RestoreError(
            f"sink {name!r} holds epoch {found[1]} of another run of this pipeline (lineage {found[0]}),"
            f" and this one would start at epoch {epoch + 1}",
            fix=Fix("sinks.history", "Go on with the storage of that run, or write to another place"),
        )
