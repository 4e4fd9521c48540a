"""What a pass may spend on whose jobs: what doesn't fit is left to the next, so that nobody's jobs hold up others'."""

from __future__ import annotations

from ..common.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EACH = 0.5  # seconds of one user's jobs in one part of a pass (looking, deciding): thousands of ordinary ones
SHARE = 0.1  # of the period, for all users: Slurm's commands and the pause take the rest


class Budget:
    """Seconds by user. clock: seconds of this process's own work."""

    def __init__(self, period: float, clock: Callable[[], float]) -> None:
        self.most, self.clock = max(EACH, SHARE * period), clock
        self.spent: dict[str, float] = {}
        self.started = self.since = clock()

    def allows(self, user: str) -> bool:
        """There is time left for this user's jobs. What is done from here on is on the user's account."""
        self.since = self.clock()
        return self.since - self.started < self.most and self.spent.get(user, 0.0) < EACH

    def charge(self, user: str) -> None:
        """Ends what `allows` began."""
        self.spent[user] = self.spent.get(user, 0.0) + self.clock() - self.since
