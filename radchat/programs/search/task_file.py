"""Which task is meant: one of ours by its name, or one in a Python file.

    task = Task("haiku", step="Write line {step} of a haiku.")

The file is run once, as `radchat run` does; what fails in it, also later in its functions, is told
with its line.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from radchat.chat.options import nearest
from radchat.errors import UsageError
from radchat.programs.python_file import execute, failure, is_ours
from radchat.programs.search.task import Task
from radchat.programs.search.tasks.free import FREE
from radchat.programs.search.tasks.game24 import GAME24

BUILT_IN = {task.name: task for task in (FREE, GAME24)}
MODULE = "__task__"  # what the file is called while it runs: never "__main__"


def find_task(name: str) -> Task:
    """By name or path. UsageError: there is no such task, and which there are."""
    known = BUILT_IN.get(name)
    if known is not None:
        return known
    if not Path(name).is_file():
        raise UsageError(_missing(name))
    path = str(Path(name).resolve())
    try:
        module = execute(path, MODULE)
    except (Exception, SystemExit) as error:
        if is_ours(path, error):
            raise
        raise failure(path, error) from error
    task = getattr(module, "task", None)
    if not isinstance(task, Task):
        tasks = [each for each, value in vars(module).items() if isinstance(value, Task)]
        called = f": it calls it {', '.join(tasks)}" if tasks else ""
        raise UsageError(f"{name} has no task = Task(...){called}")
    return dataclasses.replace(task, source=path)


def _missing(name: str) -> str:
    tasks = ", ".join(BUILT_IN)
    if Path(name).is_dir():
        return f"--task {name} is a folder: name a Python file with a task = Task(...)"
    if "/" in name or name.endswith(".py"):
        return f"no file {name} here: --task is a Python file, or one of {tasks}"
    near = nearest(name, tuple(BUILT_IN))
    meant = f"did you mean {near}? There are " if near else "there are "
    return f"no task {name!r}: {meant}{tasks}; or a Python file (docs/search.md)"
