"""What a program raises, told with the line of the user's file that asked for it."""

from __future__ import annotations

from radchat.errors import RadchatError


class ProgramError(RadchatError):
    """A call of a program that failed.

    ``FILE:LINE: gen("x"): why``. It is also of the class of what it fails with, so that
    ``except ContextOverflow`` works and a command ends with that exit code.
    """

    is_told = False  # somebody has read it

    def told_again(self) -> ProgramError:
        """The same for one more reader: an exception that is raised twice grows its traceback."""
        self.is_told = True
        again = type(self)(self.message, **self.data)
        again.__cause__ = self.__cause__
        return again


class Cancelled(ProgramError):
    """What waits for a program that was given up."""

    code = "cancelled"


def _of_kind(kind: type[RadchatError]) -> type[ProgramError]:
    return ProgramError if kind is RadchatError else type("ProgramError", (ProgramError, kind), {})


def failed(place: str, what: str, error: Exception) -> ProgramError:
    """``error`` as the failure of the call ``what``, written at ``place``."""
    if isinstance(error, ProgramError):
        return error
    if isinstance(error, RadchatError):
        kind, why, data = type(error), error.message, error.data
    else:
        kind, why, data = RadchatError, f"{type(error).__name__}: {error}", {}
    told = _of_kind(kind)(f"{place}: {what}: {why}", **data)
    told.__cause__ = error
    return told
