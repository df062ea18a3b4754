"""The environment: work in a repository with tools, submit, be graded on hidden tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any, Literal

from tunix_core import StepResult, Task
from tunix_core.envs import ToolEnvironment, accepted
from tunix_core.sandboxes import ExecResult, Sandbox, SandboxError, Sandboxes, SandboxLimits, SandboxRequest
from tunix_core.tools import SandboxTool, Tool
from tunix_env_swebench.grading import Verdict, grade, refused
from tunix_env_swebench.repository import ROOT, TOO_MUCH, prepare, take_diff
from tunix_env_swebench.rows import Row

TOOLS = ("tools/bash", "tools/edit", "tools/search")
# Python environments of images built here and of the published ones, before the system's own.
PATH = "/opt/testbed/bin:/opt/miniconda3/envs/testbed/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_PATCH_BYTES = 1 << 20
LOG_BYTES = 16 << 20
KILL_S = 10.0  # that a tool has to end a command which ran out of time
PROMPT = """The repository {repo} is in {root}. Resolve this issue by changing its code, then call submit. \
Hidden tests decide; changes to tests do not count.

{issue}"""


# The work tree is taken by `_grade`, from outside of what the agent could change.
SUBMIT = Tool(
    name="submit",
    description="Hands in the repository as it is, and ends the episode.",
    parameters={"type": "object", "properties": {}},
    fn=lambda **_: "",
    final=True,
)


@dataclass(frozen=True, slots=True)
class Graded:
    """A reward and what is recorded with it, as `_grade` gives them."""

    reward: float
    metadata: Mapping[str, Any]


class SweBenchEnv(ToolEnvironment):
    """One issue of one repository. `async`; needs a sandbox that isolates.

    The agent works as a plain user in a container, without a network, on a repository of one commit. What
    changed is taken when it calls `submit` and graded in another container; see `grading`. Text without a
    call is answered, not graded; an episode that ends without `submit` scores 0.

    Args:
        task: its gold is a row as `rows.Row` reads it.
        tools: ids of the hub; `submit` is always there.
        reward: "resolved" is 1 or 0; "share" is the share of repaired tests times that of maintained ones.
        command_timeout_s: for each command of a tool.
        eval_timeout_s: for the hidden tests.
        cpus, memory_mb, disk_mb, pids: of the agent's container, and of the one it is graded in.
    """

    def __init__(
        self,
        task: Task | Mapping[str, Any] | None = None,
        *,
        tools: Sequence[str] = TOOLS,
        reward: Literal["resolved", "share"] = "resolved",
        command_timeout_s: float = 120.0,
        eval_timeout_s: float = 1800.0,
        cpus: float = 1.0,
        memory_mb: int = 4096,
        disk_mb: int = 4096,
        pids: int = 512,
        **kwargs: Any,
    ) -> None:
        super().__init__(task, **{"max_steps": 50, "tool_timeout_s": command_timeout_s + KILL_S, **kwargs})
        if reward not in ("resolved", "share"):
            raise ValueError(f"reward={reward!r}: expected 'resolved' or 'share'")
        self.tools = {SUBMIT.name: SUBMIT}  # in place of `finish`: the answer is in the repository
        self._tool_ids, self._reward = tuple(tools), reward
        self._command_timeout_s, self._eval_timeout_s = command_timeout_s, eval_timeout_s
        self._limits = SandboxLimits(
            cpus=cpus, memory_mb=memory_mb, disk_mb=disk_mb, pids=pids, output_bytes=MAX_PATCH_BYTES
        )
        self._sandbox: Sandbox | None = None

    @property
    def row(self) -> Row:
        return Row.model_validate(self.full_task.gold)

    async def _initial_observation(self) -> str:
        await self._close()
        self._sandbox = await self._open(self._provider, self.row)
        await prepare(self._sandbox)
        self.add_tools(self._sandbox, *(self._bound(identity, self._sandbox) for identity in self._tool_ids))
        return PROMPT.format(repo=self.row.repo, root=ROOT, issue=self.row.problem_statement)

    def _bound(self, identity: str, sandbox: Sandbox) -> Any:
        """The tool of that id; one that bounds its commands itself gets the episode's bound."""
        found = self.find_tool(identity)
        if not isinstance(found, SandboxTool):
            return found
        bind: Any = found.bind
        return bind(sandbox, **accepted(bind, {"timeout_s": self._command_timeout_s}))

    async def _step_impl(self, action: Any) -> Any:
        if isinstance(action, str):
            return StepResult("No tool was called. Call a tool; submit ends the episode.")
        result = super()._step_impl(action)
        return await result if isawaitable(result) else result

    async def _grade(self, answer: str) -> Graded:
        if self._sandbox is None:
            raise SandboxError("the environment has no sandbox; call reset first", retry=False)
        diff = await take_diff(self._sandbox)
        # Two containers at once would let episodes wait for one another's, where their number is bounded.
        await self._close()
        verdict = await self._verdict(diff)
        reward = float(verdict.resolved) if self._reward == "resolved" else verdict.share
        patch = "" if diff.truncated else diff.stdout.decode(errors="replace")
        return Graded(reward, {"share": verdict.share, "patch": patch, **verdict.to_dict()})

    async def _verdict(self, diff: ExecResult) -> Verdict:
        if diff.truncated or diff.exit_code == TOO_MUCH:
            return refused(self.row, "", "patch_too_long", f"the changes have more than {MAX_PATCH_BYTES} bytes")
        if not diff.ok:
            said = diff.stderr.decode(errors="replace").strip()[-300:]
            return refused(self.row, None, "unreadable", f"git can't read what was changed: {said}")
        limits = replace(self._limits, output_bytes=LOG_BYTES)
        patch = diff.stdout.decode(errors="surrogateescape")
        return await grade(self._provider, self.row, patch, limits=limits, timeout_s=self._eval_timeout_s)

    async def _close(self) -> None:
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.close()

    @property
    def _provider(self) -> Sandboxes:
        if self.sandboxes is None:
            raise SandboxError("this environment works in a sandbox; set env.sandboxes first", retry=False)
        return self.sandboxes

    async def _open(self, provider: Sandboxes, row: Row) -> Sandbox:
        variables = (("PATH", PATH), ("PYTHONDONTWRITEBYTECODE", "1"), ("TZ", "UTC"), ("LC_ALL", "C.UTF-8"))
        request = SandboxRequest(image=row.image_name, limits=self._limits, workdir=ROOT, env=variables)
        try:
            return await provider.open(request)
        except SandboxError as error:
            if row.source and error.kind == "sandbox_image":
                how = f"{error} Or build it: tunix swebench build --only {row.instance_id}"
                raise SandboxError(how, kind=error.kind, retry=False) from error
            raise
