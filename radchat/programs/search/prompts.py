"""What is said to the model where a task says nothing else: the prompts of a free-form search.

In a prompt: ``{problem}``; ``{thoughts}``, those so far, a numbered line each; ``{last}`` of them;
``{step}``, its number, or that of the one that is asked for; ``{depth}``, of how many; ``{count}``
and ``{candidates}``, of what is proposed or voted on. A prompt that names no ``{problem}`` and
stands first in its branch has the problem above it.
"""

from __future__ import annotations

# Chosen by what a model of 135M makes of them. Asked for a "first step" it talks about steps. Of
# eight ways to ask for a rating this one has it put a step before nonsense most often (31 of 32
# pairs), and better than with the problem said again. From 1 to 10 it would say 10 each time: under
# a grammar that is where a 1 goes on.
FIRST = "How would you begin? Answer in one short sentence."
STEP = "And then? Answer in one short sentence."
PROPOSE = "Write {count} different ideas for step {step} of the solution. One short sentence each."
VALUE = (
    "Step: {last}\n"
    "How much does this step help to solve the problem? 1 is not at all, 9 is very much. "
    "Answer with a number."
)
VOTE = "Steps:\n{candidates}\nWhich step helps the most to solve the problem? Answer with a number."
ANSWER = "Now write your whole answer, from beginning to end."

FIELDS = ("problem", "thoughts", "last", "step", "depth")
MORE_FIELDS = {"propose": ("count",), "vote": ("count", "candidates")}

VALUES = {str(number): float(number) for number in range(1, 10)}
MAX_LINE = 400  # characters of a thought
