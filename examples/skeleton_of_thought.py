"""Skeleton of thought: an outline first, then all its points at once.

    radchat run examples/skeleton_of_thought.py --arg topic="keeping bees"
    python examples/skeleton_of_thought.py

Shared: the question and the outline, read once. Each point is written by a fork of them, in the
same steps as the others: a text as long as all, in the time of the longest. A schema makes the
outline a list of three names.
"""

from __future__ import annotations

from radchat.programs import State, assistant, gen, program, user

POINTS = 3
OUTLINE = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[A-Z][a-z]+( [a-z]+){0,3}$", "maxLength": 30},
    "minItems": POINTS,
    "maxItems": POINTS,
}


@program
def skeleton_of_thought(s: State, topic: str = "a good story", tokens: int = 50) -> dict[str, str]:
    s += user("Three important points about baking bread?")
    s += assistant('["Good flour", "Enough time", "A hot oven"]')
    s += user(f"Three important points about {topic}?")
    s += assistant(gen("outline", schema=OUTLINE, temperature=0))
    forks = s.fork(POINTS)
    for f, point in zip(forks, s["outline"], strict=True):
        f += user(f"Tell me more about this point: {point}.")
        f += assistant(gen("text", max_tokens=tokens))
    forks.join()
    return dict(zip(s["outline"], forks["text"], strict=True))


if __name__ == "__main__":
    for point, text in skeleton_of_thought.run().result.items():
        print(f"{point}\n    {text}")
