"""The user's own editor, for a text of theirs."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from radchat.chat.files import decode
from radchat.chat.text import typed
from radchat.errors import InvalidInput


def in_editor(text: str, env: Mapping[str, str]) -> str:
    """Text edited with VISUAL or EDITOR in a file of its own, 0600, gone afterwards."""
    editor = env.get("VISUAL") or env.get("EDITOR") or "vi"
    descriptor, name = tempfile.mkstemp(prefix="radchat-", suffix=".md")
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        try:
            code = subprocess.run([*shlex.split(editor), name], check=False).returncode
        except OSError as error:
            raise InvalidInput(f"cannot start the editor {editor!r}: {error.strerror}") from error
        if code:
            raise InvalidInput(f"{editor} ended with {code}: the text is as it was")
        return typed(decode(path.read_bytes(), "the edited text")).rstrip("\n")
    finally:
        path.unlink(missing_ok=True)
