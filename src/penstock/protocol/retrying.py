"""How often a commit has failed in a way that may pass, since when, and when to ask for it again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failing:
    """The failures of one commit, in a row."""

    tries: int = 0
    since: int = 0

    def again(self, now: int) -> Failing:
        """With one more."""
        return Failing(self.tries + 1, self.since if self.tries else now)

    def given_up(self, now: int, most: int, patience: int) -> bool:
        """Whether that was enough: so many, or if `most` is 0, for so long."""
        return self.tries >= most if most else now - self.since >= patience

    def pause(self, least: int, most: int) -> int:
        """How long to wait: `least`, doubled after each failure, up to `most`."""
        return min(least << min(self.tries - 1, 30), most)
