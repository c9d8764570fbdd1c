"""The part of the Hugging Face hub's HTTP API that a push uses: it keeps what arrives, and checks the token.

Files below 200,000 bytes come inside the commit, larger ones by the protocol of Git LFS, as on the hub.
"""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

TOKEN = "hf_of_the_tests_0123456789"
LARGE_BYTES = 200_000


class FakeHub:
    def __init__(self):
        self.repositories = {}
        self.private = {}
        self.commits = []
        self.uploads = {}
        self.refused = None
        self.address = ""

    def answer(self, method, path, body, token):
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if self.refused is not None:
            return self.refused
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.startswith("/upload/"):
            oid = path.removeprefix("/upload/")
            assert hashlib.sha256(body).hexdigest() == oid
            self.uploads[oid] = body
            return 200, {}
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**item, "actions": {"upload": {"href": f"{self.address}/upload/{item['oid']}"}}}
                for item in json.loads(body)["objects"]
            ]
            return 200, {"transfer": "basic", "objects": objects}
        parts = path.split("/")  # "", api, KINDs, ORG, NAME, what, revision
        repository = f"{parts[2]}/{parts[3]}/{parts[4]}" if len(parts) > 4 else None
        if repository not in self.repositories:
            return 404, {"error": "Repository not found"}
        if "/tree/" in path:
            files = self.repositories[repository]
            return 200, [{"type": "file", "path": name, "size": len(files[name]), "oid": "0" * 40} for name in files]
        if "/preupload/" in path:
            return 200, {"files": [self._mode_of(repository, item) for item in json.loads(body)["files"]]}
        if "/commit/" in path:
            return self._commit(repository, [json.loads(line) for line in body.splitlines()])
        return 200, {"id": repository, "sha": "0" * 40, "siblings": []}

    def _create(self, asked):
        repository = f"{asked['type']}s/{asked['organization']}/{asked['name']}"
        url = f"{self.address}/{repository.removeprefix('models/')}"
        if repository in self.repositories:
            return 409, {"error": "You already created this repo", "url": url}
        self.repositories[repository] = {}
        self.private[repository] = asked.get("visibility") == "private"
        return 200, {"url": url}

    def _mode_of(self, repository, item):
        mode = "lfs" if item["size"] >= LARGE_BYTES else "regular"
        known = self.repositories[repository].get(item["path"])
        oid = None
        if known is not None:
            blob = b"blob %d\0" % len(known) + known
            oid = hashlib.sha1(blob).hexdigest() if mode == "regular" else hashlib.sha256(known).hexdigest()
        return {"path": item["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}

    def _commit(self, repository, lines):
        files = self.repositories[repository]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.uploads[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            elif line["key"] != "header":
                raise AssertionError(f"a push does nothing of this kind: {line['key']}")
        self.commits.append((repository, [line["value"].get("path") for line in lines[1:]]))
        return 200, {"commitUrl": f"{self.address}/{repository}/commit/1", "commitOid": "1" * 40}


@contextmanager
def serve_hub():
    """Serves a hub on this machine for as long as the block lasts."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self):
            size = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(size)
            path = urlsplit(self.path).path
            # An address for an upload carries its own permission.
            token = self.headers.get("authorization") or (f"Bearer {TOKEN}" if path.startswith("/upload/") else None)
            status, record = hub.answer(self.command, path, body, token)
            data = json.dumps(record).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_HEAD = _serve

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
