"""An interview: a talk of several turns, in which each question builds on the last answer.

    radchat run examples/interview.py --arg who="a lighthouse keeper"
    python examples/interview.py

Shared: everything said so far. Each turn computes its question alone; the answers are the very
tokens the model said, never read again. `--save NAME` keeps the talk as a session, to go on with.
"""

from __future__ import annotations

from radchat.programs import State, assistant, gen, program, system, user

QUESTIONS = (
    "Who are you, and where do you live?",
    "What did you do this morning?",
    "What would you never give away?",
)


@program
def interview(s: State, who: str = "an old sailor", tokens: int = 40) -> list[str]:
    s += system(f"You are {who}. Answer in one short sentence.")
    for number, question in enumerate(QUESTIONS):
        s += user(question)
        s += assistant(gen(f"answer {number}", max_tokens=tokens, stop=["\n"]))
    return [s[f"answer {number}"] for number in range(len(QUESTIONS))]


if __name__ == "__main__":
    for question, answer in zip(QUESTIONS, interview.run().result, strict=True):
        print(f"{question}\n    {answer}")
