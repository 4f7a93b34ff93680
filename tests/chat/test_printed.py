"""What a program prints while there is a line of progress."""

from __future__ import annotations

import contextlib
import threading

from radchat.cli.printed import Printed


def test_lines_of_threads_that_print_at_once_are_whole() -> None:
    written: list[str] = []
    turn = threading.Barrier(2)

    def speak(word: str) -> None:
        for _ in range(3):
            printed.write(word)
            turn.wait(10)
        printed.write("\n")

    with Printed(written.append) as printed:
        threads = [threading.Thread(target=speak, args=(word,)) for word in "ab"]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert sorted(written) == ["aaa\n", "bbb\n"]


def test_a_line_without_an_end_is_there_when_it_is_flushed_or_closed() -> None:
    written: list[str] = []
    with Printed(written.append) as printed, contextlib.redirect_stdout(printed):
        print("one\ntwo", end="")
        assert written == ["one\n"]
        print("? ", end="", flush=True)
        assert written == ["one\n", "two? "]
        print("last", end="")
    assert written == ["one\n", "two? ", "last"]
