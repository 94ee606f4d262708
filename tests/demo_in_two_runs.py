"""The demo, cut in two by a kill of the driver between publishing an epoch and committing it. For tests/test_demo.py.

    python demo_in_two_runs.py ORDER FOLDER

ORDER is `publish-first`, as it must be, or `commit-first`: two lines of the protocol swapped. The first call kills its own
process between the two, in an epoch with output; the second goes on in the same folder, to the demo's own verdict.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from penstock import demo
from penstock.protocol import coordinator as c
from penstock.runners.conductor import Conductor

publish = Conductor._publish
SECONDS, RATE = 8.0, 10_000.0


def die_in_between(order: str) -> None:
    """Make the coordinator die between the two steps, in the order given."""

    def publish_and_die(self: Conductor, asked: c.Publish) -> Any:
        fresh = [pending for pending in asked.pending if pending.epoch == asked.epoch]
        if not fresh or self.epochs_published < 2:
            return publish(self, asked)
        if order == "commit-first":
            for pending in fresh:
                self._committers[pending.sink].commit(pending.epoch, pending.committables, 1)
        else:
            publish(self, asked)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("the process is gone")

    Conductor._publish = publish_and_die  # type: ignore[method-assign]


if __name__ == "__main__":
    order, folder = sys.argv[1], Path(sys.argv[2])
    if not folder.exists():
        die_in_between(order)
    sys.exit(0 if demo.run(seconds=SECONDS, rate=RATE, folder=folder).exactly_once else 1)
