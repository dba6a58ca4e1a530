"""Whether a call gains by threads: waking them, and their meetings where others use the cores, may take
longer than the work.

The numbers are the same either way, so that calls find it out as they go: now and then a few calls go the
other way, and what took less time on the whole is what the next calls do.
"""

from __future__ import annotations

import math

SHORT = 1 << 27  # multiplications of a call that is a short one: milliseconds on one thread
_FIRST, _MOST = 8, 256  # calls between two trials
_TRIAL = 4  # calls that go the other way
_TOLD = 5_000_000  # nanoseconds of calls that tell as much, however few they are
_SLOW = 4  # times what is usual: a call of all threads that had to wait
_GAIN = 0.95  # of the time that is usual: what takes no less is no better


class Pace:
    """The times of calls of one kind, by all threads and by one."""

    def __init__(self) -> None:
        self.by_all = True  # what calls do now
        self._usual, self._calls = math.inf, 0  # how long a row of those takes, and how many there were
        self._left = self._wait = _FIRST  # calls to the next trial, and from each trial to the next
        self._tried, self._spent, self._each = 0, 0, 0.0
        self._trials = 0  # that are over

    def takes_all(self) -> bool:
        """Whether the next call is by all threads."""
        return self.by_all is (self._left > 0)

    def note(self, by_all: bool, time: int, rows: int = 1) -> None:
        """Tell how long a call of so many rows took."""
        if by_all is self.by_all:
            self._note_usual(time, time / rows)
            return
        self._tried += 1
        self._spent += time
        self._each += time / rows
        calls = self._tried if self._spent >= _TOLD else _TRIAL
        if self._each > _GAIN * calls * self._usual:
            self._wait = min(2 * self._wait, _MOST)
        elif self._tried == calls:
            self.by_all, self._usual, self._calls, self._wait = by_all, self._each / calls, calls, _FIRST
        else:
            return
        self._left, self._tried, self._spent, self._each = self._wait, 0, 0, 0.0
        self._trials += 1

    def _note_usual(self, time: int, each: float) -> None:
        self._left -= 1
        waited = self.by_all and each > _SLOW * self._usual
        told = self._trials == 0 and self._calls > 0 and self._calls * time >= _TOLD
        if waited or told:
            self._left = 0
        if self._calls < 2 and self._trials == 0:  # the first call finds nothing where it was
            self._usual = each
        else:  # one that waited for others may be the only one
            more = min(each, _SLOW * self._usual) - self._usual
            self._usual += more / min(self._calls, 8)
        self._calls += 1
