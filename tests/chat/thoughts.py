"""Trees of thoughts, by their names alone."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Thought:
    name: str
    text: str = ""
    score: float | None = None
    status: str = "live"
    children: list[Thought] = field(default_factory=list)


def tree(*lines: str) -> Thought:
    """Of `s1.2.1 7.5 live its words`, parents first; the root is `s1`, a problem."""
    root = Thought("s1", "count the ferries")
    known = {root.name: root}
    for line in lines:
        name, score, status, *words = line.split()
        thought = Thought(name, " ".join(words), None if score == "-" else float(score), status)
        known[name.rpartition(".")[0]].children.append(thought)
        known[name] = thought
    return root


SMALL = (
    "s1.1 7.5 live Start with the morning boat",
    "s1.1.1 8 live It carries forty cars",
    "s1.1.2 - new It leaves at six",
    "s1.2 4 pruned Ask the captain",
    "s1.3 0 dead There are no ferries",
)


def wide(breadth: int, *, depth: int = 2, keeps: int = 2) -> Thought:
    """``breadth`` children a thought; of each level ``keeps`` are kept, and their children are the
    frontier.
    """
    root = Thought("s1", "a problem")
    level = [root]
    for at in range(depth):
        found: list[Thought] = []
        for parent in level:
            for number in range(1, breadth + 1):
                child = Thought(f"{parent.name}.{number}", "words " * 9, float(number), "live")
                parent.children.append(child)
                found.append(child)
        if at < depth - 1:
            for child in found[keeps:]:
                child.status = "pruned"
            found = found[:keeps]
        level = found
    return root
