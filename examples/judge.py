"""A judge (branch, solve, merge): an essay judged from several sides at once, and one verdict.

    radchat run examples/judge.py --arg essay="$(cat essay.txt)"
    python examples/judge.py

Shared: the instruction and the whole essay, read once for all sides. Each side is a fork: its
question, its remark and its grade. The verdict is one more branch of the same essay, with the
remarks of all.
"""

from __future__ import annotations

from radchat.programs import State, assistant, gen, program, select, system, user

SIDES = ("clarity", "originality", "evidence")
GRADES = ["Poor", "Fair", "Good"]
ESSAY = (
    "Cities should plant more trees. A street with trees is cooler in summer, its air is cleaner, "
    "and people like to walk there. Trees cost little and live long. Yet many cities cut them "
    "down to make room for cars. That is a mistake that our children will pay for."
)


@program
def judge(s: State, essay: str = ESSAY, tokens: int = 40) -> dict[str, str]:
    s += system("You judge short essays, briefly and fairly.")
    s += user(f"The essay:\n{essay}")
    s += assistant("I have read it.")
    forks = s.fork(len(SIDES))
    for f, side in zip(forks, SIDES, strict=True):
        f += user(f"Judge its {side} in one sentence.")
        f += assistant(gen("remark", max_tokens=tokens, stop=["\n"]))
        f += user(f"So how is its {side}: {', '.join(GRADES)}?")
        f += assistant(select("grade", GRADES))
    forks.join()
    s += user("Sum up these remarks:\n" + "\n".join(forks["remark"]))
    s += assistant(gen("verdict", max_tokens=tokens))
    return dict(zip(SIDES, forks["grade"], strict=True)) | {"verdict": s["verdict"]}


if __name__ == "__main__":
    for name, what in judge.run().result.items():
        print(f"{name}: {what}")
