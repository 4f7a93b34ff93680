"""A function that talks to the model, and the ways to run it."""

from __future__ import annotations

import functools
import inspect
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from radchat.errors import UsageError
from radchat.programs.places import place
from radchat.programs.remote import DaemonProgram, Remote, Settings
from radchat.programs.running import Running, current
from radchat.programs.state import State
from radchat.programs.trace import Call

if TYPE_CHECKING:
    from radchat.client import Client

SETTINGS = frozenset(field.name for field in fields(Settings))
OF_A_RUN = SETTINGS | {"save", "client", "remote", "on_notice", "on_wait"}
AT_ONCE = 16  # rows of a batch
Notice = Callable[[str], None]


def _say(text: str) -> None:
    from radchat.chat.text import clean

    print(clean(text), file=sys.stderr)


class Program:
    """What ``@program`` makes of a function whose first parameter is the state."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function, self.name = function, function.__name__
        self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters)
        if not parameters:
            raise TypeError(f"{self.name}() needs a first parameter: the state, as in (s, text)")
        taken = sorted(OF_A_RUN.intersection(parameters[1:]))
        if taken:
            raise TypeError(
                f"{self.name}(): a parameter can't be called {', '.join(taken)}: "
                "that is said of a run; call it something else"
            )

    def __call__(self, s: State, *args: Any, **given: Any) -> Any:
        """As a part of another program, on its state."""
        if not isinstance(s, State):
            raise TypeError(
                f"{self.name}(s, ...) goes on a state; to run it by itself: {self.name}.run(...)"
            )
        call = s.call("program", self.name)
        call.begin()
        with s.inside(call):
            try:
                return self.function(s, *args, **given)
            finally:
                call.end()

    def run(self, *args: Any, **given: Any) -> State:
        """Run it; returns its state when all is done, with ``.result`` and the variables.

        Besides the function's own arguments: ``model``, ``dtype``, ``exact``, ``think``,
        ``options`` (temperature, seed, …), ``cache``, ``jump``, ``parallel``, ``save`` (a name:
        it becomes a session), ``client`` (a daemon that is connected already). Inside another
        program, without any of these, it has a state of its own in that one.
        """
        where = place()
        own = {name: given.pop(name) for name in OF_A_RUN.intersection(given)}
        self._bind(args, given)
        save = own.pop("save", None)
        outer = current.get()
        if outer is not None and not own:
            running = Running(outer.remote, outer.settings, slots=outer.slots)
            return self._run(running, where, args, given, save=save)
        with _opened(own, save) as (remote, settings):
            return self._run(Running(remote, settings), where, args, given, save=save)

    def run_batch(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        at_once: int = AT_ONCE,
        on_done: Callable[[int, State], None] | None = None,
        **own: Any,
    ) -> list[State]:
        """Run it on each row of arguments, ``at_once`` at a time; the states, in order.

        A row that fails does not end the others: its state has ``.error``, and ``.result`` raises
        it. ``on_done`` is called here, in this thread, as each ends.
        """
        if at_once < 1:
            raise ValueError(f"at_once={at_once}: want 1 or more")
        unknown = sorted(set(own) - OF_A_RUN)
        if unknown:
            raise TypeError(f"run_batch has no {', '.join(unknown)}: arguments go into the rows")
        if own.pop("save", None) is not None:
            raise UsageError("save is of one run: s.save(name) in the program saves each row's")
        for number, row in enumerate(rows):
            try:
                self._bind((), row)
            except TypeError as error:
                raise TypeError(f"row {number}: {error}") from None
        if not rows:
            return []
        where = place()
        with _opened(own) as (remote, settings):
            return self._run_rows(remote, settings, where, list(rows), at_once, on_done)

    def _run_rows(
        self,
        remote: Remote,
        settings: Settings,
        where: str,
        rows: list[Mapping[str, Any]],
        at_once: int,
        on_done: Callable[[int, State], None] | None,
    ) -> list[State]:
        whole = Running(remote, settings)
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, State | BaseException]] = queue.SimpleQueue()
        runs = [Running(remote, settings, slots=whole.slots) for _ in rows]
        for number in range(len(rows)):
            waiting.put(number)
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    path = f"row {number}"
                    state = self._run(runs[number], where, (), rows[number], path=path, keep=True)
                    done.put((number, state))
                except BaseException as error:  # told in the thread that waits
                    done.put((number, error))
                    return

        states: dict[int, State] = {}
        try:
            for _ in range(min(at_once, len(rows)) if settings.parallel else 1):
                threading.Thread(target=work, name="program rows", daemon=True).start()
            while len(states) < len(rows):
                number, state = done.get()
                if isinstance(state, BaseException):
                    raise state
                states[number] = state
                if on_done is not None:
                    on_done(number, state)
        finally:
            stop.set()
            if len(states) < len(rows):
                for run in runs:
                    run.give_up("the batch was given up")
        return [states[number] for number in range(len(rows))]

    def _run(
        self,
        running: Running,
        where: str,
        args: Sequence[Any],
        given: Mapping[str, Any],
        *,
        path: str = "0",
        keep: bool = False,
        save: str | bool | None = None,
    ) -> State:
        """``keep``: a failure is the state's, not raised."""
        call = Call("program", self.name, where)
        call.begin()
        state = State(running, call, path=path)
        before = current.set(running)
        try:
            state._begin(running.begin())  # noqa: SLF001 - the root opens here, a branch at its fork
            result = self.function(state, *args, **given)
            running.wait()
            if state.error is not None:
                raise state.error  # noqa: TRY301 - as what the function raises itself
            for error in running.untold():
                _say(f"a branch failed, and nothing was read from it: {error.message}")
            if save:
                state.save(None if save is True else save)
            state.settle(result)
        except Exception as error:
            running.give_up(f"{self.name} failed: {error}")
            state.settle(failure=error)
            call.error = str(error)
            running.forget()
            if not keep:
                raise
        except BaseException:
            running.give_up(f"{self.name} was interrupted")
            raise
        finally:
            current.reset(before)
            call.end()
        running.end()
        return state

    def _bind(self, args: Sequence[Any], given: Mapping[str, Any]) -> None:
        """TypeError where the arguments don't fit, before anything is asked."""
        try:
            self._signature.bind(None, *args, **given)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None


def program(function: Callable[..., Any]) -> Program:
    """Make a function a program: its first parameter is the state."""
    return Program(function)


def run_batch(of: Program, rows: Sequence[Mapping[str, Any]], **own: Any) -> list[State]:
    """``of.run_batch(rows)``"""
    return of.run_batch(rows, **own)


@contextmanager
def _opened(
    own: Mapping[str, Any], save: str | bool | None = None
) -> Iterator[tuple[Remote, Settings]]:
    """A program that is open on the daemon, until the end of the block."""
    settings = Settings(**{name: value for name, value in own.items() if name in SETTINGS})
    remote: Remote | None = own.get("remote")
    if remote is None:
        client: Client | None = own.get("client")
        notice: Notice = own.get("on_notice") or _say
        wait: Notice = own.get("on_wait") or (lambda _text: None)
        if client is None:
            from radchat.client import Client
            from radchat.paths import Places

            client = Client.connect(Places.from_env(), on_notice=notice, on_wait=wait)
        name = save if isinstance(save, str) else None
        remote = DaemonProgram.open(client, settings, save=name, on_notice=notice, on_wait=wait)
    try:
        yield remote, settings
    finally:
        remote.close()
