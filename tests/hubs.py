"""A stub of the Hugging Face hub on loopback: as much of its HTTP as fetching and publishing use.

Its answers follow what the hub documents (https://huggingface.co/docs/hub/api and the LFS specification): files with
ETag and commit, large ones by their SHA-256, ranges, error codes in `X-Error-Code`; uploads by preupload, LFS, commit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
TOKEN = "hf_of_the_test"


@dataclass
class Repo:
    """A repository: its files; `served` are sent instead of them (damaged on the way), `gated` shows its list
    only; without `ranges` every file comes from its start."""

    files: dict[str, bytes] = field(default_factory=dict)
    large: tuple[str, ...] = (".safetensors",)
    served: dict[str, list[bytes]] = field(default_factory=dict)
    gated: bool = False
    ranges: bool = True
    private: bool = False
    branches: set[str] = field(default_factory=lambda: {"main"})

    def is_large(self, path: str) -> bool:
        """Whether a file is kept by LFS."""
        return path.endswith(self.large)


def git_sha1(data: bytes) -> str:
    """As git names a file's content."""
    return hashlib.sha1(b"blob " + str(len(data)).encode() + b"\0" + data).hexdigest()


class Hub:
    """A running stub. `repos` by `models/owner/name` or `datasets/owner/name`; `seen`: method, path, range.

    A GET of a path in `stall` sends that many bytes, sets `stalled`, and then nothing more until the end.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.seen: list[tuple[str, str, str]] = []
        self.stall: dict[str, int] = {}
        self.stalled = threading.Event()
        self.broken: dict[str, int] = {}
        """The first GET of such a path ends after so many bytes."""
        self.down = 0
        """A status that everything is answered with, if it is not 0."""
        self.ended = threading.Event()
        self.uploads: dict[str, bytes] = {}
        self.commits: list[dict[str, Any]] = []
        self._http = _Server(self)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def fetched(self) -> list[str]:
        """Paths of files whose content was asked for, in the repository."""
        return [path.split("/resolve/")[1].partition("/")[2] for verb, path, _ in self.seen if _is_get(verb, path)]


def _is_get(verb: str, path: str) -> bool:
    return verb == "GET" and "/resolve/" in path


@contextmanager
def hub(**repos: Repo) -> Iterator[Hub]:
    """Run a stub; repositories are named by keywords, `models__owner__name`."""
    made = Hub()
    made.repos = {name.replace("__", "/"): repo for name, repo in repos.items()}
    thread = threading.Thread(target=made._http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        made.ended.set()
        made._http.shutdown()
        made._http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    @property
    def stub(self) -> Hub:
        assert isinstance(self.server, _Server)
        return self.server.stub

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.stub.seen.append((self.command, path, self.headers.get("Range", "")))
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if self.stub.down:
            return self.send(self.stub.down, b"down")
        if self.command in ("GET", "HEAD") and "/resolve/" in path:
            return self.file(path)
        status, given, error = _api(self.stub, self.command, path, body, allowed)
        return self.send(status, json.dumps(given).encode(), {"X-Error-Code": error} if error else {})

    def file(self, path: str) -> None:
        name, _, rest = path.strip("/").partition("/resolve/")
        name = name if name.startswith("datasets/") else f"models/{name}"
        commit, _, place = rest.partition("/")
        repo = self.stub.repos.get(name)
        if repo is not None and repo.gated:
            return self.send(403, b"", {"X-Error-Code": "GatedRepo"})
        if repo is None or place not in repo.files:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        data = repo.files[place]
        etag = hashlib.sha256(data).hexdigest() if repo.is_large(place) else git_sha1(data)
        head = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if self.command == "GET":
            data = repo.served[place].pop(0) if repo.served.get(place) else data
            if place in self.stub.stall:
                return self.stop_at(self.stub.stall[place], data, head)
            if place in self.stub.broken:
                return self.send(200, data, head, data[: self.stub.broken.pop(place)])
            if "Range" in self.headers and repo.ranges:
                begin = int(self.headers["Range"][6:].partition("-")[0])
                head["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
                return self.send(206, data[begin:], head)
        return self.send(200, data, head)

    def stop_at(self, place: int, data: bytes, head: Mapping[str, str]) -> None:
        self.send(200, data, head, data[:place])
        self.wfile.flush()
        self.stub.stalled.set()
        self.stub.ended.wait()

    def send(
        self, status: int, data: bytes, headers: Mapping[str, str] | None = None, part: bytes | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if part is None else part)

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, stub: Hub) -> None:
        self.stub = stub
        super().__init__(("127.0.0.1", 0), _Handler)


def _api(stub: Hub, verb: str, path: str, body: bytes, allowed: bool) -> tuple[int, Any, str]:
    """Status, body, and error code of a request that is none for a file's content."""
    parts = path.strip("/").split("/")
    if parts[0] == "lfs" and verb == "PUT":
        stub.uploads[parts[1]] = body
        return 200, {}, ""
    if path.endswith(".git/info/lfs/objects/batch"):
        objects = [
            {**entry, "actions": {"upload": {"href": f"{stub.url}/lfs/{entry['oid']}"}}}
            for entry in json.loads(body)["objects"]
        ]
        return 200, {"transfer": "basic", "objects": objects}, ""
    if parts[:3] == ["api", "repos", "create"]:
        return _create(stub, json.loads(body), allowed)
    if parts[:2] == ["api", "validate-yaml"]:
        return 200, {"warnings": [], "errors": []}, ""
    name, action = "/".join(parts[1:4]), parts[4] if len(parts) > 4 else "info"
    repo = stub.repos.get(name)
    if repo is None or (repo.private and not allowed):
        return 401, {"error": "Repository not found"}, "RepoNotFound"
    if verb == "POST":
        return _write(stub, name, action, parts[5:], body) if allowed else (401, {"error": "Invalid token"}, "")
    revision = parts[5] if len(parts) > 5 else "main"
    if revision not in repo.branches | {COMMIT}:
        return 404, {"error": "Invalid rev id"}, "RevisionNotFound"
    if action == "tree":
        return _tree(repo, "/".join(parts[6:]))
    siblings = [{"rfilename": path} for path in repo.files]
    return 200, {"id": name.partition("/")[2], "sha": COMMIT, "private": repo.private, "siblings": siblings}, ""


def _tree(repo: Repo, folder: str) -> tuple[int, Any, str]:
    inside = [path for path in repo.files if not folder or path.startswith(f"{folder}/")]
    if not inside:
        return 404, {"error": f"{folder} does not exist"}, "EntryNotFound"
    entries: list[dict[str, Any]] = []
    for path in inside:
        data = repo.files[path]
        entry = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
        if repo.is_large(path):
            lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            entry |= {"oid": git_sha1(b"pointer"), "lfs": lfs}
        entries.append(entry)
    return 200, entries, ""


def _create(stub: Hub, wanted: dict[str, Any], allowed: bool) -> tuple[int, Any, str]:
    if not allowed:
        return 401, {"error": "Invalid user token"}, ""
    name = f"models/{wanted['organization']}/{wanted['name']}"
    if name in stub.repos:
        return 409, {"error": "You already created this model repo", "url": f"{stub.url}/{name[7:]}"}, ""
    stub.repos[name] = Repo(private=wanted.get("visibility") == "private")
    return 200, {"url": f"{stub.url}/{name.partition('/')[2]}"}, ""


def _write(stub: Hub, name: str, action: str, rest: list[str], body: bytes) -> tuple[int, Any, str]:
    repo = stub.repos[name]
    if action == "branch":
        repo.branches.add(rest[0])
        return 200, {}, ""
    if action == "preupload":
        modes = [
            {"path": each["path"], "uploadMode": "lfs" if repo.is_large(each["path"]) else "regular",
             "shouldIgnore": False, "oid": None}
            for each in json.loads(body)["files"]
        ]  # fmt: skip
        return 200, {"files": modes}, ""
    lines = [json.loads(line) for line in body.splitlines()]
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            repo.files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            repo.files[value["path"]] = stub.uploads[value["oid"]]
    header = next(line["value"] for line in lines if line["key"] == "header")
    stub.commits.append({"branch": rest[0], **header})
    return 200, {"success": True, "commitOid": COMMIT, "commitUrl": f"{stub.url}/{name[7:]}/commit/{COMMIT}"}, ""
