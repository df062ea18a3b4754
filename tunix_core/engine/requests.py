"""One request on its way through the engine: checked at the door, carried to the worker, answered on its loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from tunix_core.contracts import Completion, GenerateRequest, Sampling
from tunix_core.engine.prefix_cache import Key
from tunix_core.errors import ModelError


@dataclass(slots=True, eq=False)
class Job:
    """A request that waits for its completion.

    Attributes:
        prefix: int32 [T - 1], the prompt without its last token, which decoding reads.
        trail: keys of the prefix that hold for any version, by which it is told where the job is best served.
        keys: the prefix's cache keys, for policy version `keys_version`.
        worker: which one serves it.
        sent_before: blocks of its prefix that were sent to that one before it.
        cancelled: set on the event loop; the worker frees what the job holds.
    """

    request: GenerateRequest
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Completion]
    prefix: np.ndarray
    trail: list[Key]
    keys: list[Key] = field(default_factory=list)
    keys_version: int | None = None
    worker: int = 0
    sent_before: int = 0
    cancelled: bool = False

    def fail(self, error: Exception) -> None:
        """Fails the request, from any thread."""
        with suppress(RuntimeError):  # its loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(_set_exception, self.future, error)


def answer(completions: Sequence[tuple[Job, Completion]]) -> None:
    """Answers requests, from any thread. Each event loop is woken once, which is most of what an answer costs."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Completion], Completion]]] = {}
    for job, completion in completions:
        by_loop.setdefault(job.loop, []).append((job.future, completion))
    for loop, answers in by_loop.items():
        with suppress(RuntimeError):  # its loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_set_results, answers)


def check_request(request: GenerateRequest, *, max_context: int, vocab_size: int, stops: int) -> None:
    """Raises ModelError, with the numbers, unless the engine can serve the request."""
    prompt, sampling = request.prompt, request.sampling
    if prompt.ndim != 1 or len(prompt) < 1 or not np.issubdtype(prompt.dtype, np.integer):
        raise _refused(f"the prompt is {prompt.dtype} {list(prompt.shape)}; expected int32 [T] with T >= 1")
    if len(prompt) + 1 > max_context:
        raise _refused(
            f"the prompt has {len(prompt)} tokens and at least 1 is sampled, but engine.max_context is "
            f"{max_context}; raise it or shorten the conversation"
        )
    if prompt.min() < 0 or prompt.max() >= vocab_size:
        raise _refused(
            f"the prompt has ids from {prompt.min()} to {prompt.max()}; the model knows 0 to {vocab_size - 1}"
        )
    if request.max_tokens < 1:
        raise _refused(f"max_tokens is {request.max_tokens}; expected at least 1")
    if len(request.stop_tokens) > stops:
        raise _refused(f"{len(request.stop_tokens)} stop tokens were given; the engine takes at most {stops}")
    if "" in request.stop_texts:
        raise _refused("a stop text is empty; every text contains it, so leave it out")
    _check_sampling(sampling)


def _check_sampling(sampling: Sampling) -> None:
    expected = {
        "temperature": ("a number >= 0", math.isfinite(sampling.temperature) and sampling.temperature >= 0),
        "top_k": ("a whole number >= 0", sampling.top_k >= 0),
        "top_p": ("a number in (0, 1]", 0 < sampling.top_p <= 1),
        "min_p": ("a number in [0, 1]", 0 <= sampling.min_p <= 1),
    }
    for name, (what, holds) in expected.items():
        if not holds:
            raise _refused(f"sampling.{name} is {getattr(sampling, name)!r}; expected {what}")


def _refused(message: str) -> ModelError:
    return ModelError(f"request refused: {message}", retry=False)


def _set_results(answers: Sequence[tuple[asyncio.Future[Completion], Completion]]) -> None:
    for future, completion in answers:
        if not future.done():
            future.set_result(completion)


def _set_exception(future: asyncio.Future[Completion], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
