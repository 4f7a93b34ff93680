"""JSON out of a text: whatever the model would like to say, what it says fits the schema.

    radchat run examples/extract_json.py --arg text="Mia, 34, is a baker."
    python examples/extract_json.py

Shared: the instruction and the example, for every text. Forced: what the schema already decides
(`{"name": "`, `", "age": `) is written without asking the model, in one step each; the usage counts
it as forced_tokens. The schema is person.json, as for `radchat ask --schema examples/person.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from radchat.programs import State, assistant, gen, program, system, user

PERSON = json.loads(Path(__file__).with_name("person.json").read_text(encoding="utf-8"))
TEXT = "Mario Rossi is 58. He is a tram driver in Milan and speaks Italian and some German."
EXAMPLE = {"name": "Ann Lee", "age": 41, "job": "nurse", "languages": ["English", "Korean"]}


@program
def extract(s: State, text: str = TEXT) -> dict[str, Any]:
    s += system("Write down the person in the text as JSON.")
    s += user("Ann Lee, a nurse of 41, speaks English and Korean.")
    s += assistant(json.dumps(EXAMPLE))
    s += user(text)
    s += assistant(gen("person", schema=PERSON, temperature=0))
    return s["person"]


if __name__ == "__main__":
    print(json.dumps(extract.run().result, indent=2))
