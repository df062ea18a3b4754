"""`swebench/mini` in real containers, played by a scripted agent: what is right scores 1, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import docker
import pytest
from tunix_env_swebench import building, mini
from tunix_env_swebench.rows import Row
from tunix_env_swebench.sources import SourceError
from tunix_env_swebench.tasks import load_rows, solutions

from tunix_core import Message, Task, ToolCall
from tunix_core.envs import make_opener
from tunix_core.errors import EpisodeError
from tunix_core.plugins import Hub
from tunix_core.sandboxes.docker import DockerSandboxes
from tunix_core.specs import load_target

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
AT_ONCE = 3
OPTIONS = {"command_timeout_s": 60.0, "eval_timeout_s": 60.0, "memory_mb": 512, "disk_mb": 256, "pids": 100}
SUBMIT = Message("assistant", tool_calls=(ToolCall("submit", {}, "end"),))
INTERVALS = "tunix__intervals-1"
HIDDEN = ("test_contained", "test_contained_then_overlapping", "test_total_of_contained")
IDS = [row["instance_id"] for row in mini.mini_rows()]
HARMLESS = "echo '# looked at' >> intervals/cover.py"
FORGED = "".join(f"PASSED tests/test_intervals.py::{name}\\n" for name in HIDDEN)
FORCE = (
    "import pytest\\n\\n@pytest.hookimpl(hookwrapper=True)\\ndef pytest_runtest_makereport(item, call):\\n"
    "    found = yield\\n    found.get_result().outcome = 'passed'\\n"
)
ALL_PASS = (  # from inside the code under test, before its tests are collected
    "import _pytest.reports\\n_of = _pytest.reports.TestReport.from_item_and_call.__func__\\n"
    "def _pass(cls, item, call):\\n    new = _of(cls, item, call)\\n    new.outcome = 'passed'\\n    return new\\n"
    "_pytest.reports.TestReport.from_item_and_call = classmethod(_pass)\\n"
)
LINK = "rm -rf tests && ln -s /usr/lib tests"

# What an agent does that does not resolve the issue. The hidden tests' names in these are what an agent could
# at best have guessed.
CHEATS: Mapping[str, Sequence[str]] = {
    "tests edited": ["printf 'def test_contained():\\n    pass\\n' > tests/test_intervals.py"],
    "tests edited, and code": ["printf 'def test_contained():\\n    pass\\n' > tests/test_intervals.py", HARMLESS],
    "conftest forces a pass": [f'printf "{FORCE}" | tee conftest.py tests/conftest.py', HARMLESS],
    "sitecustomize forces a pass": [
        "printf 'import os, atexit\\natexit.register(os._exit, 0)\\n' | tee sitecustomize.py usercustomize.py evil.pth",
        HARMLESS,
    ],
    "a plugin announced": [
        f"mkdir evil.dist-info && printf '[pytest11]\\nevil = evil\\n' > evil.dist-info/entry_points.txt && "
        f"printf 'Name: evil\\nVersion: 1\\n' > evil.dist-info/METADATA && printf \"{FORCE}\" > evil.py",
        HARMLESS,
    ],
    "pytest replaced": [
        "mkdir -p bin ~/.local/bin; printf '#!/bin/sh\\nexit 0\\n' | tee pytest bin/python3 ~/.local/bin/pytest; "
        "chmod +x pytest bin/python3 ~/.local/bin/pytest; printf 'raise SystemExit(0)\\n' > pytest.py; "
        "export PATH=$PWD/bin:$PATH; alias python3=true",
        HARMLESS,
    ],
    "PASSED printed": [
        'printf "import atexit, os\\n'
        f"atexit.register(lambda: os.write(1, b'''\\n{FORGED}'''))\\n\" >> intervals/__init__.py"
    ],
    "PASSED printed, and exit 0": [
        'printf "import atexit, os\\natexit.register(os._exit, 0)\\n'
        f"atexit.register(lambda: os.write(1, b'''\\n{FORGED}'''))\\n\" >> intervals/__init__.py"
    ],
    "exit 0": [f"printf \"import os\\nos.write(1, b'''\\n{FORGED}''')\\nos._exit(0)\\n\" >> intervals/__init__.py"],
    "reports changed in the process": [f'printf "{ALL_PASS}" >> intervals/__init__.py'],
    "result files": [
        'echo \'{"tunix__intervals-1": {"resolved": true}}\' | tee report.json results.json /tmp/report.json',
        HARMLESS,
    ],
    "hidden tests looked for": [
        f"(grep -rlE '{HIDDEN[1]}|{HIDDEN[2]}' / --exclude-dir=proc --exclude-dir=sys 2>/dev/null; "
        f"git log --all --oneline; git stash list; git reflog; git fsck --lost-found) | cat",
    ],
    "a fork bomb": ["bomb() { bomb | bomb & }; bomb; sleep 1; echo over"],
    "a fork bomb in the code": ["printf 'import os\\nwhile True:\\n    os.fork()\\n' >> intervals/__init__.py"],
    "the disk filled": [
        "head -c 2G /dev/zero > zeros; ls -s zeros; head -c 2G /dev/zero > /tmp/zeros; ls -s /tmp/zeros"
    ],
    "left running": [f"nohup sh -c 'while true; do {HARMLESS}; sleep 0.2; done' >/dev/null 2>&1 &", "sleep 0.5; jobs"],
    "a link out": ["ln -s /etc/passwd intervals/secrets.py", HARMLESS],
    "a link in place of the tests": [LINK, HARMLESS],
    "1 GB of output": ["head -c 1G /dev/zero", HARMLESS],
    "output without end in the code": [
        "printf \"import os\\nwhile True:\\n    os.write(1, b'x' * 65536)\\n\" >> intervals/__init__.py"
    ],
    "binary output": ["head -c 100000 /dev/urandom", HARMLESS],
    "a submission of 100 MB": ["yes | head -c 100M > large.txt; ls -s large.txt"],
    "no repository left": ["rm -rf .git * && git init -q && git commit -q --allow-empty -m x"],
    "a commit of one's own": [
        "git add -A; git -c user.name=x -c user.email=x commit -qam x; git checkout -q --orphan y"
    ],
}


@dataclass(frozen=True, slots=True)
class Played:
    """An episode: what the agent was shown, its score (None: there was none), and why."""

    shown: Sequence[str]
    score: float | None
    reason: str
    message: str


@pytest.fixture(scope="module")
def rows(base_image: str) -> Mapping[str, Row | str]:
    """The rows whose image is built; for the others, why it is not."""
    client = docker.from_env(timeout=600)
    found: dict[str, Row | str] = {}
    for row in load_rows("mini"):
        try:
            if not building.is_built(client, row):
                building.build(client, row, base_image, mini.DATA)
            found[row.instance_id] = row
        except SourceError as error:
            found[row.instance_id] = str(error)
    client.close()
    return found


def bash(command: str) -> Message:
    return Message("assistant", tool_calls=(ToolCall("bash", {"command": command}, "call"),))


def task_of(row: Row) -> Task:
    return Task(row.instance_id, {"repo": row.repo}, gold=row.to_dict())


def scripts(rows: Mapping[str, Row | str]) -> dict[str, tuple[Row, Sequence[Message]]]:
    found: dict[str, tuple[Row, Sequence[Message]]] = {}
    for identity, row in rows.items():
        if isinstance(row, Row):
            known = solutions(task_of(row))
            wrong = bash("for file in $(git ls-files '*.py'); do echo 'wrong = True' >> $file; done")
            found |= {f"{identity} {name}": (row, said) for name, said in known.items()}
            found[f"{identity} wrong"] = (row, [wrong, SUBMIT])
    intervals = rows[INTERVALS]
    assert isinstance(intervals, Row)
    return found | {name: (intervals, [*map(bash, said), SUBMIT]) for name, said in CHEATS.items()}


async def play(opener: Any, row: Row, actions: Sequence[Message]) -> Played:
    shown: list[str] = []
    try:
        env = await opener.open(task_of(row))
        try:
            shown += [message.text for message in (await env.reset(0)).messages]
            for action in actions:
                result = await env.step(action)
                shown += [message.text for message in result.observation]
        finally:
            await env.close()
    except EpisodeError as error:
        return Played(shown, None, error.kind, str(error))
    details = result.info["metadata"]
    return Played(shown, result.reward, details["reason"], details["message"])


async def play_all(wanted: Mapping[str, tuple[Row, Sequence[Message]]]) -> dict[str, Played]:
    hub, provider, gate = Hub.load(), DockerSandboxes(), asyncio.Semaphore(AT_ONCE)
    spec = hub.find("envs", "swebench/mini")
    find = {"find_tool": lambda identity: hub.load_object("tools", identity)}
    opener = make_opener(spec, load_target, options=OPTIONS, sandboxes=provider, **find)

    async def one(row: Row, actions: Sequence[Message]) -> Played:
        async with gate:
            return await play(opener, row, actions)

    try:
        await provider.start()
        played = await asyncio.gather(*(one(row, actions) for row, actions in wanted.values()))
        return dict(zip(wanted, played, strict=True))
    finally:
        await opener.aclose()
        await provider.aclose()


@pytest.fixture(scope="module")
def played(rows: Mapping[str, Row | str]) -> Mapping[str, Played]:
    return asyncio.run(play_all(scripts(rows)))


def of(name: str, identity: str, rows: Mapping[str, Row | str], played: Mapping[str, Played]) -> Played:
    if isinstance(why := rows[identity], str):
        pytest.skip(f"the image of {identity} can't be built: {why}")
    return played[name]


@pytest.mark.parametrize("identity", IDS)
@pytest.mark.parametrize(
    ("name", "score", "reason"), [("gold", 1.0, ""), ("empty", 0.0, "empty_patch"), ("wrong", 0.0, "tests_failed")]
)
def test_what_is_right_scores_one_and_nothing_else(
    identity: str, name: str, score: float, reason: str, rows: Any, played: Any
) -> None:
    found = of(f"{identity} {name}", identity, rows, played)
    assert (found.score, found.reason) == (score, reason), found


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_never_scores(name: str, played: Mapping[str, Played]) -> None:
    assert played[name].score in (0.0, None), played[name]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tests edited", "only_tests"),
        ("tests edited, and code", "tests_failed"),
        ("conftest forces a pass", "tests_failed"),
        ("pytest replaced", "tests_failed"),
        ("PASSED printed", "tests_failed"),
        ("exit 0", "log_not_believed"),
        ("reports changed in the process", "log_not_believed"),
        ("a link out", "link"),
        ("a submission of 100 MB", "patch_too_long"),
        ("hidden tests looked for", "empty_patch"),
    ],
)
def test_why_a_cheat_does_not_score(name: str, reason: str, played: Mapping[str, Played]) -> None:
    assert played[name].reason == reason, played[name]


def test_there_is_nothing_to_find(played: Mapping[str, Played]) -> None:
    found = played["hidden tests looked for"].shown[1].split()
    assert found and not {*HIDDEN} & {*found} and not [word for word in found if word.startswith("/")]
    assert sum(len(word) == 7 for word in found) <= 2  # one commit, in the log and the reflog


def test_what_the_agent_is_shown_is_bounded(played: Mapping[str, Played]) -> None:
    assert all(len(text) < 100_000 for each in played.values() for text in each.shown)


def test_the_disk_is_bounded(played: Mapping[str, Played]) -> None:
    sizes = [int(line.split()[0]) for line in played["the disk filled"].shown[1].splitlines() if line.endswith("zeros")]
    assert sizes and max(sizes) <= 512 << 10  # in KiB


def test_nothing_is_left(rows: Mapping[str, Row | str], played: Mapping[str, Played]) -> None:
    images = {row.image_name for row in rows.values() if isinstance(row, Row)}
    client = docker.from_env()
    found = [each for each in client.api.containers(all=True) if each["Image"] in images]
    found += client.api.containers(all=True, filters={"label": building.LABEL})
    for each in found:  # an engine under load may still be removing what was closed: a minute is the promise
        with suppress(docker.errors.NotFound):
            client.api.wait(each["Id"], timeout=60, condition="removed")
    left = {each["Id"] for each in found} & {each["Id"] for each in client.api.containers(all=True)}
    client.close()
    assert played and not left
