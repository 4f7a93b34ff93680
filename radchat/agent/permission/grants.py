"""What was granted: for this run, this session, this project, this user.

Projects' and users' rules are files in the state folder, a project's by the real path of its
folder: nothing inside a folder grants anything in it. A file that can't be read grants nothing, and
that is told.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from radchat.agent.permission.rules import Rule
from radchat.agent.types import Remember
from radchat.errors import RadchatError, UsageError

Effect = Literal["allow", "deny"]
LOCK_S = 5.0
WHERE: dict[str, str] = {
    "once": "this run",
    "session": "this session",
    "project": "this project",
    "user": "every folder",
}


@dataclass(frozen=True, slots=True)
class Granted:
    decision: Effect
    rule: Rule
    scope: Remember


class Grants:
    """``folder``: of permissions, in the state folder; ``root``: real path of the project."""

    def __init__(
        self,
        folder: Path,
        root: Path,
        given: Iterable[Rule] = (),
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._folder, self._root, self._tell = folder, root, tell
        self._own = [Granted("allow", rule, "once") for rule in given]
        self._kept: list[Granted] = []
        self._stamps: dict[Path, tuple[int, int] | None] = {}

    @property
    def all(self) -> list[Granted]:
        """In force now: another agent may have been told more."""
        stamps = {path: _stamp(path) for path in (self._user, self._project)}
        if stamps != self._stamps:
            self._stamps = stamps
            self._kept = [*self._read(self._user, "user"), *self._read(self._project, "project")]
        return [*self._own, *self._kept]

    @property
    def allows_network(self) -> bool:
        """To commands: by the rule ``network``, from the next start of an agent on."""
        decisions = {each.decision for each in self.all if each.rule.name == "network"}
        return decisions == {"allow"}

    def add(self, granted: Granted) -> None:
        if granted.scope in ("once", "session"):
            if granted.scope == "session" and granted not in self._own:
                self._own.append(granted)
            return
        with self._changing(granted.scope) as rules:
            mine = rules.setdefault(granted.decision, [])
            if str(granted.rule) not in mine:
                mine.append(str(granted.rule))

    def remove(self, rule: Rule) -> list[Granted]:
        """Wherever it stands; what was removed."""
        gone = [each for each in self.all if each.rule == rule]
        self._own = [each for each in self._own if each.rule != rule]
        for scope in {each.scope for each in gone} & {"project", "user"}:
            with self._changing(scope) as rules:
                for decision in ("allow", "deny"):
                    rules[decision] = [t for t in rules.get(decision, []) if t != str(rule)]
        return gone

    # -- trust: whether instructions in the folder are read ----------------------------------------

    @property
    def is_trusted(self) -> bool | None:
        """None: nobody has said."""
        found = _load(self._project).get("trusted") if self._project.exists() else None
        return found if isinstance(found, bool) else None

    def trust(self, *, trusted: bool) -> None:
        with self._changing("project") as found:
            found["trusted"] = trusted

    # -- files -------------------------------------------------------------------------------------

    @property
    def _user(self) -> Path:
        return self._folder / "user.json"

    @property
    def _project(self) -> Path:
        name = hashlib.blake2b(os.fsencode(self._root), digest_size=16).hexdigest()
        return self._folder / "projects" / f"{name}.json"

    def _read(self, path: Path, scope: Remember) -> Iterator[Granted]:
        if not path.exists():
            return
        try:
            found = _load(path)
            if scope == "project":
                self._check_own(found)
            effects: tuple[Effect, ...] = ("allow", "deny")
            rules = [
                Granted(effect, Rule.parse(text), scope)
                for effect in effects
                for text in found.get(effect, ())
            ]
        except (OSError, ValueError, TypeError, AttributeError, UsageError) as error:
            self._tell(f"{path} grants nothing: {error}")
            return
        yield from rules

    def _check_own(self, found: dict[str, Any]) -> None:
        if found.get("folder") != str(self._root):
            raise ValueError(f"it is of {found.get('folder')}")

    @contextlib.contextmanager
    def _changing(self, scope: str) -> Iterator[dict[str, Any]]:
        """A file's rules, to be changed; written whole, under a lock."""
        path = self._user if scope == "user" else self._project
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with FileLock(f"{path}.lock", timeout=LOCK_S, mode=0o600):
                try:
                    found = _load(path) if path.exists() else {}
                except (OSError, ValueError) as error:
                    raise RadchatError(
                        f"{path} can't be read: mend or remove it ({error})"
                    ) from error
                yield found
                if scope != "user":
                    found["folder"] = str(self._root)
                _write(path, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        except TimeoutError as error:
            raise RadchatError(f"{path} is held by another radchat: try again") from error


def _load(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - of a file, not of an argument
    return found


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    part.replace(path)


def lines(grants: Grants, mode: str) -> list[str]:
    """What `/permissions` shows."""
    rows = [f"mode {mode}"]
    rows += [f"{each.decision:<6}{each.rule}   ({WHERE[each.scope]})" for each in grants.all]
    return rows if len(rows) > 1 else [*rows, "no rules"]
