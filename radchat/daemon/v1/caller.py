"""Who asks: the owner, or somebody with another key. Put into the scope by whoever let them in."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from radchat.errors import RadchatError
from radchat.protocol import Where

SCOPE = "radchat.caller"


class NotAllowed(RadchatError):
    """No key, or a wrong one."""

    code = "invalid_api_key"
    http_status = 401


class NotYours(RadchatError):
    """It tells of what all keys do."""

    code = "permission_denied"
    http_status = 403


@dataclass(frozen=True, slots=True)
class Caller:
    """``key``: "" of the owner (the Unix socket, or the home's own key), else a digest that names
    the key. What one key has told or read is not found with another.
    """

    key: str = ""

    @property
    def namespace(self) -> str:
        """Of its KV."""
        return f"key:{self.key}" if self.key else ""

    @property
    def where(self) -> Where:
        return {"terminal": f"api:{self.key}", "folder": ""}


OWNER = Caller()


def caller_of(scope: Scope) -> Caller:
    """Fails closed: only a connection that has no address, over the socket that is the owner's own,
    needs nobody to have let it in.
    """
    found = scope.get(SCOPE)
    if isinstance(found, Caller):
        return found
    if scope.get("client") is None:
        return OWNER
    raise NotAllowed("this needs the API key: Authorization: Bearer KEY")
