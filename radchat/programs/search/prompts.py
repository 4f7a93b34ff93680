"""What is said to the model where a task says nothing else: the prompts of a free-form search.

In a prompt: ``{problem}``; ``{thoughts}``, those so far, a numbered line each; ``{last}`` of them;
``{step}``, its number, or that of the one that is asked for; ``{depth}``, of how many; ``{count}``
and ``{candidates}``, of what is proposed or voted on. A prompt that names no ``{problem}`` and
stands first in its branch has the problem above it.
"""

from __future__ import annotations

STEP = "Write step {step} of the solution. One short sentence."
PROPOSE = "Write {count} different ideas for step {step} of the solution. One short sentence each."
VALUE = (
    "How good is this step: {last}\n"
    "Rate it from 1 (useless) to 10 (excellent). Answer with the number alone."
)
VOTE = (
    "Which of these is the best for step {step}?\n{candidates}\nAnswer with the number of the best."
)
ANSWER = "Now give the final answer."

FIELDS = ("problem", "thoughts", "last", "step", "depth")
MORE_FIELDS = {"propose": ("count",), "vote": ("count", "candidates")}

VALUES = {str(number): float(number) for number in range(1, 11)}
MAX_LINE = 400  # characters of a thought
