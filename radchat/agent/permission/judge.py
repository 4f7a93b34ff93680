"""Whether a call may run: what it touches, by the mode, the rules and the folder.

Of a command line every part is judged, and the strongest verdict is the line's: deny before ask
before allow. What is denied by a rule is denied in every mode.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radchat.agent.permission.grants import Granted, Grants
from radchat.agent.permission.harmless import WORDS, is_harmless
from radchat.agent.permission.rules import MORE, Rule
from radchat.agent.permission.running import RUNNERS, Word
from radchat.agent.permission.shell import Part, parts_of
from radchat.agent.types import (
    Call,
    Decision,
    Mode,
    Preview,
    Remember,
    Tool,
    Verdict,
    Workspace,
)
from radchat.errors import InvalidInput

MODES: tuple[Mode, ...] = ("default", "acceptEdits", "plan", "dontAsk", "bypassPermissions")
STRENGTH: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}
PLAN = "plan mode: nothing is changed and nothing is run; say what you would do"
# programs whose first argument says what they do: a rule is made of both
WITH_COMMANDS = frozenset((
    "git", "npm", "pnpm", "yarn", "cargo", "go", "pip", "uv", "poetry", "make", "docker",
    "kubectl", "gh", "dotnet", "mvn", "gradle", "python", "python3", "node", "npx", "deno",
    "bun", "rustup", "brew", "apt", "systemctl", "tox", "nox", "hatch", "just",
))  # fmt: skip
GIT_RUNS = ("hooks", "config")  # of .git: what git runs for the user later
FREE_DEVICES = ("/dev/null", "/dev/stdout", "/dev/stderr")


@dataclass
class Judge:
    """``hidden``: radchat's own folders. ``is_sandboxed``: commands that only look are free only
    where they can do no more than that.
    """

    mode: Mode
    workspace: Workspace
    grants: Grants
    hidden: Sequence[Path] = ()
    is_sandboxed: bool = True
    denials: list[Verdict] = field(default_factory=list)

    def judge(self, call: Call, tool: Tool, preview: Preview) -> Verdict:
        if tool.kind == "ask":
            return Verdict("allow", "it touches nothing")
        if tool.kind == "run" and preview.command is not None:
            verdict = self._line(preview.command)
        elif tool.kind == "run":
            verdict = self._named("python", f"{call.name} runs code")
        elif tool.kind == "other":
            verdict = self._mcp(call)
        else:
            verdict = self._files(preview)
        return self._by_mode(verdict)

    def remember(self, rules: Sequence[str], scope: Remember) -> None:
        for text in rules:
            self.grants.add(Granted("allow", Rule.parse(text), scope))

    def _by_mode(self, verdict: Verdict) -> Verdict:
        if verdict.decision != "ask":
            return verdict
        if self.mode == "bypassPermissions":
            return Verdict("allow", "permissions are bypassed")
        if self.mode == "plan":
            return Verdict("deny", PLAN)
        if self.mode == "dontAsk":
            return Verdict("deny", f"{verdict.why}: no rule allows it, and nobody is asked")
        return verdict

    # -- files -------------------------------------------------------------------------------------

    def _files(self, preview: Preview) -> Verdict:
        found = [self._path("read", path) for path in preview.reads]
        found += [self._path("write", path) for path in preview.writes]
        return _strongest(found) if found else Verdict("allow", "it touches nothing")

    def _path(self, need: str, path: Path) -> Verdict:
        shown = self.workspace.shown(path)
        rules = [each for each in self.grants.all if each.rule.name == need]
        if any(e.decision == "deny" and e.rule.fits_path(path, self.root) for e in rules):
            return Verdict("deny", f"a rule denies {need} of {shown}")
        rule = f"{need}({shown})" if self.workspace.is_inside(path) else f"{need}({path})"
        special = self._special(path)
        if special is not None and (need == "write" or path != self.root):
            exact = any(e.decision == "allow" and e.rule.names_path(path) for e in rules)
            if exact and need == "write":
                return Verdict("allow", "a rule names it")
            return Verdict("ask", special, (f"{need}({path})",))
        if any(e.decision == "allow" and e.rule.fits_path(path, self.root) for e in rules):
            return Verdict("allow", "a rule allows it")
        if not self.workspace.is_inside(path):
            return Verdict("ask", f"{shown} is outside of the folder", (rule,))
        if need == "read":
            return Verdict("allow", "reads in the folder are free")
        if self.mode == "acceptEdits":
            return Verdict("allow", "edits in the folder are accepted")
        return Verdict("ask", f"it writes {shown}", (f"write({_beside(shown)})",))

    def _special(self, path: Path) -> str | None:
        """What no pattern allows: radchat's own, and what git runs later."""
        for folder in self.hidden:
            if path == folder or folder in path.parents:
                return f"{path} is radchat's own"
        parts = path.parts
        for at, part in enumerate(parts[:-1]):
            if part == ".git" and parts[at + 1] in GIT_RUNS:
                return f"{self.workspace.shown(path)} is run by git later"
        return None

    @property
    def root(self) -> Path:
        return self.workspace.root

    # -- others ------------------------------------------------------------------------------------

    def _named(self, name: str, why: str) -> Verdict:
        rules = [each for each in self.grants.all if each.rule.name == name]
        if any(each.decision == "deny" for each in rules):
            return Verdict("deny", f"a rule denies {name}")
        if rules:
            return Verdict("allow", "a rule allows it")
        return Verdict("ask", why, (name,))

    def _mcp(self, call: Call) -> Verdict:
        """``mcp__server__tool``."""
        _, server, tool = [*call.name.split("__", 2), "", ""][:3]
        spec = f"{server}:{tool}"
        fits = [
            each
            for each in self.grants.all
            if each.rule.name == "mcp" and each.rule.spec in (None, spec, f"{server}:*")
        ]
        if any(each.decision == "deny" for each in fits):
            return Verdict("deny", f"a rule denies mcp({spec})")
        if fits:
            return Verdict("allow", "a rule allows it")
        return Verdict("ask", f"it calls {tool} of the server {server}", (f"mcp({spec})",))

    # -- command lines -----------------------------------------------------------------------------

    def _line(self, line: str) -> Verdict:
        shell = [each for each in self.grants.all if each.rule.name == "shell"]
        parts = parts_of(line)
        for each in shell:
            if each.decision == "deny" and (
                each.rule.fits_line(line) or any(_denies(each.rule, part) for part in parts)
            ):
                return Verdict("deny", f"the rule {each.rule} denies it")
        if any(each.decision == "allow" and each.rule.fits_line(line) for each in shell):
            return Verdict("allow", "a rule allows it")
        folders = self._folders(parts)
        found = [self._part(part, shell, folders, line) for part in parts]
        return _strongest(found)

    def _part(
        self, part: Part, shell: Sequence[Granted], folders: Sequence[Path], line: str
    ) -> Verdict:
        if part.kind == "unknown":
            return Verdict("ask", part.text, (f"shell({line.strip()})",))
        if part.kind in ("read", "write"):
            return self._redirected(part, folders, line)
        if any(each.decision == "allow" and _fits(each.rule, part) for each in shell):
            return Verdict("allow", "a rule allows it")
        if self.is_sandboxed and is_harmless(part):
            files = () if part.name in WORDS else part.words[1:]
            outside = next((w.text for w in files if not self._stays(w, folders)), None)
            if outside is None:
                return Verdict("allow", "it only looks")
            return Verdict("ask", f"{outside} is outside of the folder", (_rule_for(part),))
        return Verdict("ask", f"it runs {part.text}", (_rule_for(part),))

    def _redirected(self, part: Part, folders: Sequence[Path], line: str) -> Verdict:
        word = part.words[0]
        if word.is_static and word.text in FREE_DEVICES:
            return Verdict("allow", "it goes nowhere")
        if not word.is_static:
            return Verdict(
                "ask", f"where {part.text} leads is not known", (f"shell({line.strip()})",)
            )
        verdicts = []
        for folder in folders:
            try:
                path = self.workspace.resolve(str(folder / os.path.expanduser(word.text)))  # noqa: PTH111
            except InvalidInput as error:
                return Verdict("ask", error.message)
            verdicts.append(self._path(part.kind, path))
        return _strongest(verdicts)

    def _folders(self, parts: Sequence[Part]) -> list[Path]:
        """Where a command of the line may run: in the folder, and wherever it changes to."""
        found = [self.root]
        for part in parts:
            if part.kind == "command" and part.name in ("cd", "pushd") and len(part.words) > 1:
                inner = os.path.expanduser(part.words[1].text)  # noqa: PTH111
                found += [folder / inner for folder in found]
        return found[:16]

    def _stays(self, word: Word, folders: Sequence[Path]) -> bool:
        """Is a word no path, or one in the folder, from wherever it is read?"""
        text = word.text
        if text.startswith("-"):
            text = text.partition("=")[2]
            if not text:
                return True
        if not word.is_static and not text:
            return False  # it may be anything
        for folder in folders:
            try:
                path = self.workspace.resolve(str(folder / os.path.expanduser(text)))  # noqa: PTH111
            except InvalidInput:
                return False
            is_hidden = any(path == each or each in path.parents for each in self.hidden)
            if is_hidden or not self.workspace.is_inside(path):
                return False
        return True


def _fits(rule: Rule, part: Part) -> bool:
    """Of a command, as far as its words are known: what is not may be any argument."""
    if part.kind != "command":
        return rule.spec is None
    if rule.spec is None or rule.spec.endswith(MORE):
        return rule.fits_words(part.static_words)
    return part.is_static and rule.fits_words(part.static_words)


def _denies(rule: Rule, part: Part) -> bool:
    """Also where the command is named by its path."""
    if _fits(rule, part):
        return True
    words = part.static_words
    base = words[0].rpartition("/")[2] if words and part.kind == "command" else ""
    return bool(base) and rule.spec is not None and rule.fits_words((base, *words[1:]))


def _rule_for(part: Part) -> str:
    """What is offered: the words that say what it does, and any after them; of a command that runs
    others, this one alone.
    """
    words = part.static_words
    if words[0].rpartition("/")[2] in RUNNERS and part.is_static:
        return f"shell({shlex.join(words)})"
    if part.is_static and len(words) == 1:
        return f"shell({words[0]})"
    num = 2 if words[0] in WITH_COMMANDS and len(words) > 1 and not words[1].startswith("-") else 1
    return f"shell({' '.join(words[:num])}{MORE})"


def _beside(shown: str) -> str:
    """The pattern of a file's folder."""
    folder = os.path.dirname(shown)  # noqa: PTH120
    return f"{folder}/**" if folder else shown


def _strongest(verdicts: Sequence[Verdict]) -> Verdict:
    """With the rules of all that ask."""
    first = max(verdicts, key=lambda verdict: STRENGTH[verdict.decision])
    rules = dict.fromkeys(
        rule for each in verdicts if each.decision == "ask" for rule in each.rules
    )
    reasons = dict.fromkeys(each.why for each in verdicts if each.decision == first.decision)
    why = "; ".join(reasons) if first.decision == "ask" else first.why
    return Verdict(first.decision, why, tuple(rules))
