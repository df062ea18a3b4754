"""From a test log to the status of each test: by the official harness's parsers, or our own for pytest."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tunix_core.rewards import GraderError
from tunix_env_swebench.rows import Row

OWN = "tunix/pytest"
TIMEOUT_S = 120.0
NEWER = "pip install --no-deps 'swebench>=5'"
OLDER = "pip install --no-deps 'swebench<5' unidiff"
# a test's id, whose brackets may hold " - ", and then a message after " - "
_SUMMARY = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS|SKIPPED) (\S.*?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
_ASK = (sys.executable, "-m", "tunix_env_swebench.harness")


def parse_pytest(log: str) -> dict[str, str]:
    """The status of each test in the short summary of `pytest -rA`; a test that is named twice has the worse.

    An unexpected pass counts as the failure that a strict one is.
    """
    found: dict[str, str] = {}
    for status, name in _SUMMARY.findall(log):
        if status == "SKIPPED" and name.startswith("["):  # "[2] file.py:3: reason" counts places, names no test
            continue
        found[name] = worse(found.get(name), "FAILED" if status == "XPASS" else status)
    return found


_ORDER = ("PASSED", "XFAIL", "SKIPPED", "FAILED", "ERROR")


def worse(one: str | None, other: str) -> str:
    """The worse of two statuses."""
    return other if one is None else max(one, other, key=_ORDER.index)


async def statuses_of(row: Row, log: str) -> dict[str, str]:
    """The status of each test, by the row's parser.

    Raises:
        GraderError: the parser's process was lost or failed; nothing is known of the tests.
    """
    if row.log_parser == OWN:
        return parse_pytest(log)
    about = {"instance_id": row.instance_id, "repo": row.repo, "version": row.version}
    return await _ask({"ask": "parse", "parser": row.log_parser, "log": log, "row": about})


async def _ask(question: Mapping[str, Any]) -> Any:
    process = await asyncio.create_subprocess_exec(
        *_ASK, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, said = await process.communicate(json.dumps(question).encode())
    except TimeoutError:
        raise GraderError(f"the harness's parser took longer than {TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        if not process.returncode:
            return json.loads(out)
    except ValueError as error:
        raise GraderError(f"the harness's parser gave no JSON: {error}") from error
    raise GraderError(f"the harness's parser failed: {_last(said)}")


def _last(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def completed(rows: Sequence[Row]) -> list[Row | str]:
    """Each row with what the installed harness knows of it, or why it can't be graded: "field: problem".

    Rows of the older form get their `eval_script` and `log_parser` from the harness up to 4.x.
    """
    version = harness_version()
    older = [row for row in rows if not row.eval_script]
    described = dict(zip((row.instance_id for row in older), _described(older, version), strict=True))
    unknown = _unknown({row.log_parser for row in rows} - {"", OWN}) if version else []
    return [_complete(row, version, described.get(row.instance_id), unknown) for row in rows]


def harness_version() -> int:
    """The installed harness's major version; 0 without one."""
    try:
        return int(importlib.metadata.version("swebench").partition(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


def _complete(row: Row, version: int, known: Mapping[str, str] | None, unknown: Sequence[str]) -> Row | str:
    if row.log_parser == OWN:
        return row
    if not version:
        return f"log_parser: the official harness is not installed. Try: {NEWER if row.eval_script else OLDER}"
    if row.log_parser in unknown:
        return f"log_parser: swebench {version} has no parser {row.log_parser!r}"
    if row.eval_script:
        return row
    if known is None:
        return f"eval_script: without it a row is of the older form, which swebench {version} can't run. Try: {OLDER}"
    return f"version: {known['problem']}" if "problem" in known else row.model_copy(update=dict(known))


def _described(rows: Sequence[Row], version: int) -> Sequence[Mapping[str, str] | None]:
    if not rows or version not in (3, 4):
        return [None] * len(rows)
    return _ask_now({"ask": "describe", "rows": [row.to_dict() for row in rows]})


def _unknown(parsers: set[str]) -> Sequence[str]:
    return _ask_now({"ask": "unknown", "parsers": sorted(parsers)}) if parsers else []


def _ask_now(question: Mapping[str, Any]) -> Any:
    done = subprocess.run(
        _ASK, input=json.dumps(question).encode(), capture_output=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        raise ValueError(f"the official harness can't be asked: {_last(done.stderr)}. Try: {NEWER}, or {OLDER}")
    return json.loads(done.stdout)
