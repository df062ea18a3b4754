"""Grades a submission in a fresh container: applied, tested, judged."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunix_core.sandboxes import Sandbox, Sandboxes, SandboxLimits, SandboxRequest
from tunix_env_swebench.parsing import parse_pytest, statuses_of
from tunix_env_swebench.patching import Unusable, apply
from tunix_env_swebench.rows import Row
from tunix_env_swebench.rules import FAILING, Outcome, judge, report, unrun
from tunix_env_swebench.running import Run, Script, arrange, distrust, run


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a submission is worth.

    Attributes:
        outcome: how the tests came out; None where none was run.
        reason: one word for what went wrong, "" when it is resolved.
        message: a sentence about it.
        report: as the official report.json has it.
    """

    outcome: Outcome | None
    reason: str = ""
    message: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def resolved(self) -> bool:
        return self.outcome is not None and self.outcome.resolved

    @property
    def share(self) -> float:
        return 0.0 if self.outcome is None else self.outcome.share

    def to_dict(self) -> dict[str, Any]:
        """What is recorded of it."""
        words = {"resolved": self.resolved, "reason": self.reason, "message": self.message}
        return {**words, "report": dict(self.report)}


def request_of(row: Row, limits: SandboxLimits) -> SandboxRequest:
    """What a submission is graded in. Its work tree lies elsewhere: the repository stays root's, as in the image."""
    return SandboxRequest(image=row.image_name, limits=limits, workdir="/workspace")


async def grade(
    sandboxes: Sandboxes,
    row: Row,
    patch: str | None,
    *,
    limits: SandboxLimits,
    timeout_s: float,
    draw: Callable[[], str] = lambda: secrets.token_hex(8),
) -> Verdict:
    """The verdict on a patch.

    Args:
        patch: a diff against the repository in the image; None when nothing was submitted.
        timeout_s: for the tests; past it they failed.
        draw: a name that can't be guessed, for this run's own test.

    Raises:
        SandboxError: the container could not be had, was lost, or is not as it should be.
        GraderError: the log's parser failed.
    """
    if not patch or not patch.strip():
        return refused(row, patch, "empty_patch", "nothing was changed")
    sandbox = await sandboxes.open(request_of(row, limits))
    try:
        await apply(sandbox, row, patch)
        script = arrange(row, draw())
        return await _tested(sandbox, row, patch, script, timeout_s)
    except Unusable as error:
        return refused(row, patch, error.reason, str(error))
    finally:
        await sandbox.close()


def refused(row: Row, patch: str | None, reason: str, message: str) -> Verdict:
    """The verdict on a submission that no test is run for."""
    return Verdict(None, reason, message, report(row, None, patch=patch, applied=reason == "only_tests"))


async def _tested(sandbox: Sandbox, row: Row, patch: str, script: Script, timeout_s: float) -> Verdict:
    ran = await run(sandbox, script, timeout_s)
    log = "" if ran.log is None else ran.log
    statuses = await statuses_of(row, log) if log else {}
    reason, message = _flaw(row, script, ran, statuses, timeout_s)
    outcome = unrun(row) if reason else judge(row, _at_worst(statuses, log, script))
    if not reason and not outcome.resolved:
        failed = (*outcome.fail_to_pass.failure, *outcome.pass_to_pass.failure)
        reason, message = "tests_failed", f"{len(failed)} tests failed, such as {failed[0]}"
    return Verdict(outcome, reason, message, report(row, outcome, patch=patch, applied=True))


def _flaw(row: Row, script: Script, ran: Run, statuses: Mapping[str, str], timeout_s: float) -> tuple[str, str]:
    """Why a run counts for nothing: a word and a sentence; empty when it counts."""
    if ran.timed_out:
        return "tests_timeout", f"the tests took longer than {timeout_s:g} s"
    if ran.log is None:
        return "tests_not_reached", f"the script ended with {ran.exit_code} before the tests began"
    if doubt := distrust(row, script, ran, statuses):
        return ("output_too_long" if ran.truncated else "log_not_believed"), doubt
    return "", ""


def _at_worst(statuses: Mapping[str, str], log: str, script: Script) -> Mapping[str, str]:
    """The statuses, with every test failed that pytest's own summary calls so anywhere in the log: a line printed
    after it doesn't take that back."""
    if not script.must_fail:
        return statuses
    failed = {name: status for name, status in parse_pytest(log).items() if status in FAILING}
    return {**statuses, **failed}


__all__ = ["Verdict", "grade", "refused", "request_of"]
