"""A stand-in for the hub of huggingface on 127.0.0.1: what its library asks for, kept in memory.

Repos are made, branched, committed to (small files in the commit, others through LFS), listed and
read; tokens are looked at as the hub does. Only what huggingface_hub and transformers ask for to
push a folder, fetch one and load a model is answered.
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
from urllib.parse import parse_qs, unquote, urlsplit

Files = dict[str, bytes]


@dataclass
class Repo:
    """One repo: its commits' files, and where its branches are."""

    private: bool
    commits: dict[str, Files]
    branches: dict[str, str]
    large: set[str] = field(default_factory=set)

    def files(self, revision: str) -> tuple[str, Files] | None:
        """Return a revision's commit and files."""
        commit = self.branches.get(revision, revision)
        return (commit, self.commits[commit]) if commit in self.commits else None


class Hub:
    """What the stand-in holds, and what it was asked.

    Attributes:
        writer: the token that may write what is of "me"; reader: one that may only read.
        lfs: endings of files that go through LFS.
        asked: each request's method and path, and whether it brought a token.
        failing: path part -> status that is answered in its place.
    """

    writer, reader = "hf_write_me_0123456789", "hf_read_only_9876543210"

    def __init__(self, lfs: tuple[str, ...] = (".safetensors",)) -> None:
        self.lfs = lfs
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, bool]] = []
        self.failing: dict[str, int] = {}
        self.address = ""

    def add(self, name: str, files: Mapping[str, bytes], *, private: bool = False) -> None:
        """Put a repo there, as another user would have done."""
        self.repos[name] = Repo(private, {}, {"main": ""})
        self.commit(name, "main", dict(files))

    def commit(self, name: str, branch: str, files: Files) -> str:
        """Make files what a branch holds; return the commit."""
        repo = self.repos[name]
        digest = hashlib.sha1(repr([sorted(files.items()), repo.branches[branch]]).encode())
        repo.commits[digest.hexdigest()] = files
        repo.branches[branch] = digest.hexdigest()
        return digest.hexdigest()

    def is_large(self, path: str) -> bool:
        """Return whether a file goes through LFS."""
        return path.endswith(self.lfs)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    # ------------------------------------------------------------------ what is sent

    def _send(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        length = headers.get("Content_Length")
        if length is None:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, value: Any, status: int = 200, **headers: str) -> None:
        self._send(status, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def _refuse(self, status: int, code: str = "", message: str = "") -> None:
        # A careless server says what it got.
        said = message or f"refused: {self.headers.get('authorization')}"
        self._json({"error": said}, status, X_Error_Code=code, X_Error_Message=said)

    def _missing(self) -> None:
        # As the hub does it: who brings no token is asked for one.
        self._refuse(404 if self.token else 401, "RepoNotFound", "Repository not found")

    # ------------------------------------------------------------------ what is asked

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = self._chunks()
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        self.token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        self.hub.asked.append((self.command, parts.path, bool(self.token)))
        for place, status in self.hub.failing.items():
            if place in parts.path:
                self._refuse(status)
                return
        if self.token and self.token not in (self.hub.writer, self.hub.reader):
            self._refuse(401, "", "Invalid credentials in Authorization header")
            return
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        if words[:3] == ["api", "repos", "create"]:
            self._create()
        elif words[:2] == ["api", "validate-yaml"]:
            self._json({"errors": [], "warnings": [{"message": "a warning about the card"}]})
        elif words[:2] == ["api", "models"]:
            self._model("/".join(words[2:4]), words[4:])
        elif words[0] == "lfs":
            self._store(words[1])
        elif words[2:] == ["info", "lfs", "objects", "batch"]:
            self._batch()
        elif words[2:3] == ["resolve"] or words[1:2] == ["resolve"]:
            at = words.index("resolve")
            self._resolve("/".join(words[:at]), words[at + 1], "/".join(words[at + 2 :]))
        else:
            self._refuse(404)

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline().strip(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _repo(self, name: str) -> Repo | None:
        repo = self.hub.repos.get(name)
        return None if repo is None or (repo.private and not self.token) else repo

    def _may_write(self, owner: str | None) -> bool:
        if not self.token:
            self._refuse(401)
        elif self.token != self.hub.writer or owner not in (None, "me"):
            self._refuse(403)
        else:
            return True
        return False

    def _create(self) -> None:
        given = json.loads(self.body)
        if not self._may_write(given["organization"]):
            return
        name = f"me/{given['name']}"
        url = f"{self.hub.address}/{name}"
        if name in self.hub.repos:
            self._json({"error": "You already created this model repo", "url": url}, 409)
            return
        private = given.get("visibility") == "private" or bool(given.get("private"))
        self.hub.add(name, {".gitattributes": b"*.safetensors lfs\n"}, private=private)
        self._json({"url": url, "name": name, "id": name})

    def _model(self, name: str, rest: list[str]) -> None:
        repo = self._repo(name)
        if repo is None:
            self._missing()
            return
        verb, revision = (*rest, "", "")[:2]
        if verb in ("preupload", "commit", "branch") and not self._may_write(name.split("/")[0]):
            return
        if verb == "branch":
            if revision in repo.branches:
                self._refuse(409, "", "Reference already exists")
                return
            repo.branches[revision] = repo.branches["main"]
            self._json({})
            return
        found = repo.files(revision or "main")
        if found is None:
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        commit, files = found
        if verb == "preupload":
            listed = [
                {
                    "path": own["path"],
                    "uploadMode": "lfs" if self.hub.is_large(own["path"]) else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for own in json.loads(self.body)["files"]
            ]
            self._json({"files": listed})
        elif verb == "commit":
            self._commit(name, revision, files)
        elif verb == "tree":
            self._json([self._entry(path, own) for path, own in sorted(files.items())])
        else:
            siblings = [{"rfilename": path} for path in sorted(files)]
            about = {"id": name, "modelId": name, "sha": commit, "private": repo.private}
            self._json({**about, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    def _entry(self, path: str, content: bytes) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
        found["oid"] = hashlib.sha1(content).hexdigest()
        if self.hub.is_large(path):
            digest = hashlib.sha256(content).hexdigest()
            found["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
        return found

    def _commit(self, name: str, branch: str, before: Files) -> None:
        files = dict(before)
        for line in self.body.splitlines():
            own = json.loads(line)
            value = own["value"]
            if own["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif own["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif own["key"] == "deletedFile":
                files.pop(value["path"])
        commit = self.hub.commit(name, branch, files)
        address = f"{self.hub.address}/{name}/commit/{commit}"
        self._json({"commitUrl": address, "commitOid": commit, "success": True})

    def _batch(self) -> None:
        objects = [
            {
                **own,
                "actions": {
                    "upload": {"href": f"{self.hub.address}/lfs/{own['oid']}", "header": {}}
                },
            }
            for own in json.loads(self.body)["objects"]
        ]
        self._json({"transfer": "basic", "objects": objects})

    def _store(self, oid: str) -> None:
        if self.command == "GET":
            self._send(200, self.hub.objects[oid])
            return
        assert not self.token, "the storage is another server, which gets no token"
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.hub.objects[oid] = self.body
        self._send(200)

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repo = self._repo(name)
        if repo is None:
            self._missing()
            return
        found = repo.files(revision)
        if found is None:
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        commit, files = found
        if path not in files:
            said = {"X_Error_Code": "EntryNotFound", "X_Repo_Commit": commit}
            self._json({"error": "Entry not found"}, 404, **said)
            return
        content = files[path]
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        large = {}
        if self.hub.is_large(path):
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            large = {"X_Linked_Etag": etag, "X_Linked_Size": str(len(content))}
        self._send(
            200,
            b"" if self.command == "HEAD" else content,
            ETag=etag,
            X_Repo_Commit=commit,
            Content_Length=str(len(content)),
            **large,
        )


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve a hub on a free port of this machine; its address is set."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
