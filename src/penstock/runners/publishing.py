"""Putting a checkpoint into the log: again and again, while storage cannot take it.

The coordinator asks once for each epoch and decides nothing until it hears how it went. A full disk passes, so it hears of it only
after `PATIENCE_US`; meanwhile tasks go on, and the same bytes are put again. (The same: if an earlier call did succeed although storage
said no, they find themselves.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.checkpoints.manifest import Manifest
from penstock.checkpoints.repository import Repository
from penstock.checkpoints.storage import OutcomeUnknown
from penstock.errors import StorageError, SupersededError
from penstock.passing import PATIENCE_US, Fate, fate_of, pause_us
from penstock.protocol import coordinator as c

__all__ = ["Publishing"]

log = logging.getLogger("penstock")


class Publishing:
    """The publishing of one term."""

    def __init__(self, repository: Repository, clock: Callable[[], int], backoff: int) -> None:
        self._repository, self._clock, self._backoff = repository, clock, backoff
        self._asked: c.Publish | None = None
        self.manifest: Manifest | None = None  # the last that was put
        self._since = self._tries = 0
        self.waiting = False  # for storage
        self.again_at = 0
        self.trouble = ""
        self.unknown = False  # whether the last checkpoint is there: only a new term can tell

    def put(self, publish: c.Publish, make: Callable[[], Manifest]) -> c.Event | None:
        """Publish. None: storage cannot take it now; call `again` at `again_at`."""
        if self._asked != publish:
            self._asked, self.manifest = publish, make()
            self._since, self._tries = self._clock(), 0
        return self._put(publish.epoch)

    def again(self) -> c.Event | None:
        """Try once more, if it is time."""
        if not self.waiting or self._clock() < self.again_at:
            return None
        assert self._asked is not None, "nothing waits unasked"
        return self._put(self._asked.epoch)

    def _put(self, epoch: int) -> c.Event | None:
        assert self.manifest is not None, "there is something to publish"
        self.waiting = False
        try:
            self._repository.publish(self.manifest)
        except SupersededError:
            return c.Superseded()
        except OutcomeUnknown as error:
            log.warning("%s; starting over with a new term", error)
            self.unknown = True
            return c.Superseded()
        except StorageError as error:
            now = self._clock()
            self._tries += 1
            if fate_of(error) is not Fate.PASSING or now - self._since >= PATIENCE_US:
                return c.PublishFailed(epoch, str(error))
            self.waiting, self.again_at = True, now + pause_us(self._tries, self._backoff)
            self.trouble = f"epoch {epoch} cannot be published yet: {error}"
            log.warning("%s: %s", self.manifest.pipeline, self.trouble)
            return None
        self.trouble = ""
        return c.Published(epoch)
