"""Tree of thought: several next steps for each of the best ways so far, judged, the best kept.

    radchat run examples/tree_of_thought.py --arg breadth=3 --arg depth=2 --trace
    python examples/tree_of_thought.py

Shared: the problem by all, each thought by all that follow from it. A thought is a fork of the one
before: it computes what it adds, and the judge of a thought what it asks. A grammar makes each
verdict a number from 1 to 9, also of a model that would rather talk.
"""

from __future__ import annotations

from radchat.programs import State, assistant, gen, program, system, user

PROBLEM = "How can a small town get more people to cycle to work?"


@program
def tree_of_thought(
    s: State,
    problem: str = PROBLEM,
    breadth: int = 3,
    depth: int = 2,
    keep: int = 2,
    tokens: int = 40,
) -> list[str]:
    s += system("You think in small steps. Each step is one short sentence.")
    s += user(problem)
    best = [s]
    for step in range(1, depth + 1):
        thoughts = [fork for state in best for fork in state.fork(breadth)]
        for t in thoughts:
            t += assistant(f"Step {step}:" + gen(f"step {step}", max_tokens=tokens, stop=["\n"]))
        judges = [t.fork(1)[0] for t in thoughts]
        for judge in judges:
            judge += user("Rate that step from 1 (useless) to 9 (excellent).")
            judge += assistant("I rate it " + gen("score", regex="[1-9]"))
        for t, judge in zip(thoughts, judges, strict=True):
            t["score"] = judge["score"]
            t += user("And the next step?")
        best = sorted(thoughts, key=lambda t: int(t["score"]), reverse=True)[:keep]
    return [best[0][f"step {step}"] for step in range(1, depth + 1)]


if __name__ == "__main__":
    for number, thought in enumerate(tree_of_thought.run().result, start=1):
        print(f"{number}. {thought}")
