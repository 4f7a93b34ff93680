"""The screens of docs/screens/, recorded from the real program with the real model: `make docs`.

python docs/record.py [NAME...] [--to FOLDER]    all of them, or those named

Each is recorded in a home of its own: a daemon, the model of this checkout, commands typed into a
shell in a terminal. Nothing of what is seen is made up; times and ids differ each time.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
for source in (DOCS, ROOT, ROOT / "kernels", ROOT / "sessions"):
    sys.path.insert(0, str(source))

import pyte  # noqa: E402
import svg  # noqa: E402

from radchat.paths import Places  # noqa: E402
from tests.e2e.harness import Terminal, clean_env  # noqa: E402

MODEL = "smollm2-135m"
STORY = ROOT / "radchat" / "cli" / "demo_story.md"
SYSTEM = "You answer in one short sentence."
SETTINGS = {"temperature": "0", "max_tokens": "32"}  # so that it says the same each time
FORKS = {
    "colour": "What colour is the ferry painted?",
    "engineer": "Who is the engineer?",
    "flood": "By how many metres did the water rise?",
}
WHAT_IFS = ("there were a bridge", "the river froze", "Ada retired", "tickets were free")
FAINT = re.compile(rb"\x1b\[(?:0;)?2m")  # which pyte does not know
ELSEWHERE = re.compile(rb"\x1b\[\?1049h.*?\x1b\[\?1049l", re.DOTALL)  # a screen that was left
PATIENCE_S = 120.0


class Screen(NamedTuple):
    name: str
    alt: str
    words: tuple[str, ...]  # what makes it this screen
    columns: int
    rows: int
    record: Callable[[Studio, Shell], None]
    tokens: int = 2048  # of the KV pool


class Studio:
    """A home with a daemon, and commands run in it."""

    def __init__(self, models: Path, tokens: int) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="rc-", dir="/tmp"))  # a socket's path is short
        self.home, self.folder = self._root / "h", self._root / "ferry"
        if not any(models.glob(f"{MODEL}-*")):
            raise SystemExit(f"there is no {MODEL} in {models}: make model")
        (self.home / "cache").mkdir(parents=True)
        (self.home / "cache" / "models").symlink_to(models)
        self.folder.mkdir()
        shutil.copy(STORY, self.folder / "ferry.md")
        commands = self._root / "bin"
        commands.mkdir()
        script = commands / "radchat"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m radchat "$@"\n')
        script.chmod(0o755)
        self.env = clean_env(
            self.home,
            RADCHAT_MODEL=MODEL,
            RADCHAT_SESSION="ferry",
            RADCHAT_KV_DEVICE=f"{tokens}tok",
            PS1="$ ",
        )
        del self.env["PYTHONWARNINGS"]
        self.env["PATH"] = f"{commands}:{self.env['PATH']}"

    def __enter__(self) -> Self:
        self.settings(**SETTINGS)
        return self

    def settings(self, **settings: str) -> None:
        """Before the daemon is up."""
        for name, value in settings.items():
            self.run("config", "set", name, value)

    def __exit__(self, *_error: object) -> None:
        self.run("daemon", "stop")
        shutil.rmtree(self._root, ignore_errors=True)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """A command beside what is recorded."""
        return subprocess.Popen(
            ["radchat", *args],
            env=self.env,
            cwd=self.folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *args: str) -> str:
        """A command that is not seen."""
        process = self.start(*args)
        out = process.communicate(timeout=PATIENCE_S)[0]
        if process.returncode:
            raise SystemExit(f"radchat {' '.join(args)}: exit {process.returncode}\n{out}")
        return out

    def ask(self, system: str, question: str) -> None:
        """The first turn about a document."""
        env, self.env = self.env, {**self.env}
        del self.env["RADCHAT_SESSION"]
        self.run("ask", "--new-session", "ferry", "-s", system, "-f", "ferry.md", question)
        self.env = env

    def talk(self) -> None:
        """Two turns, and branches after the first."""
        self.ask(SYSTEM, "What is the name of the ferry?")
        self.run("ask", "-c", "Who is its captain?")
        for name, question in FORKS.items():
            self.run("fork", "2", "-n", name, question)
            self.run("switch", "main")

    def save(self) -> None:
        """All branches are on disk."""
        for name in ("main", *FORKS):
            self.run("cache", "save", name)


class Shell:
    """A shell in a terminal, and a picture of what it shows."""

    def __init__(self, studio: Studio, columns: int, rows: int) -> None:
        self._size = columns, rows
        command = ["bash", "--noprofile", "--norc", "-i"]
        self.terminal = Terminal(command, studio.env, rows=rows, columns=columns, cwd=studio.folder)
        self._ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.terminal.__exit__()

    def type(self, command: str) -> None:
        """A command, seen to its end."""
        seen = prompts(self.terminal.text)
        self.terminal.type(f"{command}\r")
        self.wait(lambda text: prompts(text) > seen and text.endswith("\n$"))

    def wait(self, is_there: Callable[[str], bool]) -> None:
        self.terminal.wait_for(lambda terminal: is_there(terminal.text), PATIENCE_S)

    def _ready(self) -> None:
        self.wait(lambda text: text == "$")

    def picture(self) -> Any:
        """The screen as it is; faint letters in a colour of their own. Without a last prompt."""
        screen = pyte.Screen(*self._size)
        raw = ELSEWHERE.sub(b"", self.terminal.raw)
        pyte.ByteStream(screen).feed(FAINT.sub(b"\x1b[90m", raw))
        last = max((y for y, line in enumerate(screen.display) if line.strip()), default=0)
        if screen.display[last].strip() == "$":
            screen.buffer[last].clear()
        return screen


def prompts(text: str) -> int:
    return sum(line.startswith("$") for line in text.splitlines())


# -- the screens -----------------------------------------------------------------------------------


def what_if(studio: Studio, shell: Shell) -> None:
    """Four answers in the midst of their streaming; in fp32 a seed draws the same."""
    system = "You tell the people of Tallow what would happen."
    studio.ask(system, "What is the name of the ferry?")
    words = " ".join(f"'What if {each}?'" for each in WHAT_IFS)
    drawn = "--exact --temp 0.9 --min-p 0.08 --seed-base 111 --max-tokens 160"
    shell.terminal.type(f"radchat what-if --at 1 {drawn} {words}\r")
    shell.wait(lambda text: sum(bool(line.strip()) for line in text.splitlines()) > 18)


def tree(studio: Studio, shell: Shell) -> None:
    studio.talk()
    studio.save()
    studio.run("cache", "evict", "--tokens", "64")
    shell.type("radchat tree --show-cache")


def restart(studio: Studio, shell: Shell) -> None:
    studio.talk()
    studio.save()
    shell.type("radchat daemon restart")
    shell.type("radchat tree --show-cache")
    shell.type("radchat models load")
    shell.type('radchat ask -c "How old is the captain?"')


def cache_top(studio: Studio, shell: Shell) -> None:
    """Another session's question needs room: what was used least recently goes to disk."""
    studio.talk()
    studio.save()
    shell.terminal.type("radchat cache top\r")
    shell.wait(lambda text: "engineer" in text and "q leave" in text)
    words = ("Here is a tale for the harbour master. " + STORY.read_text())[:2000]
    del studio.env["RADCHAT_SESSION"]
    asked = ("ask", "--new-session", "harbour", "--max-tokens", "200", words)
    process = studio.start(*asked)
    shell.wait(lambda text: "G>D" in text and " L " in text and "harbour" in text)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=PATIENCE_S)


def cache_why(studio: Studio, shell: Shell) -> None:
    studio.talk()
    studio.save()
    studio.run("cache", "evict", "--tokens", "240")
    shell.type('radchat edit 2 "What is the engineer\'s name?"')
    shell.type("radchat cache why")


def search(studio: Studio, shell: Shell) -> None:
    """A tree of thoughts as the search leaves it, and as the session has it."""
    studio.settings(max_tokens="64")
    shell.terminal.type("unset RADCHAT_SESSION; clear\r")
    shell.terminal.wait_for(lambda terminal: b"$ " in terminal.raw.rpartition(b"\x1b[2J")[2])
    asked = '"How can a small town get more people to cycle to work?"'
    shell.terminal.type(f"radchat think -k 3 -d 2 --seed 7 {asked}\r")
    shell.wait(lambda text: "tok/s" in text and text.endswith("\n$"))
    shell.type("radchat tree --filter labeled --show-cache")


SCREENS = (
    Screen(
        "what-if",
        "Four what-ifs answered at once, side by side in columns, in the midst of it.",
        ("bridge", "river", "Ada", "tickets", "4 answering"),
        130,
        26,
        what_if,
    ),
    Screen(
        "tree",
        "The tree of a session: a row for each message, with its tokens, the tier its KV is in (G "
        "the device, D the disk), when it was used, and when its turn to go comes. What all "
        "branches have in common was computed once.",
        (
            "radchat tree --show-cache",
            "colour",
            "engineer",
            "flood",
            "HEAD",
            "G",
            "D",
            "computed once",
        ),
        110,
        24,
        tree,
    ),
    Screen(
        "restart",
        "After a restart of the daemon all messages of the tree are on disk, and the next answer "
        "restores them from there instead of computing them again.",
        ("daemon restart", "D", "on disk", "from disk", "62"),
        110,
        34,
        restart,
    ),
    Screen(
        "cache-top",
        "cache top: bars of how full the tiers are, and a row for each branch. Another session "
        "needs room; the branch used least recently has just gone from the device to disk, G>D, "
        "and what the running answer relies on is locked, L.",
        ("G device", "G>D", "L", "harbour", "(shared)", "lru 1 goes first"),
        124,
        20,
        cache_top,
        944,
    ),
    Screen(
        "cache-why",
        "cache why: how an answer's prompt was made up. The beginning was reused; from the word at "
        "which the question was changed on, it was computed.",
        ("radchat cache why", "reused", "disk", "computed", "edited"),
        100,
        24,
        cache_why,
    ),
    Screen(
        "search",
        "A search: the tree of its thoughts with their scores, what was pruned, which path is the "
        "best, then the answer written from it. Below, the same thoughts as messages of the "
        "session: what lives has its KV on the device, what was pruned has none.",
        ("radchat think", "best", "pruned", "s1.1", "cached", "--filter labeled", "G", "HEAD"),
        116,
        37,
        search,
    ),
)


def record(screen: Screen, models: Path) -> str:
    with (
        Studio(models, screen.tokens) as studio,
        Shell(studio, screen.columns, screen.rows) as shell,
    ):
        screen.record(studio, shell)
        picture = shell.picture()
    text = "\n".join(picture.display)
    missing = [word for word in screen.words if word not in text]
    if missing:
        raise SystemExit(f"{screen.name}: {', '.join(missing)} not seen on\n{text}")
    return svg.svg(picture, f"radchat {screen.name.replace('cache-', 'cache ')}", screen.alt)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="record the screens of docs/screens")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a screen; none: all")
    parser.add_argument("--to", type=Path, default=DOCS / "screens", metavar="FOLDER")
    models = Places.from_env().models
    parser.add_argument("--models", type=Path, default=models, metavar="FOLDER")
    asked = parser.parse_args(argv)
    known = {screen.name: screen for screen in SCREENS}
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"no screen {', '.join(unknown)}: there are {', '.join(known)}")
    asked.to.mkdir(parents=True, exist_ok=True)
    for name in asked.names or known:
        made = record(known[name], asked.models)
        (asked.to / f"{name}.svg").write_text(made, encoding="utf-8")
        print(f"{asked.to / name}.svg  {len(made):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
