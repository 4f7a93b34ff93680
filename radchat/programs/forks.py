"""The branches of a fork, together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from radchat.programs.errors import ProgramError

if TYPE_CHECKING:
    from radchat.programs.state import State
    from radchat.programs.trace import Call


class Forks(Sequence["State"]):
    """``forks[i]`` is a branch, ``forks["name"]`` the list of what each says."""

    def __init__(self, branches: Sequence[State], call: Call) -> None:
        self._branches, self._call = list(branches), call
        self._keeps = False

    def __iadd__(self, more: object) -> Self:
        """The same to each."""
        for branch in self._branches:
            branch += more  # noqa: PLW2901 - in place
        return self

    def join(self, errors: Literal["raise", "keep"] = "raise") -> Forks:
        """Wait for all. One that failed is raised when all are there; ``keep``: it is not, and
        its variables are None where they are asked for together.
        """
        if errors not in ("raise", "keep"):
            raise ValueError(f'join(errors={errors!r}): want "raise" or "keep"')
        self._keeps = errors == "keep"
        for branch in self._branches:
            branch.wait()
        bad = [branch.error for branch in self._branches if branch.error is not None]
        for error in bad:
            if isinstance(error, ProgramError):
                error.is_told = True
        if bad and not self._keeps:
            first = bad[0]
            if len(bad) > 1 and isinstance(first, ProgramError):
                told = f"{first.message} ({len(bad)} of {len(self)} branches failed)"
                raise type(first)(told, **first.data) from first
            raise first.told_again() if isinstance(first, ProgramError) else first
        return self

    @overload
    def __getitem__(self, key: int) -> State: ...
    @overload
    def __getitem__(self, key: slice) -> list[State]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        if not isinstance(key, str):
            return self._branches[key]
        return [self._value(branch, key) for branch in self._branches]

    def __setitem__(self, key: int, branch: State) -> None:
        """The end of ``forks[i] += ...``; a branch is never another one."""
        if branch is not self._branches[key]:
            raise TypeError(f"forks[{key}] = ...: a branch grows in place: forks[{key}] += ...")

    def _value(self, branch: State, name: str) -> Any:
        try:
            return branch[name]
        except ProgramError:
            if self._keeps and name in branch:
                return None
            raise

    def __len__(self) -> int:
        return len(self._branches)

    def __iter__(self) -> Iterator[State]:
        return iter(self._branches)
