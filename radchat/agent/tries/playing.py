"""Several tries from beginning to end: copies, the shared first step, the race, and what comes of
it in the folder and in the session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from radchat.agent.files.checkpoints import FileCheckpoints
from radchat.agent.files.rewind import Rewound
from radchat.agent.loop import Agent, Bounds, Kept
from radchat.agent.prompt import facts
from radchat.agent.sandbox.policy import private
from radchat.agent.setting_up import Asked, Place
from radchat.agent.steps import DaemonSteps
from radchat.agent.tries.copies import MOST_BYTES, Copies, size_of, size_words
from radchat.agent.tries.entries import TryEntries, bring
from radchat.agent.tries.race import Race, Try
from radchat.agent.tries.steps import First, TrySteps, first_step
from radchat.agent.tries.tools import TriedTool, here
from radchat.agent.types import Approver, Ask, Context, Listener, Tool
from radchat.chat.footer import counted
from radchat.client import Client
from radchat.errors import UsageError
from radchat.paths import Places

MOST_TRIES = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    num: int
    check: str | None
    text: str
    max_turns: int
    may_be_large: bool = False  # -y: copies of any size


@dataclass
class Played:
    """What came of it. ``won``: a try that passed, or was picked; ``copies``: those that are kept,
    by number.
    """

    first: First
    tries: list[Try]
    won: Try | None = None
    brought: Rewound = field(default_factory=Rewound)
    copies: dict[int, Path] = field(default_factory=dict)


@dataclass
class Play:
    """``pick``: asks the person which one it is to be, where none passed; None: nobody is there."""

    client: Client
    asked: Mapping[str, Any]  # the arguments of the first `generate`
    place: Place  # the folder itself
    permits: Asked
    places: Places
    env: Mapping[str, str]
    note: Callable[[str], None]
    listener_of: Callable[[int], Listener]  # 0: of the step that all share
    approver_of: Callable[[int], Approver] | None = None
    pick: Callable[[Sequence[Try], str], Try | None] | None = None

    def play(self, wanted: Wanted, tools: Mapping[str, Tool]) -> Played:
        """Raises UsageError before anything is copied or asked; KeyboardInterrupt."""
        if wanted.check is not None and self.place.runner is None:
            raise UsageError(f"--check can't be run: {self.place.no_runner}")
        origin = self.place.workspace.root
        own = next((path for path in private(self.places) if origin in path.parents), None)
        if own is not None:
            raise UsageError(f"--tries: {origin} holds {own}, which is not to be copied")
        size, num_files = size_of(origin)
        each = f"{size_words(size)} in {counted(num_files, 'file')}"
        told = f"{wanted.num} copies of {origin.name or origin}, each {each}"
        if size * wanted.num > MOST_BYTES and not wanted.may_be_large:
            raise UsageError(f"{told}: more than {size_words(MOST_BYTES)} in all; -y makes them")
        self.note(told)
        copies = Copies.make(origin, wanted.num, self.places)
        places: list[Place] = []
        try:
            places += (self._place(root, origin) for root in copies.roots)
            return self._play(wanted, tools, copies, places)
        finally:
            for place in places:
                place.close()
            copies.close()

    def _place(self, root: Path, origin: Path) -> Place:
        """As the folder's own, with its rules; what it has to say was said of that."""
        place = Place.open(
            self.permits, self.places, self.env, lambda _text: None, root=root, alias=origin
        )
        place.grants = self.place.grants
        place.judge.grants = self.place.grants
        return place

    def _play(
        self, wanted: Wanted, tools: Mapping[str, Tool], copies: Copies, places: Sequence[Place]
    ) -> Played:
        own = self.listener_of(0)
        steps = DaemonSteps(self.client, self.asked, list(tools.values()))
        is_new = bool(self.asked.get("new_session"))
        steps.session = None if is_new else self.asked.get("session")
        agent = Agent(steps, tools, self.place.judge, own, self.place.open_kept)
        before = None if is_new else self._branch(self.asked)
        try:
            ask = Ask(wanted.text, agent.left_open(), facts(self.place.workspace.root))
            first = first_step(self.client, self.asked, tools.values(), wanted.num, ask, own)
            kept = agent.kept or self.place.open_kept(first.session)
            agent.kept = kept
            tries = self._tries(wanted, tools, first, kept, copies, places)
            played = Played(first, tries)
            listeners = [self.listener_of(one.number) for one in tries]
            race = Race(tries, listeners, self.approver_of, self.note)
            played.won = race.run()
            if played.won is None and self.pick is not None:
                played.won = self.pick(tries, first.session)
            self._end(played, copies, before)
            return played
        finally:
            agent.close()

    def _tries(
        self,
        wanted: Wanted,
        tools: Mapping[str, Tool],
        first: First,
        kept: Kept,
        copies: Copies,
        places: Sequence[Place],
    ) -> list[Try]:
        lock = threading.Lock()
        found = []
        for at, (root, place) in enumerate(zip(copies.roots, places, strict=True)):
            entries = TryEntries(kept.entries, lock)
            context = Context(
                place.workspace,
                kept.context.outputs,
                place.runner,
                place.no_runner,
                None,
                replace(kept.context.limits),
            )
            rewrites = place.runner is not None and place.runner.name != "bwrap"
            tried = {
                name: TriedTool(tool, copies.origin, root, rewrites) for name, tool in tools.items()
            }
            checkpoints = FileCheckpoints(place.workspace, entries, self.note, place.judge.hidden)
            own = Kept(entries, context, checkpoints)
            steps = TrySteps(self.client, self.asked, list(tools.values()), first, at)
            agent = Agent(
                steps,
                tried,
                place.judge,
                self.listener_of(at + 1),
                lambda _session, own=own: own,  # type: ignore[misc]
                bounds=Bounds(wanted.max_turns),
                kept=own,
            )
            argv = self._check(wanted.check, place, copies.origin, rewrites=rewrites)
            branch = first.steps[at].branch or f"try-{at + 1}"
            found.append(Try(at + 1, branch, steps, agent, entries, context, argv))
        return found

    @staticmethod
    def _check(
        check: str | None, place: Place, origin: Path, *, rewrites: bool
    ) -> list[str] | None:
        if check is None:
            return None
        assert place.runner is not None
        shell = place.runner.which("bash", "sh")
        if shell is None:
            raise UsageError("--check can't be run: there is no bash and no sh on the PATH")
        return [shell, "-c", here(check, origin, place.workspace.root) if rewrites else check]

    def _end(self, played: Played, copies: Copies, before: str | None) -> None:
        """The winner's changes come into the folder, and HEAD to its branch; or all is left."""
        won = played.won
        if won is None:
            for one in played.tries:
                if one.entries.changed():
                    played.copies[one.number] = copies.keep(one.number - 1)
            if before is not None:
                self._switch(played.first.session, before)
            return
        played.brought = bring(self.place.workspace.root, won.entries)
        if played.brought.left:
            played.copies[won.number] = copies.keep(won.number - 1)
        self._switch(played.first.session, won.branch)

    def _switch(self, session: str, branch: str) -> None:
        self.client.call("switch", where=self.asked["where"], session=session, ref=branch)

    def _branch(self, asked: Mapping[str, Any]) -> str | None:
        found = self.client.call("branch.list", where=asked["where"], session=asked["session"])
        return next((str(row["name"]) for row in found["branches"] if row["current"]), None)
