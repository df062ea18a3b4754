"""What acts: tasks, environments, sandboxes, rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from tunix_core.types import Message, Opening, Score, Status, StepResult, Task


class TaskSource(Protocol):
    """Problems by index. `get(i)` is a pure function of i, so a cursor is an integer."""

    def get(self, index: int) -> Task: ...
    def __len__(self) -> int: ...  # raises TypeError when endless; see `tasks.length_of`


class Curriculum(Protocol):
    """Chooses the next task's index; state survives JSON.

    `next_index` is asked once per cursor, which only grows, and is a function of the state, the seed it
    was made with and the cursor. `length` is None for an endless source. `observe` tells what the samples
    of a task scored: after each step, in the order the tasks were chosen.
    """

    def next_index(self, cursor: int, length: int | None) -> int: ...
    def observe(self, index: int, scores: Sequence[float]) -> None: ...
    def state(self) -> Mapping[str, Any]: ...
    def restore(self, state: Mapping[str, Any]) -> None: ...


class EnvHandle(Protocol):
    """One open environment as the episode sees it: async, bounded in time, isolated.

    A step's observation is a tuple of messages. Whatever goes wrong raises errors.EnvError (or
    another EpisodeError).

    Attributes:
        sandbox: the first sandbox the environment opened that is still open, or None: what rewards see. It is
            open until `close`, which closes every sandbox the environment opened and did not close.
    """

    @property
    def sandbox(self) -> Sandbox | None: ...
    async def reset(self, seed: int) -> Opening: ...
    async def step(self, action: Message) -> StepResult: ...
    async def close(self) -> None: ...  # idempotent; never raises


class EnvOpener(Protocol):
    """Builds the environment of one suite for a task. Opening does not call `reset`."""

    async def open(self, task: Task) -> EnvHandle: ...
    async def aclose(self) -> None: ...
    def statistics(self) -> Mapping[str, float]: ...


Network = Literal["none", "bridge"]


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one sandbox may use. A kind of sandbox that can't hold one of these says so at start.

    Attributes:
        cpus: CPU seconds per second.
        memory_mb: of all its processes together; the work tree, where it lies in memory, comes on top.
        pids: processes and threads.
        disk_mb: of the work tree.
        file_mb: the longest a single file may become.
        output_bytes: kept of each stream of one `exec`; the rest is counted, and never in memory.
    """

    cpus: float = 1.0
    memory_mb: int = 2048
    pids: int = 256
    disk_mb: int = 1024
    file_mb: int = 512
    output_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """What to open. Hashable: sandboxes are kept warm by request.

    Attributes:
        image: what it starts from: a name a container engine knows, or what `Sandbox.snapshot` gave. Kinds
            without images ignore it.
        network: "none", or "bridge" for one that reaches out.
        workdir: the work tree, an absolute path: commands start there, `user` owns it, and it keeps what the
            image has there.
        user: "uid:gid", whom commands run as; not root.
        env: variables of every command, as (name, value) pairs.
    """

    image: str = ""
    limits: SandboxLimits = SandboxLimits()
    network: Network = "none"
    workdir: str = "/workspace"
    user: str = "1000:1000"
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended.

    Attributes:
        exit_code: None when it ran out of time and was killed.
        stdout, stderr: what it wrote. Of what exceeds the limit the middle is left out: a line in its place
            says how many bytes, and so does `dropped_stdout` or `dropped_stderr`.
        seconds: how long it ran.
    """

    exit_code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    dropped_stdout: int = 0
    dropped_stderr: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def truncated(self) -> bool:
        """Whether something of the output was left out."""
        return self.dropped_stdout + self.dropped_stderr > 0


class Shell(Protocol):
    """One bash that lives on between commands: directory, variables, functions, background jobs."""

    async def run(self, command: str, *, timeout_s: float) -> ExecResult:
        """Runs a command; stderr is in stdout, in the order written. After a timeout, or when the command
        ends the shell (`exit`), the next one starts in a fresh shell."""
        ...

    async def close(self) -> None: ...  # kills it and what it started; idempotent


class Sandbox(Protocol):
    """Where untrusted code runs; open until `close`.

    Paths are absolute, or relative to `workdir`. Whatever is the sandbox's own fault (it is gone, its engine
    does not answer) raises errors.SandboxError; what a command does, be it to run out of time or to hit a
    limit, is its ExecResult. Calls may run at the same time.

    Attributes:
        workdir: the work tree as commands see it.
        closed: whether `close` has begun.
    """

    workdir: str

    @property
    def closed(self) -> bool: ...

    async def exec(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        """Runs a command to its end, without a shell.

        At a timeout, and when the caller is cancelled, its process group is killed inside. What it left in
        the background after ending by itself lives on until `close`.

        Args:
            user: default: the request's. "root" is for preparing: it has no capabilities, yet writes
                root's files. Where there are no users it is ignored.
            cwd: default: `workdir`.
            env: over the request's.
            stdin: what it reads; then the end. Default: nothing.

        Raises:
            SandboxError: the sandbox failed.
        """
        ...

    async def shell(self) -> Shell:
        """A persistent bash in `workdir`, as the request's user; ends with the sandbox at the latest."""
        ...

    async def read(self, path: str, *, max_bytes: int = 64 << 20) -> bytes:
        """A file's content. Raises FileNotFoundError, IsADirectoryError, PermissionError, or ValueError when
        it is longer than `max_bytes`."""
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file, as the request's user, and makes the directories above it. Raises
        IsADirectoryError, PermissionError, or OSError when the disk is full."""
        ...

    async def copy_in(self, source: Path, path: str) -> None:
        """Copies a file, or the content of a directory, from this machine to `path`."""
        ...

    async def copy_out(self, path: str, target: Path) -> None:
        """Copies a file, or a directory's content, to `target` on this machine. Links are kept as links, and
        nothing is written outside of `target`. Raises FileNotFoundError; ValueError for what would leave
        `target`, or is over the limits' `disk_mb`."""
        ...

    async def snapshot(self) -> str:
        """An image that later sandboxes of the same provider open from: files, not processes. It lives as
        long as the provider."""
        ...

    async def close(self) -> None: ...  # idempotent; never raises; everything in it is gone


class Sandboxes(Protocol):
    """Opens sandboxes of one kind, and keeps some warm. One provider serves a whole run.

    Attributes:
        isolates: whether code in one is kept from this machine. One that does not says so at start.
    """

    isolates: bool

    async def start(self) -> str:
        """Removes what dead runs left, and says in a line what holds and what doesn't. `open` does it where
        nobody has.

        Raises:
            UsageError: this kind can't be had here; the message says what to do.
        """
        ...

    async def open(self, request: SandboxRequest) -> Sandbox:
        """A fresh sandbox that nobody has touched. Cancelling leaves nothing behind.

        Raises:
            SandboxError: it could not be opened; kind "sandbox_image" (not retried) where the image is not
                to be had, and the message says how to get it.
        """
        ...

    async def identify(self, image: str) -> str:
        """The id of what an image's name means now; the name itself where there are no images.

        Raises:
            SandboxError: as `open` does.
        """
        ...

    def used_images(self) -> Mapping[str, str]: ...  # by the name asked for, the id that was opened
    async def aclose(self) -> None: ...  # closes all that is open or warm
    def statistics(self) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class Episode:
    """What a reward may read of an episode. Survives pickling except for `sandbox`."""

    task: Task
    messages: tuple[Message, ...]
    step_rewards: tuple[float, ...] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    status: Status = "terminated"
    stop_reason: str = "finished"
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    turns: int = 0
    sandbox: Sandbox | None = None

    @property
    def final_text(self) -> str:
        """The text of the policy's last message, or ""."""
        said = [m.text for m in self.messages if m.role == "assistant"]
        return said[-1] if said else ""


class Scorer(Protocol):
    """The rewards of one suite, weighted. A failing part makes the value None, with the reason;
    `score` itself does not raise."""

    async def score(self, episode: Episode) -> Score: ...
    async def score_group(self, episodes: Sequence[Episode], scores: Sequence[Score]) -> Sequence[Score]: ...
    async def aclose(self) -> None: ...
