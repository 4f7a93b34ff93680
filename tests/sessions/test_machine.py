"""Random lives of a store against a plain model of it, compared whole after every step."""

from __future__ import annotations

import shutil
import tempfile
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from radchat_sessions.content import text_part
from radchat_sessions.errors import NotFound, Refused
from radchat_sessions.messages import NewAnswer, NewMessage, NewPrompt
from radchat_sessions.store import Store
from tests.machines import run

NAMES = ("main", "side", "main-2", "price")
THOUGHTS = ("s1.1", "s1.2", "s1.1.1")
pick = st.integers(0, 10**6)


@dataclass
class Said:
    parent: str | None
    text: str
    origin: str
    ids: list[int] | None = None  # all ids up to its end, for answers


@dataclass
class Pending:
    session: str
    parent: str
    prompt: str
    branch: str | None
    expected: str | None
    ids: list[int] = field(default_factory=list)


End = tuple[str | None, str | None]  # a branch and a message
Entry = tuple[str, End, End]  # of the log of HEAD: action, from, to


@dataclass
class Book:
    """A session: its branches, HEAD as (branch, message), and the log of HEAD."""

    name: str
    branches: dict[str, str | None]
    on: str | None = "main"
    bare: str | None = None
    log: list[Entry] = field(default_factory=list)
    thoughts: dict[str, str] = field(default_factory=dict)  # message: its name

    @property
    def head(self) -> tuple[str | None, str | None]:
        return (self.on, self.branches[self.on]) if self.on else (None, self.bare)

    def free(self, base: str) -> str:
        if base not in self.branches:
            return base
        stem, _, number = base.rpartition("-")
        stem = stem if stem and number.isdigit() else base
        return next(n for i in range(2, 99) if (n := f"{stem}-{i}") not in self.branches)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.made = 0
        self.store = self.open()
        self.books: dict[str, Book] = {}
        self.said: dict[str, Said] = {}
        self.pending: dict[str, Pending] = {}
        self.prompts: dict[str, list[int]] = {}
        self.count = 0

    def open(self) -> Store:
        return Store.open(
            self.home / "radchat.db",
            running_dir=self.home / "running",
            new_id=self.new_id,
            synchronous="OFF",
        )

    def new_id(self) -> str:
        """In no order, but the same in every run."""
        self.made += 1
        return blake2b(str(self.made).encode(), digest_size=16).hexdigest()

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.home)

    # -- the model ---------------------------------------------------------------------------------

    def chain(self, message: str | None) -> list[str]:
        path = []
        while message is not None:
            path.append(message)
            message = self.said[message].parent
        return path[::-1]

    def named(self, sid: str) -> set[str]:
        book = self.books[sid]
        roots = {*book.branches.values(), book.bare}
        roots |= {p.parent for p in self.pending.values() if p.session == sid}
        return {m for root in roots for m in self.chain(root)}

    def shown(self, sid: str) -> set[str]:
        written = {m for i, s in self.said.items() if s.origin == sid for m in self.chain(i)}
        scored = {m for i in self.books[sid].thoughts for m in self.chain(i)}
        return self.named(sid) | written | scored

    def place(
        self, book: Book, wanted: str, expected: str | None, to: str, *, move: bool = True
    ) -> tuple[str, bool]:
        if wanted in book.branches and book.branches[wanted] == expected:
            if move:
                book.branches[wanted] = to
            return wanted, False
        name = book.free(wanted)
        book.branches[name] = to
        return name, True

    def delete(self, doomed: set[str]) -> None:
        for message in doomed:
            del self.said[message]
        for book in self.books.values():
            book.log = [entry for entry in book.log if not {entry[1][1], entry[2][1]} & doomed]

    def hand_over(self, forgotten: set[str], away_from: str) -> None:
        for message in forgotten:
            for sid in self.books:
                if sid != away_from and message in self.shown(sid):
                    self.said[message].origin = sid
                    break

    def unscore(self, sid: str, gone: set[str]) -> None:
        for message in gone:
            self.books[sid].thoughts.pop(message, None)

    def some(self, things: Iterable[str], n: int) -> str:
        ordered = sorted(things)
        return ordered[n % len(ordered)]

    def new_text(self) -> str:
        self.count += 1
        return f"w{self.count}"

    # -- rules -------------------------------------------------------------------------------------

    @rule(n=pick, fork=st.booleans())
    def create(self, n: int, fork: bool) -> None:
        if len(self.books) >= 4:
            return
        at = None
        parent = None
        if fork and self.books:
            parent = self.some(self.books, n)
            shown = self.shown(parent)
            at = self.some(shown, n) if shown else None
        session = self.store.create_session(
            clock="c", fork_of=None if parent is None else (parent, at)
        )
        self.books[session.id] = Book(session.name, {"main": at})

    @precondition(lambda self: self.books)
    @rule(
        n=pick,
        wanted=st.sampled_from([None, "HEAD", *NAMES]),
        at_head=st.booleans(),
        answers=st.integers(1, 2),
        keep=st.booleans(),
        base_n=pick,
        cut=st.integers(0, 9),
    )
    def begin(
        self,
        n: int,
        wanted: str | None,
        at_head: bool,
        answers: int,
        keep: bool,
        base_n: int,
        cut: int,
    ) -> None:
        sid = self.some(self.books, n)
        book = self.books[sid]
        shown = self.shown(sid)
        parent = book.head[1] if at_head or not shown else self.some(shown, n)
        branch = (book.on or "main") if wanted == "HEAD" else wanted
        based = [m for m in self.chain(parent) if self.said[m].ids is not None]
        base = self.some(based, base_n) if based and base_n % 4 else None
        kept = max(0, len(self.said[base].ids or ()) - cut) if base else 0
        tail = [n % 50, self.count]
        text = self.new_text()
        begun = self.store.begin(
            sid,
            parent=parent,
            new=[NewMessage.of("user", text)],
            prompt=NewPrompt(
                tail=array("I", tail),
                tokenizer="t",
                settings="s",
                base_message=base,
                kept=kept,
                shares=[(kept, kept + 1)],
            ),
            answers=[NewAnswer(branch), *[NewAnswer(None)] * (answers - 1)],
            keep_head=keep,
        )
        (user,) = begun.messages
        self.said[user] = Said(parent, text, sid)
        self.prompts[begun.prompt] = [*((self.said[base].ids or [])[:kept] if base else []), *tail]
        placed = None
        if branch is not None:
            before = book.on
            placed, made = self.place(book, branch, parent, user)
            assert begun.answers[0].placed is not None
            assert (begun.answers[0].placed.branch, begun.answers[0].placed.made) == (placed, made)
            if not keep or before == placed:
                self.log(book, "turn", (placed, None))
        for i, answer in enumerate(begun.answer_ids):
            self.pending[answer] = Pending(
                sid, user, begun.prompt, placed if i == 0 else None, user
            )

    def log(self, book: Book, action: str, to: tuple[str | None, str | None]) -> None:
        branch, message = to
        full = (branch, book.branches[branch] if branch else message)
        if not (action == "switch" and book.head == full):
            book.log.append((action, book.head, full))
        book.on, book.bare = branch, message if branch is None else None

    @precondition(lambda self: self.said)
    @rule(n=pick, more=pick, expects=st.booleans(), keep=st.booleans())
    def advance(self, n: int, more: int, expects: bool, keep: bool) -> None:
        """HEAD's branch goes on to a message that is there, with nothing said."""
        sid = self.some(self.books, n)
        book, shown = self.books[sid], self.shown(sid)
        if not shown:
            return
        before, to = book.on, self.some(shown, more)
        expected = book.head[1] if expects else None
        done = self.store.append(
            sid, parent=to, new=(), branch=before or "main", expected=expected, keep_head=keep
        )
        placed, made = self.place(book, before or "main", expected, to)
        assert done.placed is not None
        assert (done.messages, done.placed.branch, done.placed.made) == ((), placed, made)
        if not keep or before == placed:
            self.log(book, "turn", (placed, None))

    @precondition(lambda self: any(s.ids for s in self.said.values()))
    @rule(n=pick)
    def retry(self, n: int) -> None:
        old = self.some([i for i, s in self.said.items() if s.ids], n)
        sid = self.said[old].origin
        book = self.books[sid]
        message = self.store.message(old)
        branch = self.some({*book.branches, "main"}, n)
        assert message.prompt is not None
        begun = self.store.begin(
            sid,
            parent=message.parent,
            prompt=message.prompt,
            answers=[NewAnswer(branch)],
            expected=old,
            keep_head=True,
        )
        parent = self.said[old].parent
        assert parent is not None
        before = book.on
        placed, made = self.place(book, branch, old, parent, move=False)
        if before == placed:
            self.log(book, "turn", (placed, None))
        self.pending[begun.answer_ids[0]] = Pending(
            sid, parent, message.prompt, placed, parent if made else old
        )

    @precondition(lambda self: self.pending)
    @rule(n=pick, size=st.integers(1, 3))
    def append(self, n: int, size: int) -> None:
        answer = self.some(self.pending, n)
        ids = [n % 99] * size
        self.store.append_ids(answer, ids, f"{n % 99},")
        self.pending[answer].ids += ids

    @precondition(lambda self: self.pending)
    @rule(n=pick)
    def finish(self, n: int) -> None:
        self.finish_one(self.some(self.pending, n))

    def finish_one(self, answer: str) -> None:
        ids = [*self.pending[answer].ids, 2]
        text = self.new_text()
        self.store.finish(
            answer, ids=array("I", ids), parts=[text_part(text)], finish_reason="stop"
        )
        self.finished(answer, ids, text)

    def finished(self, answer: str, ids: list[int], text: str) -> None:
        pending = self.pending.pop(answer)
        whole = [*self.prompts[pending.prompt], *ids]
        self.said[answer] = Said(pending.parent, text, pending.session, whole)
        if pending.branch is not None:
            book = self.books[pending.session]
            self.place(book, pending.branch, pending.expected, answer)

    @precondition(lambda self: self.pending)
    @rule(n=pick)
    def abandon(self, n: int) -> None:
        answer = self.some(self.pending, n)
        self.store.abandon(answer)
        del self.pending[answer]

    @rule()
    def reopen(self) -> None:
        """As after a kill: nothing is said to the store before."""
        self.store.close()
        self.store = self.open()
        told = {r.answer: r.message for r in self.store.recovered}
        assert set(told) == set(self.pending)
        for answer, message in told.items():
            if self.pending[answer].ids:
                assert message is not None
                assert message.finish_reason == "abort"
                self.finished(answer, self.pending[answer].ids, message.text)
            else:
                assert message is None
                del self.pending[answer]

    @precondition(lambda self: self.books)
    @rule(n=pick, name=st.sampled_from(NAMES))
    def fork(self, n: int, name: str) -> None:
        sid = self.some(self.books, n)
        book = self.books[sid]
        shown = self.shown(sid)
        at = self.some(shown, n) if shown else None
        if name in book.branches:
            with pytest.raises(Refused):
                self.store.create_branch(sid, name, at)
            return
        self.store.create_branch(sid, name, at)
        book.branches[name] = at

    @precondition(lambda self: self.books)
    @rule(n=pick, to_branch=st.booleans())
    def switch(self, n: int, to_branch: bool) -> None:
        sid = self.some(self.books, n)
        book = self.books[sid]
        shown = self.shown(sid)
        if not book.branches and not shown:
            return
        if book.branches and (to_branch or not shown):
            branch: str | None = self.some(book.branches, n)
            self.store.move_head(sid, branch=branch)
            self.log(book, "switch", (branch, None))
            return
        message = self.some(shown, n)
        ending = [b for b, m in book.branches.items() if m == message]
        branch = book.on if book.on in ending else ending[0] if len(ending) == 1 else None
        self.store.move_head(sid, message=message)
        self.log(book, "switch", (branch, message))

    @precondition(lambda self: self.books)
    @rule(n=pick, turns=st.integers(1, 2), times=st.integers(1, 2))
    def undo(self, n: int, turns: int, times: int) -> None:
        for _ in range(times):
            self.undo_once(self.some(self.books, n), turns)

    def undo_once(self, sid: str, turns: int) -> None:
        book = self.books[sid]
        asked = [m for m in self.chain(book.head[1]) if m not in self.answers()]
        if turns > len(asked):
            with pytest.raises(NotFound):
                self.store.undo(sid, turns)
            return
        self.store.undo(sid, turns)
        self.go(book, "undo", self.said[asked[-turns]].parent)

    def answers(self) -> set[str]:
        return {i for i, s in self.said.items() if s.ids is not None}

    def go(self, book: Book, action: str, message: str | None) -> None:
        book.log.append((action, book.head, (book.on, message)))
        if book.on:
            book.branches[book.on] = message
        else:
            book.bare = message

    @precondition(lambda self: self.books)
    @rule(n=pick, times=st.integers(1, 3))
    def redo(self, n: int, times: int) -> None:
        for _ in range(times):
            self.redo_once(self.some(self.books, n))

    def redo_once(self, sid: str) -> None:
        book = self.books[sid]
        undone: dict[End, list[Entry]] = {}  # by where an undo led
        for entry in book.log:
            if entry[0] == "undo":
                undone.setdefault(entry[2], []).append(entry)
            elif entry[0] == "redo" and undone.get(entry[1]):
                undone[entry[1]].pop()
        if not undone.get(book.head):
            with pytest.raises(NotFound):
                self.store.redo(sid)
            return
        self.store.redo(sid)
        self.go(book, "redo", undone[book.head][-1][1][1])

    @precondition(lambda self: self.books)
    @rule(n=pick, new=st.sampled_from(NAMES))
    def rename_branch(self, n: int, new: str) -> None:
        sid = self.some(self.books, n)
        book = self.books[sid]
        if not book.branches:
            return
        old = self.some(book.branches, n)
        if new in book.branches and new != old:
            with pytest.raises(Refused):
                self.store.rename_branch(sid, old, new)
            return
        self.store.rename_branch(sid, old, new)
        book.branches[new] = book.branches.pop(old)
        book.on = new if book.on == old else book.on
        for pending in self.pending.values():
            if pending.session == sid and pending.branch == old:
                pending.branch = new

        def renamed(end: End) -> End:
            return (new if end[0] == old else end[0], end[1])

        book.log = [(a, renamed(f), renamed(t)) for a, f, t in book.log]

    @precondition(lambda self: self.books)
    @rule(n=pick)
    def delete_branch(self, n: int) -> None:
        sid = self.some(self.books, n)
        book = self.books[sid]
        if not book.branches:
            return
        name = self.some(book.branches, n)
        if name == book.on:
            with pytest.raises(Refused):
                self.store.delete_branch(sid, name)
            return
        self.store.delete_branch(sid, name)
        del book.branches[name]

    @precondition(lambda self: self.books)
    @rule(n=pick)
    def rename(self, n: int) -> None:
        sid = self.some(self.books, n)
        self.books[sid].name = f"n{self.new_text()}"
        self.store.rename(sid, self.books[sid].name)

    @precondition(lambda self: self.books)
    @rule(n=pick, at=pick, names=st.lists(st.sampled_from(THOUGHTS), min_size=2, max_size=3))
    def think(self, n: int, at: int, names: list[str]) -> None:
        """Answers without a branch, that get a name each, where it is free."""
        sid = self.some(self.books, n)
        shown = self.shown(sid)
        parent, text = self.some(shown, at) if shown else None, self.new_text()
        begun = self.store.begin(
            sid,
            parent=parent,
            new=[NewMessage.of("user", text)],
            prompt=NewPrompt(array("I", [7]), tokenizer="t", settings="s", shares=[(0, 1)]),
            answers=[NewAnswer(None)] * len(names),
        )
        (user,) = begun.messages
        self.said[user], self.prompts[begun.prompt] = Said(parent, text, sid), [7]
        for answer, name in zip(begun.answer_ids, names, strict=True):
            self.pending[answer] = Pending(sid, user, begun.prompt, None, user)
            self.finish_one(answer)
            self.score_one(sid, answer, name)

    @precondition(lambda self: self.said)
    @rule(n=pick, more=pick, name=st.sampled_from(THOUGHTS), score=st.sampled_from(("", "=0.5")))
    def score(self, n: int, more: int, name: str, score: str) -> None:
        """Whoever wrote it: it is shown from now on, and kept from no pruning."""
        self.score_one(self.some(self.books, n), self.some(self.said, more), name, score)

    def score_one(self, sid: str, message: str, name: str, score: str = "") -> None:
        thoughts = self.books[sid].thoughts
        if name in {other for key, other in thoughts.items() if key != message}:
            with pytest.raises(Refused):
                self.store.add_label(sid, message, name + score, "score")
            return
        self.store.add_label(sid, message, name + score, "score")
        thoughts[message] = name

    @precondition(lambda self: self.books)
    @rule(n=pick)
    def prune(self, n: int) -> None:
        sid = self.some(self.books, n)
        unnamed = self.shown(sid) - self.named(sid)
        others = {m for other in self.books if other != sid for m in self.shown(other)}
        assert set(self.store.prune(sid).messages) == unnamed - others
        self.unscore(sid, unnamed)
        self.hand_over({m for m in unnamed & others if self.said[m].origin == sid}, away_from=sid)
        self.delete(unnamed - others)

    @precondition(lambda self: self.said)
    @rule(n=pick, more=pick)
    def prune_marked(self, n: int, more: int) -> None:
        sid = self.some(self.books, n)
        book, shown = self.books[sid], self.shown(sid)
        if not shown:
            return
        marked = [self.some(shown, n), self.some(shown, more)]
        below = {m for m in shown if set(self.chain(m)) & set(marked)}
        stays = {book.head[1]} | {p.parent for p in self.pending.values() if p.session == sid}
        if below & stays:
            with pytest.raises(Refused):
                self.store.prune(sid, marked=marked)
            return
        others = {m for other in self.books if other != sid for m in self.shown(other)}
        gone = self.store.prune(sid, marked=marked)
        assert set(gone.messages) == below - others
        assert set(gone.branches) == {b for b, m in book.branches.items() if m in below}
        book.branches = {b: m for b, m in book.branches.items() if m not in below}
        self.unscore(sid, below)
        self.hand_over({m for m in below & others if self.said[m].origin == sid}, away_from=sid)
        self.delete(below - others)

    @precondition(lambda self: self.books)
    @rule(n=pick)
    def remove(self, n: int) -> None:
        sid = self.some(self.books, n)
        if any(p.session == sid for p in self.pending.values()):
            with pytest.raises(Refused):
                self.store.remove(sid)
            return
        shown = self.shown(sid)
        others = {m for other in self.books if other != sid for m in self.shown(other)}
        assert set(self.store.remove(sid).messages) == shown - others
        self.hand_over({m for m in shown & others if self.said[m].origin == sid}, away_from=sid)
        del self.books[sid]
        self.delete(shown - others)

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        store = self.store
        assert {s.session.id: s.session.name for s in store.sessions()} == {
            sid: book.name for sid, book in self.books.items()
        }
        assert {r.id for r in store.running()} == set(self.pending)
        for sid, book in self.books.items():
            head = store.head(sid)
            assert (head.branch, head.message) == book.head
            assert {b.name: b.message for b in store.branches(sid)} == book.branches
            for name in THOUGHTS:
                found = [m for m, mine in book.thoughts.items() if mine == name]
                assert store.thoughts(sid, name) == found
            told = store.messages(sid)
            assert {m.id for m in told} == self.shown(sid)
            for message in told:
                said = self.said[message.id]
                assert (message.parent, message.text) == (said.parent, said.text)
                assert message.origin == said.origin
                if said.ids is not None:
                    assert list(store.ids(message.id) or ()) == said.ids
        assert {s.session.id: s.messages for s in store.sessions()} == {
            sid: len(self.shown(sid)) for sid in self.books
        }

    @invariant()
    def verify_finds_nothing(self) -> None:
        assert self.store.verify() == []


def test_random_lives_of_a_store_agree_with_a_plain_model() -> None:
    run(StoreMachine, examples=70, steps=30, shrinks=False)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_long_random_lives_of_a_store_agree_with_a_plain_model() -> None:
    run(StoreMachine, examples=500, steps=60)
