"""Few-shot classification: the examples are read once, and every text after them is a branch.

    radchat run examples/few_shot.py --arg text="The bread was still warm."
    python examples/few_shot.py

Shared: the four examples, whatever the text. Computed: the text itself, and for each label the
tokens it is scored by. `--input FILE.jsonl` labels many texts at once.
"""

from __future__ import annotations

from radchat.programs import State, assistant, program, select, user

EXAMPLES = {
    "We won the match by three goals.": "sport",
    "The soup needs more salt.": "food",
    "It will rain until Friday.": "weather",
    "She sang the last song twice.": "music",
}


@program
def few_shot(s: State, text: str = "The runner broke her own record.") -> str:
    for example, topic in EXAMPLES.items():
        s += user(f"{example} What is it about?")
        s += assistant(topic)
    s += user(f"{text} What is it about?")
    s += assistant(select("topic", list(EXAMPLES.values())))
    return s["topic"]


if __name__ == "__main__":
    texts = ["The bread was still warm.", "Snow fell all night.", "He scored in the last minute."]
    for state in few_shot.run_batch([{"text": text} for text in texts]):
        print(state.result)
