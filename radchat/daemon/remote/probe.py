"""What is behind a URL: which make of server, and what it serves.

    python -P -m radchat.daemon.remote.probe URL [MODEL]

As a child of `radchat models pull URL`, so that the terminal side needs no HTTP client. stdout: one
JSON line, ``{"result"}`` or ``{"error"}``. The key, where one is needed, is in RADCHAT_ENGINE_KEY.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from radchat.daemon.remote.dialect import Dialect, Served
from radchat.daemon.remote.llamacpp import LlamaCpp
from radchat.daemon.remote.openai import OpenAI
from radchat.daemon.remote.sglang import Sglang
from radchat.daemon.remote.vllm import Vllm
from radchat.errors import InvalidInput, NotFound, RadchatError, Unreachable
from radchat.parent import end_with_parent, say_to_parent

if TYPE_CHECKING:
    import httpx2

TIMEOUT_S = 10.0
DIALECTS: Mapping[str, Dialect] = {
    "sglang": Sglang(),
    "vllm": Vllm(),
    "radchat": Vllm("radchat", "radchat"),
    "llamacpp": LlamaCpp(),
    "openai": OpenAI(),
}


def dialect_of(name: str) -> Dialect:
    """Raises NotFound for one that this version does not speak."""
    found = DIALECTS.get(name)
    if found is None:
        raise NotFound(f"no dialect {name!r} (there are: {', '.join(DIALECTS)})")
    return found


def base_of(url: str) -> str:
    """Without path: what people copy ends with /v1 as often as not. Raises InvalidInput."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"--engine {url!r}: want a URL like http://host:30000", field="engine")
    if parts.username or parts.password:
        raise InvalidInput("--engine: keys go into RADCHAT_ENGINE_KEY, not into the URL")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def probe(url: str, model: str | None = None, key: str | None = None) -> Served:
    """Raises Unreachable; NotFound where it does not serve ``model``, or several without one."""
    import httpx2

    base = base_of(url)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx2.Client(base_url=base, headers=headers, timeout=TIMEOUT_S) as client:
        try:
            info = _get(client, "/get_model_info") or _get(client, "/model_info")
            if info and info.get("model_path"):
                return _sglang(client, base, info)
            props = _get(client, "/props")
            if props and "default_generation_settings" in props:
                return _llamacpp(client, base, props, model)
            return _openai(client, base, model)
        except httpx2.HTTPError as error:
            raise Unreachable(
                f"nobody answers at {base}: {error}; start the server, or see the URL"
            ) from error


def _get(client: httpx2.Client, path: str) -> dict[str, Any] | None:
    answer = client.get(path)
    if answer.status_code in (401, 403):
        raise RadchatError(
            f"{client.base_url} wants a key: set RADCHAT_ENGINE_KEY, or engine_key in config.toml"
        )
    try:
        body = answer.json() if answer.status_code == 200 else None
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _sglang(client: httpx2.Client, base: str, info: Mapping[str, Any]) -> Served:
    about = _get(client, "/get_server_info") or {}
    longest = about.get("context_length") or info.get("max_context_length")
    name = str(about.get("served_model_name") or info["model_path"])
    root = str(info.get("tokenizer_path") or info["model_path"])
    return Served("sglang", base, name, _whole(longest), root)


def _llamacpp(
    client: httpx2.Client, base: str, props: Mapping[str, Any], model: str | None
) -> Served:
    longest = props["default_generation_settings"].get("n_ctx")
    told = _models(client)
    name = model or (told[0]["id"] if told else None) or props.get("model_path") or "model"
    return Served("llamacpp", base, str(name), _whole(longest), props.get("model_path"))


def _openai(client: httpx2.Client, base: str, model: str | None) -> Served:
    told = _models(client)
    if not told:
        raise NotFound(f"{base} lists no models at /v1/models: is it an OpenAI-compatible server?")
    by_id = {str(each["id"]): each for each in told}
    if model is not None and model in by_id:
        one = by_id[model]
    elif len(by_id) == 1:
        (one,) = by_id.values()
    else:
        loaded = [each for each in told if each.get("loaded")]
        if model is not None or len(loaded) != 1:
            names = ", ".join(list(by_id)[:10])
            raise NotFound(f"{base} serves several models, name one with -m: {names}")
        (one,) = loaded
    owner = str(one.get("owned_by") or "")
    dialect = owner if owner in ("radchat", "vllm") else "openai"
    root = one.get("root")
    return Served(dialect, base, str(one["id"]), _whole(one.get("max_model_len")), root)


def _models(client: httpx2.Client) -> list[dict[str, Any]]:
    body = _get(client, "/v1/models") or {}
    data = body.get("data")
    return (
        [e for e in data if isinstance(e, dict) and e.get("id")] if isinstance(data, list) else []
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def main() -> int:
    say = say_to_parent()
    try:
        model = sys.argv[2] if len(sys.argv) > 2 else None
        found = probe(sys.argv[1], model, os.environ.get("RADCHAT_ENGINE_KEY"))
        say({"result": found.to_json()})
    except RadchatError as error:
        say({"error": error.to_json()})
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    return 0


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
