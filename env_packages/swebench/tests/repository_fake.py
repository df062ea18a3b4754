"""A container with a repository, as far as grading looks at one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tunix_env_swebench.patching import CLEAN, REMOVE, RESOLVE, TREE, WAYS
from tunix_env_swebench.repository import BASE, ONE_COMMIT, TAKE_DIFF

from tunix_core.sandboxes import ExecResult
from tunix_core.testing.fake_sandboxes import FakeSandboxes

CHANGED = ":100644 100644 1 2 M\0it.py\0"


@dataclass
class Repository:
    """Answers commands in order.

    Attributes:
        diff: what the agent changed.
        works: the first of the ways to apply a patch that works; len(WAYS) is none.
        changes: what `git diff-tree` lists after it.
        log: what the tests print; "MARK" becomes the line after which they begin, "NAME" their drawn name.
        exit_code: theirs; None is a timeout.
    """

    diff: ExecResult = field(default_factory=lambda: ExecResult(0, b""))
    works: int = 0
    changes: str = CHANGED
    links: bytes = b""
    log: str = "MARK\nPASSED tests/test_it.py::test_a\nPASSED tests/test_it.py::test_b\n" + (
        "PASSED tests/test_it.py::test_c\nFAILED tests/test_NAME.py::test_NAME - must\n"
    )
    exit_code: int | None = 1
    name: str = "drawn"
    done: list[str] = field(default_factory=list)
    given: dict[str, bytes] = field(default_factory=dict)

    def answer(self, sandbox: Any, call: Any) -> ExecResult:
        command, text = call.command, call.command[-1]
        if command in WAYS:
            self.done.append(" ".join(command[:3]))
            return ExecResult(int(WAYS.index(command) != self.works), stderr=b"error: patch failed")
        if text == TAKE_DIFF:
            return self.diff
        if text.startswith("exec bash"):
            assert call.user == "root" and call.env["PYTHONHASHSEED"] == "0" and call.env["TZ"] == "UTC"
            return self._tested()
        name, output = self._step(text)
        self.done.append(name)
        self.given[name] = call.stdin or b""
        return ExecResult(0, output)

    def _step(self, text: str) -> tuple[str, bytes]:
        known: Sequence[tuple[str, str, bytes]] = (
            (ONE_COMMIT, "prepare", b""),
            (f"cp -r /testbed/.git {BASE}", "keep", b""),
            (CLEAN, "clean", b""),
            (TREE, "tree", b"f" * 40),
            ("after=$(", "changes", self.changes.encode()),
            (REMOVE, "remove", b""),
            ("git --literal-pathspecs restore", "restore", b""),
            (RESOLVE, "links", self.links),
        )
        return next((name, output) for start, name, output in known if text.startswith(start))

    def _tested(self) -> ExecResult:
        self.done.append("tests")
        log = self.log.replace("MARK", f">>>>> tests {self.name}").replace("NAME", self.name)
        return ExecResult(self.exit_code, log.encode(), timed_out=self.exit_code is None)

    def sandboxes(self) -> FakeSandboxes:
        return FakeSandboxes(self.answer)
