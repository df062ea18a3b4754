"""The engine as others see it: async requests in front of a thread that owns the device.

Does not know how requests are batched; see `worker`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
from jax.sharding import Mesh

from tunix_core.config import EngineConfig
from tunix_core.contracts import Completion, GenerateRequest, Policy, WeightSource
from tunix_core.engine.layout import Layout
from tunix_core.engine.requests import Job, check_request
from tunix_core.engine.steps import Progress, Sizes
from tunix_core.engine.worker import Worker
from tunix_core.errors import ConfigError, EngineError
from tunix_core.models.weights import heads_together
from tunix_core.profiling import span

log = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 30.0
WIDE_PREFILL = 128  # prompt tokens about which a prefill of several rows computes at once
POOL_SHARE = 2  # tokens the prefix cache can hold, per token the slots can hold
FIRST_PIECE = 128  # positions at least; each further piece of the cache doubles what there is, for each is compiled


def make_engine(
    policy: Policy,
    weights: WeightSource,
    config: EngineConfig,
    *,
    deterministic: bool,
    mesh: Mesh | None = None,
    on_progress: Progress | None = None,
) -> SlotEngine:
    """An engine for one policy; `start` compiles it.

    Args:
        policy: its model computes and its tokenizer decodes for stop texts; the parameters come from `weights`.
        weights: where the newest parameters are found, between any two decode calls.
        deterministic: whether ids and log-probabilities must not depend, to the bit, on what else is running;
            `config.deterministic` is the caller's to resolve.
        mesh: devices with any of the axes "data" (shares out the slots), "tensor" (heads, and the parameters by
            `models.RULES`) and "fsdp" (parameters); None: the first device.
        on_progress: called in the engine's thread after each compilation with (program, done, total).

    Raises:
        ConfigError: a size that can't be, naming it.
    """
    return SlotEngine(policy, weights, config, deterministic=deterministic, mesh=mesh, on_progress=on_progress)


class SlotEngine:
    """Continuous batching over slots (contracts.Engine), for callers on one event loop.

    At most `config.queue_size` requests wait for a slot; further callers of `generate` wait to get in. A failure in
    the engine's thread fails all of them, and every later one, with an EngineError that has the cause.
    """

    gives_logprobs = True

    def __init__(
        self,
        policy: Policy,
        weights: WeightSource,
        config: EngineConfig,
        *,
        deterministic: bool,
        mesh: Mesh | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self.max_context = config.max_context
        together = {} if mesh is None else heads_together(policy.model)  # type: ignore[arg-type]
        self._layout = Layout(mesh, together, slots=config.slots)
        self._recompute = config.weight_update == "recompute"
        self._policy, self._weights, self._deterministic = policy, weights, deterministic
        self._sizes = sizes_of(config, policy.model.max_positions, deterministic=deterministic)
        self._on_progress = on_progress
        self._room = asyncio.Semaphore(config.slots + config.queue_size)
        self._wake = threading.Condition()
        self._inbox: list[Job] = []  # this, `_open`, `_closing` and `_ended` are guarded by `_wake`
        self._open: set[Job] = set()
        self._closing = False
        self._ended: EngineError | None = None
        self._started: Future[None] = Future()
        self._thread: threading.Thread | None = None
        self._worker: Worker | None = None
        self._last: Mapping[str, float] = {}  # statistics, once the worker and its device memory are gone
        self._born = time.monotonic()

    async def start(self) -> None:
        """Compiles every program and gets ready to serve. A second call waits for the first.

        Raises:
            EngineError: it could not start, with the cause.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tunix-engine", daemon=True)
            self._thread.start()
        await asyncio.shield(asyncio.wrap_future(self._started))

    async def generate(self, request: GenerateRequest) -> Completion:
        """Samples one continuation; see contracts.Engine for errors and cancellation."""
        check_request(
            request,
            max_context=self.max_context,
            vocab_size=self._policy.model.vocab_size,
            stops=self._sizes.stops,
        )
        async with self._room:
            loop = asyncio.get_running_loop()
            prefix = np.ascontiguousarray(request.prompt[:-1], np.int32)
            job = Job(request, loop, loop.create_future(), prefix)
            self._submit(job)
            try:
                return await job.future
            finally:
                job.cancelled = True  # a job that is answered holds no slot: this frees one that isn't
                with self._wake:
                    self._open.discard(job)

    async def generate_many(self, request: GenerateRequest, seeds: Sequence[int]) -> list[Completion]:
        """A sample for each seed of the request, which is prefilled once for all of them; `request.seed` is not used.

        Errors and cancellation are those of `generate`, and concern all samples.
        """
        asking = [asyncio.create_task(self.generate(replace(request, seed=seed))) for seed in seeds]
        try:
            return await asyncio.gather(*asking)
        finally:
            for task in asking:
                task.cancel()

    async def aclose(self) -> None:
        """Ends the thread, within CLOSE_TIMEOUT_S; requests that still wait fail with EngineError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                log.warning("the engine's thread is still in a device call after %.0f s; leaving it", CLOSE_TIMEOUT_S)
        self._end(EngineError("the engine was closed"))

    def statistics(self) -> Mapping[str, float]:
        """Numbers for reports.

        requests, tokens_sampled, prefill_tokens (computed), cached_tokens (not computed, thanks to the prefix cache),
        decode_calls, decode_s (from a call to its tokens), prefill_calls: since the start. decoding: mean share of
        slots that decode, over decode calls. slots_busy (share), queued, prefix_blocks, programs (compiled), version:
        now.
        """
        worker = self._worker
        return self._last if worker is None else worker.statistics()

    def _submit(self, job: Job) -> None:
        with self._wake:
            if self._ended is not None:
                raise _again(self._ended)
            if self._thread is None:
                raise EngineError("the engine was asked before it was started; await start() first")
            self._open.add(job)
            self._inbox.append(job)
            self._wake.notify()

    # ---- in the engine's thread --------------------------------------------------------------------
    def _run(self) -> None:
        try:
            self._worker = Worker(
                self._policy,
                self._weights,
                self._sizes,
                max_context=self.max_context,
                deterministic=self._deterministic,
                recompute=self._recompute,
                layout=self._layout,
                progress=self._report,
            )
            self._started.set_result(None)
            while self._take_jobs(self._worker):
                with span("engine.round"):
                    self._worker.round()
        except Exception as error:  # the thread's edge: whatever it is, nobody may wait for ever
            log.error("the engine failed", exc_info=error)
            self._end(_caused(error))
        else:
            self._end(EngineError("the engine was closed"))
        finally:
            self._last, self._worker = self.statistics(), None

    def _take_jobs(self, worker: Worker) -> bool:
        """Brings new jobs to the worker, waiting for some while it is idle; False when closing."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing or self._inbox or not worker.idle)
            worker.add(self._inbox)
            self._inbox = []
            return not self._closing

    def _end(self, error: EngineError) -> None:
        """Fails every open request and all later ones; the first reason stands."""
        with self._wake:
            self._ended = self._ended or error
            left, self._open = self._open, set()
        for job in left:
            job.fail(_again(self._ended))
        if not self._started.done():
            self._started.set_exception(_again(self._ended))

    def _report(self, program: str, done: int, total: int) -> None:
        log.info("engine: compiled %s (%d of %d, %.1f s)", program, done, total, time.monotonic() - self._born)
        if self._on_progress is not None:
            self._on_progress(program, done, total)


def sizes_of(config: EngineConfig, max_positions: int, *, deterministic: bool) -> Sizes:
    """The static shapes a config asks for. Raises ConfigError naming a size that can't be."""
    for name in ("slots", "prefill_chunk", "decode_steps", "queue_size"):
        if getattr(config, name) < 1:
            raise ConfigError(f"engine.{name} is {getattr(config, name)}; expected at least 1")
    if not 2 <= config.max_context <= max_positions:
        raise ConfigError(
            f"engine.max_context is {config.max_context}; expected 2 to {max_positions}, the positions the model has"
        )
    chunk = min(config.prefill_chunk, config.max_context)
    length = -(-config.max_context // chunk) * chunk
    # One row count when deterministic: another one may round differently.
    rows = (4,) if deterministic else (1, max(4, WIDE_PREFILL // chunk))
    return Sizes(
        slots=config.slots,
        pieces=pieces_of(length, chunk),
        chunk=chunk,
        rows=tuple(sorted({min(r, config.slots) for r in rows})),
        steps=config.decode_steps,
        blocks=POOL_SHARE * config.slots * length // chunk,
    )


def pieces_of(length: int, chunk: int) -> tuple[int, ...]:
    """How `length` positions, a multiple of `chunk`, lie: a first piece, and then each as long as all before it."""
    pieces = [min(length, -(-FIRST_PIECE // chunk) * chunk)]
    while (there := sum(pieces)) < length:
        pieces.append(min(there, length - there))
    return tuple(pieces)


def _caused(error: Exception) -> EngineError:
    ended = EngineError(f"the engine failed: {type(error).__name__}: {error}")
    ended.__cause__ = error
    return ended


def _again(error: EngineError) -> EngineError:
    """The same error anew, since each waiter's traceback is its own."""
    copy = EngineError(str(error))
    copy.__cause__ = error.__cause__
    return copy
