"""Docs that cannot rot: what they name must exist."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from radchat.cli.common import Cli

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`((?:radchat|kernels|sessions)/[\w/]+\.py)(?::([\w.]+))?`")


def places() -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    return sorted({(path, name) for path, name in NAMED.findall(text)})


def defined(path: Path) -> set[str]:
    """Names of functions and classes of a file, and ``Class.method`` for its methods."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


@pytest.mark.parametrize(("path", "name"), places())
def test_every_place_of_the_tour_exists(path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    assert not name or name in defined(ROOT / path)


def test_the_tour_visits_all_three_packages() -> None:
    assert len(places()) > 20
    assert {path.split("/")[0] for path, _ in places()} == {"radchat", "kernels", "sessions"}


def commands_of_the_readme() -> list[list[str]]:
    """The first word (and the sub-command) of each radchat command in README's code blocks."""
    found = []
    for block in re.findall(r"```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        for line in re.split(r"[\n·|]", block):
            words = re.findall(r"^\s*(?:radchat\s+)([a-z-]+)(?:\s+([a-z]+))?", line)
            found += [[word for word in match if word] for match in words]
    return found


@pytest.mark.parametrize("words", commands_of_the_readme(), ids=" ".join)
def test_every_command_of_the_readme_has_a_help_page(words: list[str]) -> None:
    from radchat.cli.table import BY_NAME

    assert words[0] in BY_NAME, f"README names `radchat {words[0]}`"


def generator() -> Any:
    return script("generate")


def script(name: str) -> Any:
    """A file of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def every_command() -> dict[str, Any]:
    from radchat.cli.complete import subcommands
    from radchat.cli.table import BY_NAME

    return {name: command for entry in BY_NAME for name, command in subcommands(entry)}


def test_the_manual_has_every_command_as_it_is_now() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    made = generator().page(page)
    assert page == made, "docs/cli.md is out of date: make docs"
    for name, command in every_command().items():
        assert command.hidden or f"\n#### radchat {name}\n" in page


def test_every_command_has_an_example_and_each_example_can_be_typed() -> None:
    """Read as a shell and then the command itself would; nothing is run."""
    from radchat.cli.app import assemble
    from radchat.cli.argv import parse
    from radchat.cli.table import BY_NAME

    module = generator()
    examples = module.examples_of()
    for name, known in every_command().items():
        assert known.hidden or examples.get(name), f"docs/examples.txt has no `radchat {name}`"
    assert set(examples) <= set(every_command())
    for line in itertools.chain(*examples.values()):
        read = parse(module.words_of(line))
        command: Any = typer.main.get_command(assemble([BY_NAME[read.command]]))
        context = command.make_context("radchat", list(read.argv), obj=Cli())
        sub, _, rest = command.resolve_command(context, context._protected_args + context.args)
        inner = command.commands[sub].make_context(sub, rest, parent=context)
        if hasattr(inner.command, "commands"):
            name, each, rest = inner.command.resolve_command(
                inner, inner._protected_args + inner.args
            )
            each.make_context(name, rest, parent=inner)


def test_every_option_says_what_it_does() -> None:
    for name, command in every_command().items():
        assert command.help, name
        for option in command.params:
            assert option.param_type_name == "argument" or option.help, f"{name} {option.opts}"


def test_every_setting_and_exit_code_is_in_the_manual() -> None:
    from radchat import errors
    from radchat.config import SETTINGS

    manual = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for setting in SETTINGS:
        assert f"| {setting.name} |" in manual
        assert not setting.variable or f"`{setting.variable}`" in manual
    classes: list[type[errors.RadchatError]] = [errors.RadchatError]
    for cls in classes + errors.RadchatError.__subclasses__():
        assert f"| {cls.exit_code} |" in manual, cls.__name__


def test_the_words_of_the_glossary_are_sorted_out_once() -> None:
    rows = re.findall(
        r"^\| (\*\*.+?) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
    )
    words = [word for row in rows for word in re.findall(r"\*\*(.+?)\*\*", row)]
    assert len(words) > 30
    assert len(words) == len(set(words))


def test_every_decision_record_is_short_and_numbered_once() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("*.md"))
    numbers = [record.name[:4] for record in records]
    assert len(numbers) == len(set(numbers))
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert text.startswith(f"# {record.name[:4]}"), record.name
        assert len(text.split()) < 900, f"{record.name} is longer than a page"


def test_the_example_files_say_how_to_run_them() -> None:
    for example in (ROOT / "examples").glob("*.py"):
        docstring = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
        assert f"python examples/{example.name}" in docstring


def test_modules_import_without_side_effects(tmp_path: Path) -> None:
    """In an empty home: no banner, no folder, no file; what grammars need waits for one."""
    names = [
        ".".join(path.relative_to(base).with_suffix("").parts)
        for base, package in ((ROOT, "radchat"), (ROOT / "sessions", "radchat_sessions"))
        for path in sorted((base / package).rglob("*.py"))
        if path.name != "__main__.py"
    ]
    names = [name.removesuffix(".__init__") for name in names]
    code = (
        "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
        "heavy = {'llguidance', 'jsonschema'} & set(sys.modules); assert not heavy, heavy"
    )
    env = {
        "HOME": str(tmp_path),
        "RADCHAT_HOME": str(tmp_path / "radchat"),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}:{ROOT / 'sessions'}",
        "PATH": "",
    }
    run = subprocess.run(
        [sys.executable, "-c", code, *names],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    assert [path.name for path in tmp_path.iterdir() if path.name != ".cache"] == []
