"""`/tools`, `/permissions`, `/mcp`: what an agent has, and may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radchat.agent.permission.grants import Granted, lines
from radchat.agent.permission.rules import Rule
from radchat.agent.setting_up import mode_of
from radchat.agent.terminal import person
from radchat.agent.terminal.asking import calm, read_line
from radchat.chat.text import clean, one_line
from radchat.chat.width import cut
from radchat.errors import NotFound, UsageError

if TYPE_CHECKING:
    from radchat.agent.terminal.agent_chat import AgentChat

USAGE = (
    "/permissions, /permissions mode MODE, or allow, deny, rm and a RULE: "
    "/permissions allow shell(npm test:*)"
)


def show_tools(chat: AgentChat) -> None:
    for name, tool in chat.tools.items():
        first = clean(tool.description).partition(". ")[0].rstrip(".")
        line = f"{one_line(name):<14}{one_line(first)}"
        chat.host.out(line if chat.host.columns is None else cut(line, chat.host.columns))


def permissions(chat: AgentChat, rest: str) -> None:
    """A rule that is given here is for this project."""
    place = chat.place
    word, _, text = rest.partition(" ")
    text = text.strip()
    if not word:
        for line in lines(place.grants, place.judge.mode):
            chat.host.out(one_line(line))
    elif word == "mode" and text:
        place.judge.mode = mode_of(text, yolo=False)
        chat.host.note(f"mode {place.judge.mode}, for this run")
    elif word in ("allow", "deny") and text:
        rule = Rule.parse(text)
        place.grants.add(Granted("allow" if word == "allow" else "deny", rule, "project"))
        chat.host.note(f"{word} {one_line(str(rule))}, for this project")
    elif word in ("rm", "remove") and text:
        rule = Rule.parse(text)
        if not place.grants.remove(rule):
            raise NotFound(f"no rule {rule}: /permissions lists them")
        chat.host.note(f"removed {one_line(str(rule))}")
    else:
        raise UsageError(USAGE)


def show_servers(chat: AgentChat) -> None:
    if chat.servers is None:
        chat.host.out("no MCP servers: mcp.json in the config folder, or --mcp-config FILE")
        return
    for line in chat.servers.lines():
        chat.host.out(one_line(line))


def asks_trust(chat: AgentChat, name: str) -> bool:
    """Whether a folder's instructions are read; kept with the project's rules."""
    calm(chat.prompt)
    said = read_line(
        person.tell,
        f"{one_line(name)} in this folder has instructions for agents. Read it? It can't permit "
        "anything. [y/N] ",
    )
    if said is None:
        return False  # and it is asked again
    trusted = said.lower() in ("y", "yes")
    chat.place.grants.trust(trusted=trusted)
    return trusted
