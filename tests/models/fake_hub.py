"""A server that speaks as much of the hub's protocol as fetching a model needs."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        server = self.server
        assert isinstance(server, _Server)
        server.asked.append(f"{self.command} {self.path}")
        status, kind, body, more = self._find(server)
        self.send_response(status)
        for name, value in (
            {"Content-Type": kind, "Content-Length": str(len(body))} | more
        ).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _find(self, server: _Server) -> tuple[int, str, bytes, dict[str, str]]:
        path = self.path.partition("?")[0]
        api, resolve = f"/api/models/{server.repo}", f"/{server.repo}/resolve/{COMMIT}/"
        as_json = "application/json"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in server.files]
            info = {"id": server.repo, "sha": COMMIT, "siblings": siblings}
            return 200, as_json, json.dumps(info).encode(), {}
        if path.startswith(f"{api}/tree/"):
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": _oid(data)}
                for name, data in server.files.items()
            ]
            return 200, as_json, json.dumps(tree).encode(), {}
        name = path.removeprefix(resolve)
        if path.startswith(resolve) and name in server.files:
            data = server.files[name]
            more = {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": COMMIT}
            return 200, "application/octet-stream", data, more
        more = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
        return 404, as_json, b'{"error": "Repository not found"}', more

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, repo: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.files, self.asked = repo, files, list[str]()


@contextmanager
def fake_hub(repo: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Its address, and the requests it has seen."""
    server = _Server(repo, files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
