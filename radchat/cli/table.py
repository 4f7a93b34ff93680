"""Every command, once: its name, where it lives, and the line `radchat --help` says of it.

Importing a command's module is put off until it is asked for; this table is all that `--help`, a
mistyped word and the line parser need (docs/cli.md, "Commands").
"""

from __future__ import annotations

from dataclasses import dataclass

from radchat.chat.width import hang

FIRST_DAY = "Start here"
BRANCHES = "Go back, go on"
LOOK = "Sessions and cache"
PROGRAMS = "Programs"
MACHINE = "Models, daemon, set-up"
SECTIONS = (FIRST_DAY, BRANCHES, LOOK, PROGRAMS, MACHINE)


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    target: str  # "module:attribute"; an attribute that ends in _app is a Typer of its own
    section: str
    help: str


_CLI = "radchat.cli."
COMMANDS = (
    Entry("demo", _CLI + "demo:demo", FIRST_DAY, "a tour in a minute, on a real model"),
    Entry("chat", _CLI + "chat:chat", FIRST_DAY, "talk; -c goes on with the current session"),
    Entry("ask", _CLI + "ask:ask", FIRST_DAY, "one question, one answer; reads pipes"),
    Entry("fork", _CLI + "fork:fork", FIRST_DAY, "a new branch at an earlier message"),
    Entry("switch", _CLI + "fork:switch", FIRST_DAY, "go to a branch or message; - goes back"),
    Entry("tree", _CLI + "tree:tree", FIRST_DAY, "the session as a tree; --show-cache"),
    Entry("log", _CLI + "tree:log", FIRST_DAY, "the conversation up to here"),
    Entry("models", "radchat.cli.models:models_app", FIRST_DAY, "get, list, choose models"),
    Entry("what-if", _CLI + "what_if:what_if", BRANCHES, "several texts answered at once"),
    Entry("branch", _CLI + "fork:branch", BRANCHES, "list, create, rename, delete branches"),
    Entry("undo", _CLI + "edit:undo", BRANCHES, "go back a turn; nothing is deleted"),
    Entry("redo", _CLI + "edit:redo", BRANCHES, "take back an undo"),
    Entry("retry", _CLI + "edit:retry", BRANCHES, "another answer to the same question"),
    Entry("edit", _CLI + "edit:edit", BRANCHES, "say an earlier turn differently"),
    Entry("continue", _CLI + "edit:continue_", BRANCHES, "go on with a cut-off answer"),
    Entry("compare", _CLI + "compare:compare", BRANCHES, "branches beside each other"),
    Entry("diff", _CLI + "compare:diff", BRANCHES, "what differs between two branches"),
    Entry("prune", _CLI + "sessions_kept:prune", BRANCHES, "delete what no name reaches"),
    Entry("sessions", _CLI + "sessions:sessions_app", LOOK, "ls, search, export, import, rm, ..."),
    Entry("cache", _CLI + "cache:cache_app", LOOK, "stats, ls, top, why, pin, save, load, warm"),
    Entry("think", _CLI + "think:think", PROGRAMS, "an answer by a search over thoughts"),
    Entry("vote", _CLI + "vote:vote", PROGRAMS, "many answers; the one that most of them give"),
    Entry("agent", _CLI + "agent:agent", PROGRAMS, "a model with tools, in this folder; -p prints"),
    Entry("run", _CLI + "run:run", PROGRAMS, "a Python file with an @program; result as JSON"),
    Entry("serve", _CLI + "serve:serve", MACHINE, "an OpenAI-compatible API on TCP"),
    Entry("daemon", _CLI + "daemon:daemon_app", MACHINE, "start, stop, restart, status, logs"),
    Entry("bench", _CLI + "bench:bench", MACHINE, "what reuse is worth here, measured in a minute"),
    Entry("doctor", _CLI + "doctor:doctor", MACHINE, "what is installed, set and running"),
    Entry("completion", _CLI + "completion:completion", MACHINE, "Tab completion for bash, zsh"),
    Entry("config", _CLI + "config:config_app", MACHINE, "get, set, unset, list, path"),
)
BY_NAME = {entry.name: entry for entry in COMMANDS}

# another word for a command, and the words it stands for
ALIASES: dict[str, tuple[str, ...]] = {
    "checkout": ("switch",),
    "whatif": ("what-if",),
    "tot": ("think",),
    "search": ("think",),
    "pull": ("models", "pull"),
    "ps": ("models", "ps"),
    "stop": ("models", "stop"),
}

GLOBAL_OPTIONS = (
    ("-h, --help", "this list; after a command, its options"),
    ("-V, --version", "print the version"),
    ("-q, --quiet", "no notes, no footer"),
    ("-v, --verbose", "more notes; a traceback with an error"),
    ("--color auto|always|never", "colour (also NO_COLOR, FORCE_COLOR)"),
    ("--plain", "no colour, no status line"),
    ("--json", "one JSON document, also on failure"),
    ("--session ID|NAME", "which session (also RADCHAT_SESSION)"),
    ("--daemon SOCK", "a running daemon's socket"),
    ("--engine URL", "another program's engine (also RADCHAT_ENGINE)"),
    ("--config FILE", "another config.toml"),
)


def help_text() -> str:
    """What `radchat --help` prints."""
    lines = [
        "Usage: radchat [-c] [-r [ID]] [PROMPT...]   talk (as radchat chat)",
        "       radchat -p [PROMPT...]               answer once (as radchat ask)",
        "       radchat COMMAND ...                  its options: radchat COMMAND --help",
    ]
    for section in SECTIONS:
        lines += ["", f"{section}:"]
        lines += [f"  {e.name:<11}{e.help}" for e in COMMANDS if e.section == section]
    also = "Also: " + ", ".join(f"{a} = {' '.join(words)}" for a, words in ALIASES.items())
    lines += ["", *hang(also, 80, len("Also: "))]
    lines += ["", "Options, before or after the command:"]
    lines += [f"  {names:<28}{text}" for names, text in GLOBAL_OPTIONS]
    lines += ["", "The current session is this terminal's last, else the last of this folder."]
    return "\n".join(lines)
