"""Command lines and their verdicts, in default mode with a few rules: deny, ask or allow."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radchat.agent.files.workspace import Folder
from radchat.agent.permission.grants import Granted, Grants
from radchat.agent.permission.judge import Judge
from radchat.agent.permission.rules import Rule
from radchat.agent.permission.shell import parts_of
from radchat.agent.sandbox.tools import Shell
from radchat.agent.types import Call, Decision, Mode, Preview

ALLOWED = ("shell(git commit:*)", "shell(npm test)", "shell(make:*)", "write(out/**)")
DENIED = ("shell(curl:*)", "shell(git push:*)")


def judge(root: Path, mode: Mode = "default", *, is_sandboxed: bool = True) -> Judge:
    folder = Folder.of(root)
    grants = Grants(root / "state", folder.root, [Rule.parse(text) for text in ALLOWED])
    for text in DENIED:
        grants.add(Granted("deny", Rule.parse(text), "session"))
    return Judge(mode, folder, grants, [root / "state"], is_sandboxed=is_sandboxed)


def decision(root: Path, line: str, mode: Mode = "default", **more: Any) -> Decision:
    preview = Preview("shell", line, "command", command=line)
    call = Call("c1", "shell", {"command": line})
    return judge(root, mode, **more).judge(call, Shell(), preview).decision


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("project")
    (made / "src").mkdir()
    (made / "out").mkdir()
    (made / "etc").symlink_to("/etc")
    (made / "src" / "up").symlink_to("..")
    (made / "src" / "leak").symlink_to("/etc/passwd")
    (made / "out" / "away").symlink_to("/tmp/away")
    return made


TABLE: tuple[tuple[str, Decision], ...] = (
    # what only looks
    ("ls -la", "allow"),
    ("cat src/a.py | head -20 | wc -l", "allow"),
    ("git status --short && git diff HEAD~1 -- src", "allow"),
    ("git log --oneline -5", "allow"),
    ("grep -rn 'a;b|c&d' src", "allow"),
    ('echo "a $(pwd)"', "allow"),
    ("rg foo src 2>/dev/null", "allow"),
    ("find . -name '*.py' -type f", "allow"),
    ("cd src && ls", "allow"),
    ("[ -f src/a.py ] && cat src/a.py", "allow"),
    ("if true; then ls; else pwd; fi", "allow"),
    ("for i in 1 2; do echo $i; done", "allow"),
    ("(cd src; ls) || echo none", "allow"),
    ("LC_ALL=C sort names.txt", "allow"),
    ("timeout 5 ls", "allow"),
    ("nice -n 5 cat a", "allow"),
    ("bash -c 'ls | wc -l'", "allow"),
    ("ls # rm -rf /", "allow"),
    ("diff <(ls src) <(ls out)", "allow"),
    # rules
    ("git commit -m 'x; rm -rf /'", "allow"),
    ("npm test", "allow"),
    ("make -j2 check", "allow"),
    ("echo hi > out/a.txt", "allow"),
    ("CI=1 make", "allow"),
    ("npm test -- --watch", "ask"),
    ("npm testing", "ask"),
    ("makeup", "ask"),
    ("curl http://x", "deny"),
    ("ls; curl http://x", "deny"),
    ("echo $(curl http://x)", "deny"),
    ("git push", "deny"),
    ("git commit -m x && git push", "deny"),
    ("timeout 5 curl x", "deny"),
    ("bash -c 'curl x'", "deny"),
    # joined to what is allowed
    ("git status; rm -rf src", "ask"),
    ("rm x && git status", "ask"),
    ("git status || rm x", "ask"),
    ("git status | tee x", "ask"),
    ("git status & rm x", "ask"),
    ("git status\nrm x", "ask"),
    ("git commit -m `rm x`", "ask"),
    ('git commit -m "$(rm x)"', "ask"),
    ("cat <<EOF\n$(rm x)\nEOF\n", "ask"),
    ("cat <(rm x)", "ask"),
    ("echo ${X:-$(rm x)}", "ask"),
    # what writes
    ("echo hi > a.txt", "ask"),
    ("echo hi >> src/a.py", "ask"),
    ("ls &> listing", "ask"),
    ("echo hi > out/../src/a.py", "ask"),
    ("echo hi > out/away", "ask"),
    ("echo hi > $X", "ask"),
    ("echo hi > /etc/motd", "ask"),
    ("sort -o src/a.py src/a.py", "ask"),
    ("find . -delete", "ask"),
    ("find . -name x -exec rm {} +", "ask"),
    ("git diff --output=x", "ask"),
    ("sed -i s/a/b/ src/a.py", "ask"),
    ("tree -o x", "ask"),
    ("date -s 10:00", "ask"),
    ("git branch -D main", "ask"),
    # what changes what runs
    ("PATH=. ls", "ask"),
    ("LD_PRELOAD=./x.so ls", "ask"),
    ("GIT_EXTERNAL_DIFF=./x git diff", "ask"),
    ("PATH=.; ls", "ask"),
    ("export PATH=.; ls", "ask"),
    ("alias ls=rm; ls", "ask"),
    ("ls() { rm x; }; ls", "ask"),
    ("eval ls", "ask"),
    ("source x.sh", "ask"),
    (". x.sh", "ask"),
    ("exec ls", "ask"),
    ("env -S 'rm x'", "ask"),
    ("env PATH=. ls", "ask"),
    ("git -c core.pager=./x log", "ask"),
    ("git -C /tmp status", "ask"),
    ("rg --pre ./x foo", "ask"),
    ("sudo ls", "ask"),
    ("xargs rm < names", "ask"),
    ("python -c 'import os'", "ask"),
    ("awk 'BEGIN{system(\"rm x\")}'", "ask"),
    ('bash -c "$X"', "ask"),
    ("$X", "ask"),
    ("$(echo rm) x", "ask"),
    ("r\\m x", "ask"),
    ("'rm' x", "ask"),
    ("./ls", "ask"),
    ("/tmp/ls", "ask"),
    ("coproc ls", "ask"),
    ("trap 'rm x' EXIT", "ask"),
    ("printf -v PATH .; ls", "ask"),
    ("test -v 'a[$(rm x)]'", "ask"),
    ("[ -v 'a[$(rm x)]' ]", "ask"),
    ("echo $((a[$(rm x)]))", "ask"),
    ("x='a[$(rm x)]'; ((x))", "ask"),
    ("echo ${X@P}", "ask"),
    # what is read outside
    ("cat /etc/passwd", "ask"),
    ("cat ../x", "ask"),
    ("cat ~/.ssh/id_rsa", "ask"),
    ("cat etc/passwd", "ask"),
    ("cat src/leak", "ask"),
    ("cd src && cat leak", "ask"),
    ("cd src/up/.. && ls", "ask"),
    ("cd / && ls", "ask"),
    ("grep -f/etc/shadow x", "allow"),  # the sandbox's part: a value in a short option
    ("cat < /etc/passwd", "ask"),
    ("git grep --no-index root /etc", "ask"),
    ("cat state/permissions.json", "ask"),
    ("cat $HOME/.ssh/id_rsa", "ask"),
    # what can't be read
    ("ls 'unclosed", "ask"),
    ("ls )", "ask"),
    ("ls\x00rm", "ask"),
    ("ls\rrm x", "ask"),
    ("ls \x1b[2K", "ask"),
    ("l\\\ns", "ask"),
    ("ls " + "x" * 30_000, "ask"),
    ("", "ask"),
    ("# nothing", "ask"),
)  # fmt: skip


@pytest.mark.parametrize(("line", "wanted"), TABLE, ids=[line[:50] for line, _ in TABLE])
def test_a_line_is_judged_by_its_strongest_part(line: str, wanted: Decision, root: Path) -> None:
    assert decision(root, line) == wanted


DENIED_STILL = (
    "/usr/bin/curl x", "sudo curl x", "sudo -u me curl x", "exec curl x", "echo x | xargs curl",
    "xargs -n 1 -P 4 curl < urls", "eval 'curl x'", "eval curl x", "trap 'curl x' EXIT",
    "bash -x -c 'ls; curl x'", "find . -exec curl {} +", "find . -name a -execdir curl {} ';'",
    "env -i X=1 curl x", "setsid curl x", "sudo env bash -c 'timeout 5 curl x'",
    "watch -n 1 curl x",
    "coproc curl x", "ls; nice -n 5 /bin/git push",
)  # fmt: skip


@pytest.mark.parametrize("line", DENIED_STILL)
def test_what_is_denied_is_denied_in_any_dress(line: str, root: Path) -> None:
    """In every mode; and none of these dresses makes an allowed command of another."""
    assert decision(root, line) == "deny"
    assert decision(root, line, "bypassPermissions") == "deny"
    assert decision(root, line.replace("curl", "rm").replace("push", "gc")) == "ask"


def test_of_what_runs_others_only_the_very_command_is_offered(root: Path) -> None:
    for line in ("sudo rm x", "eval 'rm x'", "trap 'rm x' EXIT", "xargs rm", "find . -delete"):
        preview = Preview("shell", line, "command", command=line)
        gate = judge(root)
        rules = gate.judge(Call("c", "shell", {}), Shell(), preview).rules
        assert f"shell({line})" in rules
        gate.remember(rules, "session")
        assert gate.judge(Call("c", "shell", {}), Shell(), preview).decision == "allow", line
        assert not any(rule.startswith(f"shell({line.split()[0]}:") for rule in rules)


JOINERS = ("; ", " && ", " || ", " | ", " & ", "\n", " |& ")
GOOD = ("ls", "git commit -m x", "echo 'a; b'", "cd src")
BAD = ("rm x", "touch y", "./run", "curl-ish x")


@pytest.mark.parametrize("joiner", JOINERS)
def test_what_is_joined_to_something_allowed_is_asked_for(joiner: str, root: Path) -> None:
    for good, bad in itertools.product(GOOD, BAD):
        assert decision(root, f"{good}{joiner}{bad}") == "ask", (good, bad)
        assert decision(root, f"{bad}{joiner}{good}") == "ask", (good, bad)
        assert decision(root, f"{good}{joiner}{good}") == "allow", good
        assert decision(root, f"{good}{joiner}curl x") == "deny"


WRAPS = (
    *("{}", "({})", "{{ {}; }}", "$({})", "`{}`", '"$({})"', "if true; then {}; fi", "! {}"),
    *("while false; do {}; done", "timeout 5 {}", "nohup {}", "cat <({})"),
    "case a in a) {};; esac",
)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(
    pieces=st.lists(st.sampled_from(GOOD), max_size=3),
    at=st.integers(0, 3),
    joiners=st.lists(st.sampled_from(JOINERS), min_size=4, max_size=4),
    wraps=st.lists(st.sampled_from(WRAPS), max_size=3),
)
def test_no_dress_makes_an_unknown_command_allowed(
    root: Path, pieces: list[str], at: int, joiners: list[str], wraps: list[str]
) -> None:
    bad = "rm -rf src"
    for wrap in wraps:
        bad = wrap.format(bad)
    words = [*pieces[:at], bad, *pieces[at:]]
    line = words[0]
    for word, joiner in zip(words[1:], joiners, strict=False):
        line += joiner + word
    assert decision(root, line) != "allow", line


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(line=st.text(alphabet="lsrm ;&|<>$(){}`'\"\\\n[]*?=#!~-/.\x00é", max_size=40))
def test_any_text_is_judged(root: Path, line: str) -> None:
    assert parts_of(line)
    assert decision(root, line) in ("allow", "ask", "deny")


@pytest.mark.parametrize(
    ("mode", "line", "wanted"),
    [
        ("plan", "ls", "allow"),
        ("plan", "rm x", "deny"),
        ("dontAsk", "rm x", "deny"),
        ("dontAsk", "npm test", "allow"),
        ("bypassPermissions", "rm x", "allow"),
        ("bypassPermissions", "curl x", "deny"),
        ("acceptEdits", "echo hi > src/a.py", "allow"),
        ("acceptEdits", "echo hi > /tmp/a", "ask"),
        ("acceptEdits", "rm x", "ask"),
    ],
)
def test_modes(mode: Mode, line: str, wanted: Decision, root: Path) -> None:
    assert decision(root, line, mode) == wanted


def test_without_a_sandbox_looking_is_asked_for_too(root: Path) -> None:
    assert decision(root, "ls", is_sandboxed=False) == "ask"
    assert decision(root, "npm test", is_sandboxed=False) == "allow"


def test_the_rules_that_are_offered_would_allow_it(root: Path) -> None:
    for line in ("npm run build && cargo test", "rm x", "pytest -q | tee log", "eval ls"):
        gate = judge(root)
        preview = Preview("shell", line, "command", command=line)
        verdict = gate.judge(Call("c", "shell", {}), Shell(), preview)
        assert verdict.decision == "ask"
        gate.remember(verdict.rules, "session")
        assert gate.judge(Call("c", "shell", {}), Shell(), preview).decision == "allow", line
        assert decision(root, line) == "ask"
