"""The calls of one state, one after the other, beside those of the others.

A lane has a thread only while it has something to do, so there is none to end. One of a fork begins
with nothing: it opens when its parent has come to the fork.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from radchat.programs.errors import ProgramError, failed


@dataclass(frozen=True, slots=True)
class Job:
    """A call that waits for its turn."""

    place: str
    what: str
    run: Callable[[], None]
    fail: Callable[[ProgramError], None]  # it will never run, or has failed


class Lane:
    def __init__(self, *, parallel: bool) -> None:
        self._parallel = parallel
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._is_open = False
        self._is_running = False
        self._job: Job | None = None  # the one that runs
        self.error: ProgramError | None = None

    def open(self) -> None:
        """What has been put may begin."""
        with self._changed:
            self._is_open = True
        self._go_on()

    def put(self, job: Job) -> None:
        """At the end of the queue; one of a lane that has failed fails with it."""
        with self._changed:
            error = self.error
            if error is None:
                self._jobs.append(job)
        if error is not None:
            job.fail(error)
        self._go_on()

    def end(self, error: ProgramError) -> None:
        """Nothing more is done here: what runs and all that waits fails with ``error``."""
        with self._changed:
            if self.error is None:
                self.error = error
            left = [*([self._job] if self._job else []), *self._jobs]
            self._jobs.clear()
            self._changed.notify_all()
        for job in left:
            job.fail(error)

    def wait(self) -> None:
        """Until nothing is left to do."""
        with self._changed:
            while self.error is None and (self._jobs or self._is_running):
                self._changed.wait()

    def _go_on(self) -> None:
        with self._changed:
            if self._is_running or not self._jobs or not self._is_open:
                return
            self._is_running = True
        if self._parallel:
            threading.Thread(target=self._work, name="program", daemon=True).start()
        else:
            self._work()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._job = None
                if not self._jobs:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                self._job = job = self._jobs.popleft()
            try:
                job.run()
            except Exception as error:
                self.end(failed(job.place, job.what, error))
            except BaseException:
                with self._changed:
                    self._job, self._is_running = None, False
                raise
