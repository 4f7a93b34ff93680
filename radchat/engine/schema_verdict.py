"""Whether a JSON value meets a schema: an independent validator, in a process of its own.

A regular expression may keep Python busy for ever, without letting another thread on, and so may
references that double: here that costs one answer its verdict, and the daemon nothing. What the
schema does not hold itself is not fetched.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from radchat.engine.schema_checks import without_old_forms
from radchat.engine.schema_parts import mapped

LIMIT_S = 5.0
# of its own, so that it needs nothing of this package, wherever that was imported from
_CHILD = """
import json, sys
import jsonschema, referencing
schema, text = json.load(sys.stdin)
try:
    validator = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
    error = jsonschema.exceptions.best_match(validator.iter_errors(json.loads(text)))
    found = error and (".".join(map(str, error.absolute_path)) or "the answer", error.message)
except Exception as error:
    found = "the answer can't be checked", str(error) or type(error).__name__
json.dump(found and ": ".join(found), sys.stdout)
"""


def invalid(text: str, schema: Mapping[str, Any], *, limit_s: float = LIMIT_S) -> str:
    """Why the JSON value of a text does not meet a schema; empty where it does."""
    asked = json.dumps([mapped(schema, without_old_forms), text])
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD],
            input=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=limit_s,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return f"the answer can't be checked: that takes more than {limit_s:g} s"
    except (OSError, subprocess.CalledProcessError):
        return "the answer can't be checked: the process for it failed"
    return str(json.loads(done.stdout) or "")
