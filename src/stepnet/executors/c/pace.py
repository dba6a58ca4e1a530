"""Whether a short call gains by threads: waking them, and their meetings where others use the cores, may take
longer than the work.

The numbers are the same either way, so that calls find it out as they go: now and then a few calls go the
other way, and what took less time on the whole is what the next calls do.
"""

from __future__ import annotations

import math

SHORT = 1 << 27  # multiplications of a call that is a short one: milliseconds on one thread
_FIRST, _MOST = 8, 4096  # calls between two trials
_TRIAL = 4  # calls that go the other way
_SLOW = 4  # times what is usual: a call of all threads that had to wait
_GAIN = 0.95  # of the time that is usual: what takes no less is no better


class Pace:
    """The times of calls of one kind, by all threads and by one."""

    def __init__(self) -> None:
        self.by_all = True  # what calls do now
        self._usual = math.inf  # how long those take
        self._left = self._wait = _FIRST  # calls to the next trial, and from each trial to the next
        self._tried, self._spent = 0, 0

    def takes_all(self) -> bool:
        """Whether the next call is by all threads."""
        return self.by_all is (self._left > 0)

    def note(self, by_all: bool, time: int) -> None:
        """Tell how long a call took."""
        if by_all is self.by_all:
            if by_all and time > _SLOW * self._usual:
                self._left = 0
            self._usual = time if self._usual == math.inf else self._usual + (time - self._usual) / 8
            self._left -= 1
            return
        self._tried += 1
        self._spent += time
        if self._spent > _GAIN * _TRIAL * self._usual:
            self._wait = min(2 * self._wait, _MOST)
        elif self._tried == _TRIAL:
            self.by_all, self._usual, self._wait = by_all, self._spent / _TRIAL, _FIRST
        else:
            return
        self._left, self._tried, self._spent = self._wait, 0, 0
