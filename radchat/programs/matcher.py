"""The last match of a regular expression, found by a child process.

Some patterns take for ever on some texts, and nothing in this process could stop one: a search
holds the interpreter, from Ctrl+C too. A child may be ended. It counts its own processor time, so
that a busy machine makes no answer slow; of one that was ended the next text finds another.

Run as a script this file is that child: a pattern and then texts come in, a line of JSON each, and
for each text its match goes out. It imports nothing of radchat, so it is there in a moment.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import TextIO

LIMIT_S = 1.0  # of processor time, for a text
MOST_GIVEN_UP = 3  # then the pattern is at fault, and no more texts are tried


def last_of(pattern: re.Pattern[str], text: str) -> str | None:
    """What the last match has that is not blank: its first group that took part, if it has any."""
    found = None
    for match in pattern.finditer(text):
        groups = match.groups() or (match[0],)
        told = next((group for group in groups if group is not None), "").strip()
        found = told or found
    return found


class Matcher:
    """``num_given_up``: texts in which the search was ended, or not begun any more."""

    def __init__(self, pattern: str, limit_s: float = LIMIT_S) -> None:
        self.num_given_up = 0
        self._pattern, self._limit_s = pattern, limit_s
        self._child: subprocess.Popen[str] | None = None

    def __call__(self, text: str) -> str | None:
        if self.num_given_up < MOST_GIVEN_UP:
            try:
                answer = self._ask(text)
            except OSError:
                answer = ""
            if answer:
                return None if (found := json.loads(answer)) is None else str(found)
            self.close()
        self.num_given_up += 1
        return None

    def _ask(self, text: str) -> str:
        """A line of JSON; empty where the child ended."""
        child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(text) + "\n")
        child.stdin.flush()
        return child.stdout.readline()

    def _start(self) -> subprocess.Popen[str]:
        self._child = child = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self._limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl+C is the command's
        )
        assert child.stdin is not None
        child.stdin.write(json.dumps(self._pattern) + "\n")
        return child

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()


def main(limit_s: float, given: TextIO, out: TextIO) -> None:
    pattern = compiled(json.loads(given.readline()))
    for line in given:
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)  # its signal ends a process
        found = last_of(pattern, json.loads(line))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        out.write(json.dumps(found) + "\n")
        out.flush()


def compiled(pattern: str) -> re.Pattern[str]:
    """``^`` and ``$`` are at every line: an answer has several."""
    return re.compile(pattern, re.MULTILINE)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.stdin, sys.stdout)
