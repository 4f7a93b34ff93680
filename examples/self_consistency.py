"""Self-consistency: one question, many ways to think about it, and the answer most of them reach.

    radchat run examples/self_consistency.py --arg paths=9
    python examples/self_consistency.py

Shared: the question. It is read once; each path is a fork of it and computes only what it says. A
path may end anywhere: its answer is one of the given ones, by a grammar, so that each has a vote.
"""

from __future__ import annotations

from collections import Counter

from radchat.programs import State, assistant, gen, program, user

QUESTION = "Which is heavier, a horse or a dog?"


@program
def self_consistency(
    s: State,
    question: str = QUESTION,
    answers: tuple[str, ...] = ("horse", "dog"),
    paths: int = 5,
    tokens: int = 40,
) -> dict[str, int]:
    s += user(f"{question} Think first.")
    forks = s.fork(paths)
    for f in forks:
        f += assistant(
            gen("thought", max_tokens=tokens, temperature=0.8)
            + "\nThe answer: "
            + gen("answer", choices=answers)
        )
    forks.join()
    return dict(Counter(forks["answer"]).most_common())


if __name__ == "__main__":
    for answer, votes in self_consistency.run().result.items():
        print(f"{votes} of 5: {answer}")
