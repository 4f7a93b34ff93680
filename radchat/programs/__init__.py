"""Language-model programs: Python functions that say, generate, select, fork and join.

    @program
    def label(s, text):
        s += user(text)
        s += assistant("It is " + select("label", ["good", "bad"]))
        return s["label"]

    label.run(text="A fine day.").result

Read in this order: expressions (what is said), state (what ``+=`` does with it), lane and slot
(how it waits), forks, program (run, run_batch), running (how all of it ends), remote (the daemon),
trace.
"""

from radchat.programs.errors import ProgramError
from radchat.programs.expressions import assistant, gen, select, system, user
from radchat.programs.forks import Forks
from radchat.programs.program import Program, program, run_batch
from radchat.programs.state import State

__all__ = [
    "Forks",
    "Program",
    "ProgramError",
    "State",
    "assistant",
    "gen",
    "program",
    "run_batch",
    "select",
    "system",
    "user",
]
