"""Rows from where they are kept: JSONL, JSON or parquet files, or a data set on the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FILES = (".jsonl", ".json", ".parquet")
Fetch = Callable[[str, str], Path]


def read_raw(source: str, split: str, fetch: Fetch | None = None) -> Iterator[Any]:
    """The rows of a source, unchecked; a line of JSONL that can't be read comes as its text.

    Args:
        source: a .jsonl, .json or .parquet file; a directory that holds such a file for the split; or the id
            of a data set, "owner/name".
        split: which split of a directory or data set.
        fetch: (id, split) -> directory with the split's files; default: from the Hugging Face hub.

    Raises:
        ValueError: there is no such source, or a package to read it with is missing.
    """
    path = Path(source)
    if path.suffix in FILES:
        if not path.is_file():
            raise ValueError(f"there is no file {source!r}; expected rows as .jsonl, .json or .parquet")
        return _read(path)
    if not path.is_dir():
        if source.count("/") != 1:
            raise ValueError(f"{source!r} is neither a file nor a data set's id such as 'SWE-bench/SWE-bench_Verified'")
        path = (fetch or fetch_from_hub)(source, split)
    found = sorted(file for file in path.rglob("*") if file.suffix in FILES and _is_of(file, split))
    if not found:
        raise ValueError(f"{source!r} has no split {split!r}: none of its files is named {split}.* or {split}-*")
    return (row for file in found for row in _read(file))


def _is_of(file: Path, split: str) -> bool:
    return file.stem == split or file.stem.startswith(f"{split}-")


def _read(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        return _read_parquet(path)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        rows = json.loads(text)
        return iter(rows if isinstance(rows, list) else rows.values())
    return (_line(line) for line in text.splitlines() if line.strip())


def _line(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line


def _read_parquet(path: Path) -> Iterator[Any]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"{path} needs pyarrow to be read. Try: pip install 'tunix-env-swebench[parquet]'") from error
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=64):
            yield from batch.to_pylist()


def fetch_from_hub(name: str, split: str) -> Path:
    """The directory with a split's files of a data set; from the cache where the hub can't be reached.

    Raises:
        ValueError: huggingface_hub is missing, or there is no such data set here or there.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError as error:
        raise ValueError(
            f"the data set {name!r} needs huggingface_hub. Try: pip install 'tunix-env-swebench[huggingface]'"
        ) from error
    patterns = [f"**{split}{rest}{suffix}" for rest in ("", "-*") for suffix in FILES]
    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"the data set {name!r} could not be had: {reason}. Download it as parquet and give its path"
        ) from error
