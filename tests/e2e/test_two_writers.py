"""Two commands at once, each a process: one session, two turns, nothing lost (CO-01)."""

from __future__ import annotations

from tests.e2e.conftest import EXACT
from tests.e2e.homes import Shell, finish
from tests.e2e.hooked import Hooked
from tests.waiting import wait_until

OWN = "has moved on: this turn is on its own branch"


def test_two_commands_at_the_same_head_are_both_kept_and_one_is_told(hooked: Hooked) -> None:
    """Neither has been answered when the other begins."""
    hooked.client()
    shells = [Shell(hooked.home, name, EXACT) for name in ("1", "2")]
    base = shells[0].quick("start")
    session, head = base["session"], base["message"]
    hooked.hold("submit")
    asking = [shell.start("ask", "-r", session, f"from {shell.name}", *EXACT) for shell in shells]
    wait_until(lambda: hooked.num_arrived == 2)
    hooked.release()
    ended = [finish(process) for process in asking]
    assert [done.code for done in ended] == [0, 0], ended
    assert sum(OWN in done.err for done in ended) == 1
    with hooked.home.store() as store:
        users = [m for m in store.messages(session) if m.role == "user"][1:]
        branches = {b.name: b.message for b in store.branches(session)}
        paths = [store.path(message) for message in branches.values()]
    assert {m.text: m.parent for m in users} == {"from 1": head, "from 2": head}
    assert set(branches) == {"main", "main-2"}
    assert all(len(path) == 4 for path in paths)
    hooked.home.assert_balanced()


def test_a_command_while_another_answers_goes_beside_it_and_the_session_can_go_after(
    terminal: Shell,
) -> None:
    """CO-02, with two processes."""
    base = terminal.quick("start")
    first = terminal.start(
        "ask", "-r", base["session"], "a long one", *EXACT, "--max-tokens", "3000"
    )
    assert first.stdout is not None
    first.stdout.read(3)
    second = terminal("ask", "-r", base["session"], "meanwhile", *EXACT)
    assert f"main {OWN} main-2" in second.err
    done = finish(first)
    assert (done.code, OWN in done.err) == (0, False)
    assert set(terminal.tree(session=base["session"])["branches"]) == {"main", "main-2"}
    terminal("sessions", "rm", base["session"], "-y")
    terminal.home.assert_balanced()
