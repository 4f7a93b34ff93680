"""A random life of chats in one home, and what must be in its sessions.

``Life.step`` does one thing through the daemon's socket and keeps the books: every message with its
parent and words, and where the branches are. ``check`` compares them with the daemon's tree.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from radchat.client import Client
from radchat.errors import InvalidInput, NotFound, Unreachable, UsageError
from radchat.protocol import Event
from tests.e2e import kv_disk
from tests.e2e.homes import Home, spoken
from tests.waiting import wait_until

SESSIONS = 5
MESSAGES = 40  # of a session; then it goes
LONGEST = 60  # tokens of an answer nobody cuts off
WORDS = [
    "a",
    "tree",
    "of",
    "messages",
    "and",
    "a",
    "cache",
    "of",
    "what",
    "they",
    "have",
    "in",
    "common",
]


@dataclass
class Message:
    parent: str | None
    role: str
    text: str
    model: str | None = field(default=None, compare=False)


@dataclass
class Talk:
    """One session as it must be."""

    messages: dict[str, Message] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)


class Life:
    def __init__(self, home: Home, seed: int) -> None:
        self.home = home
        self.random = random.Random(seed)
        self.talks: dict[str, Talk] = {}
        self.done: Counter[str] = Counter()
        self.restored = 0  # tokens
        self.history: list[str] = []
        self.where = {"terminal": "%soak", "folder": str(home.root)}
        self._number = 0

    # -- the daemon --------------------------------------------------------------------------------

    def client(self) -> Client:
        client = Client.connect(self.home.places, on_notice=lambda _text: None)
        self.home.pids.add(self.home.pid)
        return client

    def _idle(self) -> None:
        """Whatever ran has ended and is put away; a daemon that starts says nothing of it yet."""
        self.client()
        wait_until(lambda: self.home.status().get("answers") == 0)

    def call(self, method: str, **args: Any) -> dict[str, Any]:
        return self.client().call(method, where=self.where, **args)

    def _words(self) -> str:
        self._number += 1
        chosen = self.random.choices(WORDS, k=self.random.choice((1, 3, 12)))
        return f"{self._number}: {' '.join(chosen)}"

    # -- one thing after another -------------------------------------------------------------------

    def step(self, *, deaths: bool) -> None:
        kinds = {
            self.turn: 12, self.retry: 5, self.edit: 4, self.go_on: 3, self.fork: 4, self.move: 5,
            self.cut: 6, self.two_at_once: 3, self.evict: 3, self.remove: 1, self.look: 2,
            self.another_model: 2, self.prune: 1, self.find: 1, self.copy: 1,
            self.off_the_record: 1, self.pin: 2, self.why: 2, self.save: 2, self.spoil: 1,
        }  # fmt: skip
        if deaths:
            kinds |= {self.kill: 3, self.kill_idle: 1, self.restart: 1}
        act = self.random.choices(list(kinds), list(kinds.values()))[0]
        self.history.append(act.__name__)
        act()
        self.done[act.__name__] += 1

    def _pick(self) -> str | None:
        """A session to go on with; None: a new one."""
        full = [s for s, talk in self.talks.items() if len(talk.messages) > MESSAGES]
        for session in full:
            self._remove(session)
        if not self.talks or (len(self.talks) < SESSIONS and self.random.random() < 0.15):
            return None
        return self.random.choice(list(self.talks))

    def _talk(self) -> tuple[str, Talk] | None:
        """A session in which something was said."""
        some = [(s, talk) for s, talk in self.talks.items() if talk.messages]
        return self.random.choice(some) if some else None

    def _generate(
        self, session: str | None, *, tokens: int = LONGEST, hear: Any = None, **args: Any
    ) -> list[Event]:
        asked = {
            "where": self.where,
            "dtype": "fp32",
            "session": session,
            "new_session": session is None,
            "options": {"temperature": 0, "max_tokens": tokens},
            **args,
        }
        seen: list[Event] = []
        with self.client().stream("generate", **asked) as events:
            for event in events:
                seen.append(event)
                if hear is not None and hear(seen):
                    break
        return seen

    def _book(self, seen: list[Event], text: str | None) -> None:
        """A whole answer: what it says must be what is kept from now on."""
        init = next(event.data for event in seen if event.name == "init")
        done = seen[-1].data
        talk = self.talks.setdefault(done["session"], Talk())
        if text is not None:
            talk.messages[init["user"]] = Message(init["parent"], "user", text)
        for answer in done["branches"]:
            assert answer["parent"] == init["user"]
            assert answer["text"] == spoken(seen, answer["choice"])
            if answer["message"] is not None:
                talk.messages[answer["message"]] = Message(
                    answer["parent"], "assistant", answer["text"], answer["model"]
                )
                if answer["branch"] is not None:
                    talk.branches[answer["branch"]] = answer["message"]
        usage, cache = done["usage"], done["cache"]
        self.restored += cache["disk"]
        assert sum(cache.values()) == usage["input_tokens"]

    def turn(self) -> None:
        text = self._words()
        self._book(self._generate(self._pick(), text=text), text)

    def another_model(self) -> None:
        text = self._words()
        model = self.random.choice(("tiny", "other"))
        self._book(self._generate(self._pick(), text=text, model=model), text)

    def off_the_record(self) -> None:
        """An ephemeral chat: in nobody's books."""
        self._generate(None, text=self._words(), ephemeral=True)

    def retry(self) -> None:
        """The same prompt, whatever the cache did meanwhile: the same words, at least as far as
        the shorter goes.
        """
        found = self._talk()
        if found is None:
            return
        session, talk = found
        answers = [i for i, m in talk.messages.items() if m.role == "assistant" and m.model]
        if not answers:
            return
        old = talk.messages[self.random.choice(answers)]
        tokens = self.random.choice((5, LONGEST))
        asked = {"ref": old.parent, "model": old.model}
        seen = self._generate(session, kind="retry", tokens=tokens, **asked)
        self._book(seen, None)
        new = seen[-1].data["branches"][0]["text"]
        shorter = min(len(new), len(old.text))
        assert new[:shorter] == old.text[:shorter], "the same prompt was answered in other words"

    def edit(self) -> None:
        found = self._talk()
        if found is None:
            return
        session, talk = found
        asked = [i for i, m in talk.messages.items() if m.role == "user"]
        text = self._words()
        ref = self.random.choice(asked)
        self._book(self._generate(session, kind="edit", ref=ref, text=text), text)

    def go_on(self) -> None:
        """``continue`` of an answer that was cut off."""
        found = self._talk()
        if found is None:
            return
        session, talk = found
        answers = [i for i, m in talk.messages.items() if m.role == "assistant" and m.model]
        if not answers:
            return
        ref = self.random.choice(answers)
        old = talk.messages[ref]
        try:
            seen = self._generate(session, kind="continue", ref=ref, tokens=9, model=old.model)
        except InvalidInput:
            assert old.model == "other"  # whose answers may end by themselves
            return
        answer = seen[-1].data["branches"][0]
        assert answer["text"].startswith(old.text)
        talk.messages[answer["message"]] = Message(
            old.parent, "assistant", answer["text"], answer["model"]
        )
        if answer["branch"] is not None:
            talk.branches[answer["branch"]] = answer["message"]

    def fork(self) -> None:
        found = self._talk()
        if found is None:
            return
        session, talk = found
        ref = self.random.choice(list(talk.messages))
        self._number += 1
        name = f"fork-{self._number}"
        moved = self.call("fork", session=session, ref=ref, name=name)
        message = talk.messages[ref]
        assert moved["head"] == (message.parent if message.role == "user" else ref)
        if moved["head"] is not None:
            talk.branches[name] = moved["head"]

    def move(self) -> None:
        """undo, redo or switch: nothing is deleted; where the branches are is asked afterwards."""
        found = self._talk()
        if found is None:
            return
        session, talk = found
        how = self.random.choice(("undo", "redo", "switch"))
        args = {"ref": self.random.choice(list(talk.messages))} if how == "switch" else {}
        try:
            self.call(how, session=session, **args)
        except (UsageError, NotFound):
            return  # nothing to take back
        talk.branches = self._tree(session)["branches"]

    def cut(self) -> None:
        """Cancelled or hung up on, before the first word or after a few."""
        session, text = self._pick(), self._words()
        words, by_request = self.random.choice((0, 1, 7)), self.random.random() < 0.5

        def hear(seen: list[Event]) -> bool:
            names = [event.name for event in seen]
            if names[-1] not in ("init", "delta") or names.count("delta") != words:
                return False
            if by_request and names[-1] == ("delta" if words else "init"):
                request = next(e.data for e in seen if e.name == "init")["request"]
                self.client().call("cancel", request=request)
            return not by_request

        seen = self._generate(session, text=text, tokens=600, hear=hear)
        self._settle(session, text, seen)

    def two_at_once(self) -> None:
        session = self._pick()
        if session is None:
            return
        texts = (self._words(), self._words())
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda text: self._generate(session, text=text), texts))
        for text, seen in zip(texts, both, strict=True):
            self._book(seen, text)
        self.talks[session].branches = self._tree(session)["branches"]

    def evict(self) -> None:
        self._idle()
        if self.home.status()["model"] is None:
            return
        found = self._talk()
        if found is None or self.random.random() < 0.3:
            self.client().call("cache.clear")
            return
        session, talk = found
        self.call("cache.evict", session=session, ref=self.random.choice(list(talk.messages)))

    def save(self) -> None:
        """To disk, or what is on disk into memory; nothing may be there, or no model loaded."""
        found = self._talk()
        if found is None:
            return
        session, talk = found
        method = self.random.choice(("cache.save", "cache.load"))
        ref = self.random.choice(list(talk.messages))
        try:
            with self.client().stream(method, where=self.where, session=session, ref=ref) as events:
                assert list(events)[-1].name == "done"
        except NotFound:
            return  # never read by a model

    def spoil(self) -> None:
        """A block on disk becomes something else, or all of them go."""
        blocks = kv_disk.files(self.home)
        if not blocks:
            return
        if self.random.random() < 0.1:
            self._idle()
            self.client().call("cache.clear", device=False, disk=True)
            return
        damage = self.random.choice(
            (kv_disk.flip_header, kv_disk.flip_data, kv_disk.flip_ids, kv_disk.truncate)
        )
        # replaced or evicted just now, or damaged before
        with contextlib.suppress(FileNotFoundError, IndexError):
            damage(self.random.choice(blocks))

    def remove(self) -> None:
        if len(self.talks) > 2:
            self._remove(self.random.choice(list(self.talks)))

    def _remove(self, session: str) -> None:
        self._idle()
        self.call("sessions.rm", sessions=[session])
        del self.talks[session]

    def pin(self) -> None:
        """For some seconds, or for a day and then taken off again; all of it may be too much."""
        found = self._talk()
        if found is None:
            return
        session, talk = found
        ref = self.random.choice(list(talk.messages))
        hold_s = self.random.choice((2.0, 5.0, 86_400.0))
        try:
            self.call("cache.pin", session=session, ref=ref, hold_s=hold_s)
        except InvalidInput:
            return  # over the limit, or nothing of it was ever read
        if hold_s > 60 and self.random.random() < 0.7:
            self.call("cache.unpin", session=session, ref=ref)

    def why(self) -> None:
        found = self._talk()
        if found is None:
            return
        session, talk = found
        answers = [i for i, m in talk.messages.items() if m.role == "assistant"]
        if answers:
            self.call("cache.why", session=session, ref=self.random.choice(answers))

    def prune(self) -> None:
        """What a branch reaches stays; of the rest, what was found afterwards."""
        found = self._talk()
        if found is None:
            return
        self._idle()
        session, talk = found
        self.call("sessions.prune", session=session)
        left = {message["id"] for message in self._tree(session)["messages"]}
        for end in talk.branches.values():
            at: str | None = end
            while at is not None:
                assert at in left, "a message that a branch reaches was pruned"
                at = talk.messages[at].parent
        talk.messages = {i: m for i, m in talk.messages.items() if i in left}

    def find(self) -> None:
        """A message is found by its number, where it is."""
        found = self._talk()
        if found is None:
            return
        ref, message = self.random.choice(list(found[1].messages.items()))
        if message.role == "user":
            hits = self.client().call("sessions.search", query=message.text, limit=100)
            assert ref in {hit["message"] for hit in hits["hits"]}, hits

    def copy(self) -> None:
        """Exported and imported, it is another session of the same words."""
        found = self._talk()
        if found is None or len(self.talks) >= SESSIONS:
            return
        session, talk = found
        text = self.call("sessions.export", session=session, format="json")["text"]
        files = [{"name": "copy.json", "text": text}]
        made = self.call("sessions.import", files=files)["sessions"][0]["id"]
        tree = self._tree(made)
        words = sorted((m["role"], m["text"]) for m in tree["messages"])
        assert words == sorted((m.role, m.text) for m in talk.messages.values())
        assert set(tree["branches"]) == set(talk.branches)
        by: dict[str, set[str | None]] = {}
        for old in talk.messages.values():
            by.setdefault(old.text, set()).add(old.model)
        messages = {}
        for m in tree["messages"]:
            models = by[m["text"]]  # of two with the same words it is not known which is whose
            model = next(iter(models)) if len(models) == 1 else None
            messages[m["id"]] = Message(m["parent"], m["role"], m["text"], model)
        self.talks[made] = Talk(messages, tree["branches"])

    def look(self) -> None:
        for method in ("cache.stats", "cache.tree", "cache.ls", "models.ps"):
            self.client().call(method)

    # -- deaths ------------------------------------------------------------------------------------

    def kill(self) -> None:
        """kill -9 in mid-answer: what was shown is there."""
        session, text = self._pick(), self._words()
        words = self.random.choice((0, 1, 5, 20))
        seen: list[Event] = []

        def hear(now: list[Event]) -> bool:
            seen[:] = now
            names = [event.name for event in now]
            if names[-1] in ("init", "start", "delta") and names.count("delta") >= words:
                self.home.kill()
            return False

        try:
            self._generate(session, text=text, tokens=600, hear=hear)
        except Unreachable:
            self._settle(session, text, seen)
        else:
            raise AssertionError("it was not killed")

    def kill_idle(self) -> None:
        self.client()
        self.home.kill()

    def restart(self) -> None:
        self.home.stop()

    # -- the books ---------------------------------------------------------------------------------

    def _settle(self, session: str | None, text: str, seen: list[Event]) -> None:
        """After a turn that was cut off: what was shown is kept; the rest is as it is found."""
        init = next((event.data for event in seen if event.name == "init"), None)
        if init is None:
            if session is None:
                self._forget_strangers()
            else:
                self._adopt(session, text)
            return
        self._idle()
        talk = self.talks.setdefault(init["session"], Talk())
        shown = spoken(seen)
        found = {m["id"]: m for m in self._tree(init["session"])["messages"]}
        asked = found.pop(init["user"])
        assert (asked["parent"], asked["text"]) == (init["parent"], text)
        talk.messages[init["user"]] = Message(init["parent"], "user", text)
        answer = found.get(init["messages"][0])
        if shown:
            assert answer is not None, "an answer that was shown is gone"
        if answer is not None:
            assert answer["text"].startswith(shown)
            assert answer["finish_reason"] in ("abort", "length", "stop")
            talk.messages[answer["id"]] = Message(
                init["user"], "assistant", answer["text"], init["model"]
            )
        talk.branches = self._tree(init["session"])["branches"]

    def _adopt(self, session: str, text: str) -> None:
        """A turn that died before it was shown to begin is there whole, or not at all."""
        talk, tree = self.talks[session], self._tree(session)
        for message in tree["messages"]:
            if message["id"] not in talk.messages:
                assert message["text"] == text
                talk.messages[message["id"]] = Message(message["parent"], "user", text)
        talk.branches = tree["branches"]

    def _forget_strangers(self) -> None:
        for found in self._listed() - set(self.talks):
            self.call("sessions.rm", sessions=[found])

    def _listed(self) -> set[str]:
        rows = self.call("sessions.list")["sessions"]
        return {row["id"] for row in rows if not row["ephemeral"]}

    def _tree(self, session: str) -> dict[str, Any]:
        return self.call("tree", session=session)

    def check(self) -> None:
        """All sessions are as the books say."""
        assert self._listed() == set(self.talks)
        for session, talk in self.talks.items():
            tree = self._tree(session)
            found = {m["id"]: Message(m["parent"], m["role"], m["text"]) for m in tree["messages"]}
            assert found == talk.messages
            assert tree["branches"] == talk.branches
        self._idle()
        if self.home.status()["model"] is not None:
            self.home.assert_balanced()
