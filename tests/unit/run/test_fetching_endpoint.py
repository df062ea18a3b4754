"""`tunix model fetch OWNER/NAME` through huggingface_hub, from an endpoint on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("huggingface_hub")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "modeling.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
}


class Endpoint(BaseHTTPRequestHandler):
    """Answers as the hub does, of one repository."""

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/zoo/small/tree/"):
            files = [{"type": "file", "path": name, "size": len(body), "oid": name} for name, body in FILES.items()]
            self._answer(json.dumps(files).encode())
        elif self.path.startswith("/api/models/zoo/small"):
            siblings = [{"rfilename": name} for name in FILES]
            self._answer(json.dumps({"id": "zoo/small", "sha": COMMIT, "siblings": siblings}).encode())
        elif self.path.startswith("/zoo/small/resolve/") and (name := self.path.rpartition("/")[2]) in FILES:
            self._answer(FILES[name])
        else:
            self._answer(b"{}", 404)

    do_HEAD = do_GET

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), "ETag": f'"{sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
        if status == 404:
            headers["X-Error-Code"] = "RepoNotFound"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(endpoint: str, name: str, cache: Path) -> subprocess.CompletedProcess[str]:
    told = {"HF_ENDPOINT": endpoint, "TUNIX_MODELS": str(cache), "HF_HOME": str(cache / "home"), "NO_PROXY": "*"}
    command = [sys.executable, "-m", "tunix_core.cli", "model", "fetch", name]
    return subprocess.run(command, env=os.environ | told, capture_output=True, text=True, timeout=120)


def test_what_a_model_needs_is_fetched_and_no_more(endpoint: str, tmp_path: Path) -> None:
    done = fetch(endpoint, "zoo/small", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / "zoo--small")
    found = {file.name: file.read_bytes() for file in (tmp_path / "zoo--small").iterdir()}
    assert found == {name: FILES[name] for name in ("config.json", "model.safetensors", "tokenizer.json")}


def test_a_repository_that_is_not_there_is_told_in_one_line(endpoint: str, tmp_path: Path) -> None:
    done = fetch(endpoint, "zoo/large", tmp_path)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "'zoo/large' can't be fetched from Hugging Face" in line and "Traceback" not in done.stderr
    assert not (tmp_path / "zoo--large").exists()
