from __future__ import annotations

from typing import Any

import pytest

from radchat.chat.commands import help_lines
from radchat.cli import argv, habits
from radchat.cli.table import ALIASES, BY_NAME, COMMANDS, help_text
from radchat.errors import UsageError

TABLE = {
    # bare radchat is chat, -p makes it ask
    "": "chat",
    "-c": "chat -c",
    "-r": "chat --resume=",
    "-r report": "chat --resume=report",
    "-rreport": "chat --resume=report",
    "-r -m tiny": "chat --resume= -m tiny",
    "-r 'what is it'": "chat --resume= 'what is it'",
    "'what is it'": "chat 'what is it'",
    "tell me a story": "chat tell me a story",
    "-p hi": "ask hi",
    "--print hi": "ask hi",
    "-c -p hi": "ask -c hi",
    "-- tree": "chat -- tree",
    "-m tiny -c": "chat -m tiny -c",
    # options with an optional value
    "ask --think hi": "ask --think=on hi",
    "ask --think high hi": "ask --think=high hi",
    "ask --think=low hi": "ask --think=low hi",
    "fork --new-session": "fork --new-session=",
    "fork --new-session side 4": "fork --new-session=side 4",
    "fork --new-session 'two words'": "fork --new-session= 'two words'",
    "chat --resume x": "chat --resume=x",
    "log -r": "log -r",
    "ask -- -r": "ask -- -r",
    "ask -s -r hi": "ask -s -r hi",  # the value of -s
    # global options on either side
    "tree --json": "--json tree",
    "--json tree": "--json tree",
    "tree --session x -q": "--session x -q tree",
    "sessions ls --color=never": "--color=never sessions ls",
    "ask -s --json hi": "ask -s --json hi",  # the value of -s again
    "ask -- --json": "ask -- --json",
    "vote --extract --json hi": "vote --extract --json hi",
    "agent -r --tools list hi": "agent --resume= --tools list hi",
    "agent -p --check --json hi": "agent -p --check --json hi",
    "agent --think hi": "agent --think=on hi",
    "vote --extract -r4 -r x hi": "vote --extract -r4 --resume=x hi",
    "ask --extract --json hi": "--json ask --extract hi",  # a flag there
    # other words for a command
    "checkout main": "switch main",
    "pull smollm2-135m": "models pull smollm2-135m",
    "ps": "models ps",
    "help tree": "tree --help",
    "help": "help",
    "-h": "help",
    "--help": "help",
    "-V": "version",
    "tree --version": "version",
}


@pytest.mark.parametrize(("typed", "meant"), TABLE.items())
def test_a_command_line_is_read_as_meant(typed: str, meant: str) -> None:
    import shlex

    assert argv.parse(shlex.split(typed)).argv == shlex.split(meant)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["tre"], "`radchat tree`"),
        (["swtich", "main"], "`radchat switch`"),
        (["Tree"], "`radchat tree`"),
        (["xyzzy"], "`radchat --help`"),
        (["hello"], 'radchat chat "hello"'),
        (["--json", "chekout", "x"], "`radchat checkout`"),
        (["-c", "tre"], "`radchat tree`"),
    ],
)
def test_a_mistyped_command_is_never_a_prompt(typed: list[str], hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        argv.parse(typed)
    assert hint in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("list", "`radchat sessions ls` or `radchat models ls`"),
        ("ls", "`radchat sessions ls` or `radchat models ls`"),
        ("show tiny", "`radchat models show tiny`"),
        ("rm 'two words.txt'", None),
        ("rm report", "`radchat sessions rm report`"),
        ("resume", "`radchat chat -r`"),
        ("resume report", "`radchat chat -r report`"),
        ("why d9f1", "`radchat cache why d9f1`"),
        ("-m tiny status", "`radchat daemon status`"),
        ("list three odd animals", None),
        ("show me stars.", None),
        ("why is it?", None),
        ("what time", None),
        ("what is it", None),
        ("what", "did you mean `radchat whatif`?"),
        ("-p diff main 1", None),
        ("-- diff main", None),
    ],
)
def test_words_of_other_tools_are_answered_with_what_to_type(typed: str, hint: str | None) -> None:
    import shlex

    words = shlex.split(typed)
    if hint is None:
        assert argv.parse(words).command in ("chat", "ask")
        return
    with pytest.raises(UsageError) as caught:
        argv.parse(words)
    assert hint in caught.value.message


@pytest.mark.parametrize("form", [form for forms in habits.HABITS.values() for form in forms])
def test_what_to_type_is_a_command(form: str) -> None:
    line = argv.parse(form.format("word").split())
    assert line.command == form.split(maxsplit=1)[0]


def test_a_habit_is_no_command() -> None:
    assert set(habits.HABITS).isdisjoint({*BY_NAME, *ALIASES})


def test_a_global_option_without_its_value_is_refused() -> None:
    with pytest.raises(UsageError, match="--session needs a value"):
        argv.parse(["tree", "--session"])


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        (["tree", "--json"], True),
        (["ask", "--output-format", "json", "x"], True),
        (["ask", "--output-format=json"], True),
        (["ask", "--output-format", "stream-json"], False),
        (["ask", "--", "--json"], False),
    ],
)
def test_whether_a_failure_must_be_json_is_known_at_once(typed: list[str], wanted: bool) -> None:
    assert argv.wants_json(typed) is wanted


def test_help_names_every_command_and_eight_for_the_first_day() -> None:
    text = help_text()
    assert all(f"\n  {name} " in text for name in BY_NAME)
    first = text.split("Start here:\n")[1].split("\n\n")[0]
    assert len(first.splitlines()) == 8
    assert all(len(line) <= 80 for line in text.splitlines())


def test_every_option_that_takes_a_value_is_known_to_the_line_parser() -> None:
    import typer

    from radchat.cli.app import assemble

    here = [e for e in COMMANDS if e.target.startswith("radchat.cli.") and _exists(e.target)]
    group = typer.main.get_command(assemble(here))
    known = argv.VALUE_OPTIONS | argv.GLOBAL_VALUES | set(argv.OPTIONAL) | {"--think"}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        for param in _params(command):
            if param.param_type_name == "option" and not param.is_flag and param.nargs == 1:
                own = argv.VALUES.get(name, frozenset())
                missing = [o for o in param.opts if o not in known | own]
                assert not missing, (name, missing)


def test_a_flag_is_not_taken_for_an_option_with_a_value() -> None:
    """Else a global option behind it would be its value."""
    from radchat.cli.complete import subcommands

    for name in BY_NAME:
        for whole, command in subcommands(name):
            flags = {o for p in command.params if getattr(p, "is_flag", False) for o in p.opts}
            taken = argv.VALUE_OPTIONS - argv.FLAGS.get(name, frozenset())
            taken |= argv.VALUES.get(name, frozenset())
            assert not flags & taken, whole
    assert argv.parse(["daemon", "logs", "-f", "--json"]).argv == ["--json", "daemon", "logs", "-f"]


def test_what_to_say_to_the_model_is_quoted_for_the_shell() -> None:
    import shlex

    for words in (["hi"], ["it's"], ['say "so"'], ["$(id)", "`id`"], ["wow!", "\\"]):
        typed = habits.to_say(words).partition("radchat chat ")[2]
        assert shlex.split(typed) == [" ".join(words)]
    assert habits.to_say(["what", "now"]).endswith('radchat chat "what now"')


def _exists(target: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(target.partition(":")[0]) is not None


def _params(command: Any) -> list[Any]:
    own = list(getattr(command, "params", []))
    for sub in getattr(command, "commands", {}).values():
        own += sub.params
    return own


def test_options_before_the_command_are_answered_with_the_line_to_type() -> None:
    with pytest.raises(UsageError, match="options go after the command: radchat ask -m nosuch hi"):
        argv.parse(["-m", "nosuch", "ask", "hi"])


def test_the_current_session_is_told_of_and_no_line_of_a_chats_help_is_too_long() -> None:
    assert "The current session is this terminal's last" in help_text()
    assert max(len(line) for line in help_lines()) < 80
