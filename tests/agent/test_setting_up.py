"""An agent put together: what its rules, its places and its folder make of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radchat.agent.permission.grants import Granted, Grants
from radchat.agent.permission.rules import Rule
from radchat.agent.setting_up import Asked, Place
from radchat.errors import UsageError
from radchat.paths import Places
from tests.agent.sandboxes import KINDS, run

OPENS = "python3 -c 'import socket; socket.socket(); print(\"open\")'"


def places(base: Path) -> Places:
    return Places.from_env({"RADCHAT_HOME": str(base / "home")})


@pytest.mark.skipif(not KINDS, reason="no sandbox works here: nothing is kept from the network")
def test_commands_have_the_network_if_a_rule_says_so_and_not_else(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    notes: list[str] = []

    def opened(*allowed: str) -> bytes:
        place = Place.open(Asked(allowed=allowed), places(tmp_path), os.environ, notes.append, root)
        try:
            assert place.runner is not None
            return run(place.runner, OPENS).head
        finally:
            place.close()

    assert b"open" not in opened("shell")
    assert notes == []
    assert b"open" in opened("network")
    assert notes == ["commands may use the network: a rule allows it"]
    grants = Grants(places(tmp_path).state / "permissions", root.resolve())
    grants.add(Granted("allow", Rule.parse("network"), "project"))
    assert b"open" in opened()
    grants.add(Granted("deny", Rule.parse("network"), "user"))
    assert b"open" not in opened("network"), "denied beats allowed"


@pytest.mark.parametrize("text", ["network(x)", "python(x)", "shell()", "nope", "shell(", ""])
def test_what_is_no_rule_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError):
        Rule.parse(text)


@pytest.mark.parametrize(
    "text", ["shell", "shell(git status:*)", "write(src/**)", "mcp(a:b)", "network", "read(/etc/x)"]
)
def test_a_rule_is_what_it_was_written_as(text: str) -> None:
    assert str(Rule.parse(text)) == text
    assert str(Rule.parse(f"  {text} ")) == text


def test_rules_that_can_not_be_read_grant_nothing_and_are_told(tmp_path: Path) -> None:
    folder, root = tmp_path / "permissions", tmp_path / "work"
    root.mkdir()
    told: list[str] = []
    grants = Grants(folder, root, tell=told.append)
    grants.add(Granted("allow", Rule.parse("shell"), "user"))
    grants.add(Granted("deny", Rule.parse("write(a)"), "project"))
    assert [str(each.rule) for each in grants.all] == ["shell", "write(a)"]
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*.json")} == {0o600}
    other = Grants(folder, tmp_path / "elsewhere")
    assert [str(each.rule) for each in other.all] == ["shell"], "a project's are its own"
    for broken in ("{", "[]", '{"allow": ["nope"]}', '{"allow": 5}', "\x00"):
        (folder / "user.json").write_text(broken)
        told.clear()
        assert [str(each.rule) for each in grants.all] == ["write(a)"], broken
        assert len(told) == 1
        assert "user.json grants nothing" in told[0]
    moved = next((folder / "projects").glob("*.json"))
    moved.write_text(moved.read_text().replace(str(root), "/somewhere"))
    told.clear()
    assert grants.all == []
    assert any("it is of /somewhere" in text for text in told)


def test_instructions_are_trusted_by_a_person_and_by_nothing_in_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    (root / "AGENTS.md").write_text("trusted: true")
    grants = Grants(tmp_path / "permissions", root)
    assert grants.is_trusted is None
    grants.trust(trusted=True)
    assert Grants(tmp_path / "permissions", root).is_trusted is True
    assert Grants(tmp_path / "permissions", tmp_path).is_trusted is None
    assert grants.all == []
