"""Nine moments in the life of a radix tree, on the real engine with a pool of 24 pages.

    python examples/nine_moments.py [MODEL]

Two chats share a system prompt, a few-shot batch shares its examples, memory runs short and the
least recently used branches go, and the first chat comes back to what is still there of it. After
Figure 3 of "SGLang: Efficient Execution of Structured Language Model Programs" (arXiv 2312.07104).
After each moment the tree is printed as `radchat cache tree` shows it: run of tokens, pages, words.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from radchat.engine.engine import Engine
from radchat.engine.request import Finished, Ids, Request, SamplingParams, Started, Tokens

NUM_PAGES = 24  # of 16 tokens: less than the nine moments need together
ANSWER = 9  # tokens
SYSTEM, TURN, EXAMPLES, QUESTION, FOLLOW_UP = 32, 48, 48, 8, 88  # tokens


@dataclass
class Moment:
    """What has just happened, and how many tokens of each conversation are cached now."""

    title: str
    reused: int  # tokens the last request found
    cached: dict[str, int]
    lengths: dict[str, int]


@dataclass
class Play:
    """The engine, and what each conversation has said so far."""

    engine: Engine
    encode: Callable[[str], list[int]]
    said: dict[str, Ids] = field(default_factory=dict)
    reused: int = 0
    num_requests: int = 0

    def words(self, text: str, num_tokens: int) -> Ids:
        """``text`` over and over, cut to exactly so many tokens."""
        ids: list[int] = []
        while len(ids) < num_tokens:
            ids += self.encode(text)
        return array("I", ids[:num_tokens])

    def ask(self, name: str, prompt: Ids) -> None:
        """Generate an answer after ``prompt``; the conversation is then prompt and answer."""
        self.num_requests += 1
        params = SamplingParams(temperature=0.0, max_tokens=ANSWER)
        self.engine.submit(Request(str(self.num_requests), array("I", prompt), params))
        out = array("I")
        while self.engine.has_work():
            for event in self.engine.step():
                if isinstance(event, Started):
                    self.reused = event.cached_tokens
                elif isinstance(event, Tokens):
                    out.extend(event.ids)
                elif isinstance(event, Finished):
                    assert event.error is None, event.error
        self.said[name] = prompt + out

    def moment(self, title: str) -> Moment:
        cached = {name: self.engine.probe(ids) for name, ids in self.said.items()}
        lengths = {name: len(ids) for name, ids in self.said.items()}
        return Moment(title, self.reused, cached, lengths)


def moments(engine: Engine, encode: Callable[[str], list[int]]) -> Iterator[Moment]:
    """Play the nine moments; the engine's tree is as it is after each when it is yielded."""
    play = Play(engine, encode)
    words = play.words
    yield play.moment("1  the tree is empty")

    system = words("You are a helpful assistant. ", SYSTEM)
    play.ask("chat 1", system + words("Hello! ", TURN))
    yield play.moment("2  chat 1 says hello: a node under the root")

    first_turn = play.said["chat 1"]
    play.ask("chat 1", first_turn + words("Solve this problem: ", TURN))
    yield play.moment("3  its second turn reuses the first and makes the same node longer")

    play.ask("chat 2", system + words("What can you do? ", TURN))
    yield play.moment("4  chat 2 begins: the node is split where the system prompt ends")

    play.ask("chat 2", play.said["chat 2"] + words("Write a story. ", TURN))
    yield play.moment("5  chat 2 goes on, memory is short: the end of chat 1 goes, page by page")

    examples = words("Translate, as in these examples. ", EXAMPLES)
    play.ask("question 1", examples + words("one: ", QUESTION))
    yield play.moment("6  a few-shot question: nothing shared, a second node under the root")

    play.ask("question 2", examples + words("two: ", QUESTION))
    play.ask("question 3", examples + words("six: ", QUESTION))
    yield play.moment("7  two more share its examples")

    play.ask("chat 1", first_turn + words("Once more, please: ", TURN))
    yield play.moment("8  chat 1 comes back: its first turn is still there, chat 2 makes room")

    play.ask("question 1", play.said["question 1"] + words("And why is that? ", FOLLOW_UP))
    yield play.moment(
        "9  question 1 is followed up: the other questions go, then chat 1's last turn"
    )


def picture(engine: Engine, decode: Callable[[Ids], str]) -> Iterator[str]:
    """A line for each node of the tree."""
    for node in engine.cache.nodes():
        run = f"{'  ' * node.depth}{node.start}-{node.end}"
        words = decode(node.tokens[:12]).replace("\n", " ")
        yield f"{run:<16}{len(node.pages):>3} pages  hits {node.hits}  {words}..."


def main() -> None:
    from radchat.config import Size
    from radchat.engine.model import build_engine, load
    from radchat.models import registry
    from radchat.paths import Places

    entry = registry.choose(Places.from_env(), sys.argv[1] if len(sys.argv) > 1 else None)
    model = load(entry.folder)
    tokenizer = model.tokenizer
    engine = build_engine(model, kv_budget=Size(tokens=NUM_PAGES * 16))
    for moment in moments(engine, lambda text: list(tokenizer.encode_text(text))):
        print(f"\n{moment.title}   (reused {moment.reused} tokens)")
        for line in picture(engine, tokenizer.decode):
            print(f"  {line}")


if __name__ == "__main__":
    main()
