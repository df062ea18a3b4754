"""Calling tools: whatever the policy wrote and whatever the tool does, the answer is text."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from pydantic_core import to_jsonable_python

from tunix_core.errors import EnvError, SandboxError, ToolError, did_you_mean
from tunix_core.tools.threads import run_aside
from tunix_core.tools.tool import Tool
from tunix_core.types import ToolCall

MOST_ABANDONED = 32  # blocking calls of this process that may hang at a time
_abandoned: set[Future[Any]] = set()


async def call_tool(tool: Tool, call: ToolCall, timeout_s: float = 30.0) -> str:
    """Calls `tool` as `call` says and gives the observation.

    A blocking function runs in a thread. A call that could not be read, invalid arguments, an
    exception and a timeout are observations that begin with "Error:". A blocking function that
    outlives its timeout keeps its thread until it returns; `abandoned_calls` counts them.

    Raises:
        EnvError: MOST_ABANDONED such functions hang, and this would be one more.
        SandboxError: the sandbox that the tool works in is lost.
    """
    return (await try_tool(tool, call, timeout_s))[1]


async def try_tool(tool: Tool, call: ToolCall, timeout_s: float = 30.0) -> tuple[bool, str]:
    """Like `call_tool`: whether the call succeeded, and the observation."""
    prepared = _prepared(tool, call)
    _check_room([prepared])
    return await _one_async(prepared, timeout_s)


def call_tools(
    tools: Mapping[str, Tool], calls: Sequence[ToolCall], timeout_s: float = 30.0
) -> list[str] | Awaitable[list[str]]:
    """Calls several tools at once: one observation per call, in the calls' order. Raises like `call_tool`.

    Args:
        tools: by name; an unknown name is an observation that lists them.
        timeout_s: for each call.

    Returns:
        The observations; an awaitable of them when one of the tools called is `async`.
    """
    prepared = [_prepared(tools.get(call.name), call, tuple(tools)) for call in calls]
    _check_room(prepared)
    if any(isinstance(item, _Ready) and item.is_async for item in prepared):
        return _all_async(prepared, timeout_s)
    return _all_blocking(prepared, timeout_s)


def abandoned_calls() -> int:
    """How many blocking calls, given up at a timeout, have not returned yet."""
    return len(_abandoned)


class _Ready:
    """A call that was read and checked, and only has to be made."""

    def __init__(self, fn: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        self.fn, self.arguments = fn, arguments
        self.is_async = inspect.iscoroutinefunction(fn)

    def block(self) -> Any:
        """Makes the call in this thread; an awaitable that a plain function gave is run here too."""
        result = self.fn(**self.arguments)
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result

    async def run(self) -> Any:
        """Makes the call: on the event loop when it is `async`, else in a thread."""
        if self.is_async:
            return await self.fn(**self.arguments)
        call = run_aside(self.block)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            _abandon(call)
            raise


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _check_room(prepared: Sequence[_Ready | str]) -> None:
    blocking = any(isinstance(item, _Ready) and not item.is_async for item in prepared)
    if blocking and len(_abandoned) >= MOST_ABANDONED:
        raise EnvError(
            f"{len(_abandoned)} calls of tools hang in their threads, and no more are begun. Give what hangs a timeout "
            'of its own, make it async, or set the suite\'s isolation = "process", where it can be killed.'
        )


def _abandon(call: Future[Any]) -> None:
    """Counts a call that is given up, until it returns."""
    _abandoned.add(call)
    call.add_done_callback(_abandoned.discard)


def _prepared(tool: Tool | None, call: ToolCall, known: Sequence[str] = ()) -> _Ready | str:
    """The call, ready to be made, or why it cannot be."""
    if call.error:
        return error_text(ToolError(f"this call could not be read: {call.error}"))
    if tool is None:
        hint = did_you_mean(call.name, known)
        return error_text(ToolError(f"there is no tool {call.name!r:.100}.{hint} Tools: {', '.join(known)}."))
    try:
        return _Ready(tool.fn, tool.check(read_arguments(call.arguments)))
    except Exception as error:  # noqa: BLE001 - what the policy wrote must not end the episode
        return error_text(error)


def read_arguments(arguments: Mapping[str, Any] | str | None) -> Mapping[str, Any]:
    """A call's arguments from a mapping or JSON text ("" is none). Raises ToolError."""
    if isinstance(arguments, Mapping):
        return arguments
    if arguments is None or not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ToolError(f"the arguments must be a JSON object, not {type(value).__name__}")
    return value


def to_text(result: Any) -> str:
    """A tool's result as the policy reads it: text as it is, None as "", anything else as JSON."""
    if result is None or isinstance(result, str):
        return result or ""
    return json.dumps(to_jsonable_python(result, fallback=str), ensure_ascii=False)


def error_text(error: BaseException) -> str:
    """An error as the policy reads it; a ToolError says only its message."""
    said = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
    return f"Error: {said}"


def _timeout_text(timeout_s: float) -> str:
    return f"Error: the tool took longer than {timeout_s:g} s and was given up"


def _all_blocking(prepared: Sequence[_Ready | str], timeout_s: float) -> list[str]:
    running = [item if isinstance(item, str) else run_aside(item.block) for item in prepared]
    wait([item for item in running if isinstance(item, Future)], timeout=timeout_s)
    return [item if isinstance(item, str) else _outcome(item, timeout_s) for item in running]


def _outcome(future: Future[Any], timeout_s: float) -> str:
    if not future.done():
        _abandon(future)
        return _timeout_text(timeout_s)
    error = future.exception()
    if isinstance(error, SandboxError):  # not what the policy did: the episode can't go on
        raise error
    return error_text(error) if error else _safe_text(future.result())


async def _all_async(prepared: Sequence[_Ready | str], timeout_s: float) -> list[str]:
    return [text for _, text in await asyncio.gather(*(_one_async(item, timeout_s) for item in prepared))]


async def _one_async(item: _Ready | str, timeout_s: float) -> tuple[bool, str]:
    """Whether the call succeeded, and the observation."""
    if isinstance(item, str):
        return False, item
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return True, to_text(await item.run())
    except TimeoutError as error:
        return False, _timeout_text(timeout_s) if limit.expired() else error_text(error)
    except (SandboxError, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):  # not what the policy did
        raise
    except BaseException as error:  # noqa: BLE001 - a tool's error is an observation, SystemExit or a panic in Rust too
        return False, error_text(error)


def _safe_text(result: Any) -> str:
    try:
        return to_text(result)
    except Exception as error:  # noqa: BLE001 - a result without a text is the tool's error
        return error_text(error)
