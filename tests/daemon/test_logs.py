"""The log: small, private, without anybody's words."""

from __future__ import annotations

import logging
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from radchat.daemon.logs import Formatter, LogFile, set_up, take_down
from tests.daemon.conftest import REPO

WORDS = "what the user typed"


def fail(error: Exception) -> None:
    raise error


def formatted(error: Exception) -> str:
    try:
        fail(error)
    except Exception as raised:
        kind = type(raised)
        return Formatter().formatException((kind, raised, raised.__traceback__))
    raise AssertionError


@pytest.mark.parametrize("kind", [ValueError, KeyError, TypeError, LookupError, Exception])
def test_an_error_that_may_quote_the_user_is_logged_by_name_and_place(
    kind: type[Exception],
) -> None:
    text = formatted(kind(WORDS))
    assert WORDS not in text
    assert kind.__name__ in text
    assert "test_logs.py" in text


def test_an_error_about_the_machine_keeps_its_message() -> None:
    assert "No space left" in formatted(OSError(28, "No space left"))


def test_the_cause_of_an_error_is_logged_first_and_its_words_are_not() -> None:
    outer = RuntimeError("the step failed")
    outer.__cause__ = ValueError(WORDS)
    text = formatted(outer)
    assert WORDS not in text
    assert text.index("ValueError") < text.index("RuntimeError: the step failed")


def test_three_files_of_bounded_size_are_kept_all_private(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "daemon.log"
    handler = set_up(log, "info", owns_output=False)
    handler.maxBytes = 2000
    try:
        for i in range(200):
            logging.getLogger("radchat.test").info("line %d of the log", i)
    finally:
        take_down(handler)
    files = sorted(log.parent.iterdir())
    assert [file.name for file in files] == ["daemon.log", "daemon.log.1", "daemon.log.2"]
    assert all(file.stat().st_size <= 2000 for file in files)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert "line 199 of the log" in log.read_text()


def test_output_of_libraries_follows_the_log_over_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    code = (
        "import logging, os, sys; from pathlib import Path; from radchat.daemon import logs;"
        "h = logs.set_up(Path(sys.argv[1]), 'info', owns_output=True); h.maxBytes = 300;"
        "[logging.warning('line %d', i) for i in range(20)]; os.write(2, b'from C\\n')"
    )
    command = [sys.executable, "-P", "-c", code, str(log)]
    subprocess.run(command, env={"PYTHONPATH": str(REPO)}, check=True)
    assert log.read_text().endswith("from C\n")
    assert log.with_name("daemon.log.1").exists()


def test_a_level_below_the_one_set_is_not_logged(tmp_path: Path) -> None:
    handler = set_up(tmp_path / "l", "warning", owns_output=False)
    try:
        logging.getLogger("radchat.test").info("quiet")
        logging.getLogger("radchat.test").warning("loud")
    finally:
        take_down(handler)
    assert isinstance(handler, LogFile)
    text = (tmp_path / "l").read_text()
    assert "loud" in text
    assert "quiet" not in text
