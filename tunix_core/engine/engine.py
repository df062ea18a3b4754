"""The engine as others see it: async requests in front of threads that own the device.

Does not know how requests are batched, nor which thread serves one; see `worker` and `job_queue`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import numpy as np
from jax.sharding import Mesh

from tunix_core.config import EngineConfig
from tunix_core.contracts import Completion, GenerateRequest, Policy, WeightSource
from tunix_core.engine.job_queue import JobQueue
from tunix_core.engine.layout import Layout
from tunix_core.engine.parameters import Parameters
from tunix_core.engine.requests import Job, check_request
from tunix_core.engine.steps import Progress, Sizes, cache_shapes, compile_programs, pool_shapes
from tunix_core.engine.worker import Worker, merged
from tunix_core.errors import ConfigError, EngineError
from tunix_core.models.weights import heads_together
from tunix_core.profiling import span

log = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 30.0
WIDE_PREFILL = 128  # prompt tokens about which a prefill of several rows computes at once
POOL_SHARE = 2  # tokens the prefix cache can hold, per token the slots can hold
FIRST_PIECE = 64, 128  # positions, at least and at most
PIECES = 3  # or more, where one would be longer than all before it: each is compiled


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
        ConfigError: a size that can't be, naming it; several workers on several devices.
    """
    return SlotEngine(policy, weights, config, deterministic=deterministic, mesh=mesh, on_progress=on_progress)


class SlotEngine:
    """Continuous batching over slots (contracts.Engine), for callers on one event loop.

    Workers, each in a thread with slots and a prefix cache of its own, share parameters and compiled programs. At most
    `config.queue_size` requests wait for a slot; further callers of `generate` wait to get in. A failure in one of the
    threads ends all, and fails all requests and every later one with an EngineError that has the cause.
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
        self._sizes = sizes_of(config, policy.model.max_positions, deterministic=deterministic)
        self._layout = Layout(mesh, together, slots=self._sizes.slots, workers=config.workers)
        self._recompute = config.weight_update == "recompute"
        self._policy, self._weights, self._deterministic = policy, weights, deterministic
        self._on_progress = on_progress
        self._room = asyncio.Semaphore(config.slots + config.queue_size)
        self._wake = threading.Condition()
        self._queue = JobQueue(  # this, `_open`, `_closing` and `_ended` are guarded by `_wake`
            workers=config.workers,
            slots=self._sizes.slots,
            chunk=self._sizes.chunk,
            blocks=config.workers * self._sizes.blocks,
        )
        self._open: set[Job] = set()
        self._closing = False
        self._ended: EngineError | None = None
        self._started: Future[None] = Future()
        self._thread: threading.Thread | None = None
        self._workers: list[Worker] = []
        self._last: Mapping[str, float] = {}  # statistics, once the workers and their device memory are gone
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
            job = Job(request, loop, loop.create_future(), prefix, self._queue.trail(prefix))
            self._submit(job)
            try:
                completion = await job.future
                with self._wake:
                    self._queue.served(job, completion)
                return completion
            finally:
                job.cancelled = True  # a job that is answered holds no slot: this frees one that isn't
                with self._wake:
                    self._open.discard(job)
                    self._queue.end(job)

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
        """Ends the threads, within CLOSE_TIMEOUT_S; requests that still wait fail with EngineError."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)
            if self._thread.is_alive():
                log.warning("the engine's thread is still in a device call after %.0f s; leaving it", CLOSE_TIMEOUT_S)
        self._end(EngineError("the engine was closed"))

    def statistics(self) -> Mapping[str, float]:
        """Numbers for reports.

        requests, tokens_sampled, prefill_tokens (computed), cached_tokens (not computed, thanks to the prefix cache),
        decode_calls, decode_s (from a call to its tokens), prefill_calls: since the start, summed over workers.
        decoding: mean share of slots that decode, over decode calls. slots_busy (share), queued (beyond the slots),
        prefix_blocks, programs (compiled), version (the oldest that a worker samples with): now.
        """
        workers = self._workers
        if not workers:
            return self._last
        return merged([worker.statistics() for worker in workers]) | {"queued": float(self._queue.waiting)}

    def _submit(self, job: Job) -> None:
        with self._wake:
            if self._ended is not None:
                raise _again(self._ended)
            if self._thread is None:
                raise EngineError("the engine was asked before it was started; await start() first")
            self._open.add(job)
            self._queue.put(job)
            self._wake.notify_all()

    # ---- in the engine's threads -------------------------------------------------------------------
    def _run(self) -> None:
        """Makes the workers, serves as the first of them, and outlives the others."""
        try:
            workers = self._workers = self._make_workers()
            self._started.set_result(None)
        except BaseException as error:  # the thread's edge: whatever it is, nobody may wait for ever
            log.error("the engine failed", exc_info=error)
            return self._end(_caused(error))
        others = [
            threading.Thread(target=self._serve, args=(worker,), name=f"tunix-engine-{worker.index}", daemon=True)
            for worker in workers[1:]
        ]
        for thread in others:
            thread.start()
        self._serve(workers[0])
        for thread in others:
            thread.join()
        self._last, self._workers = self.statistics(), []

    def _make_workers(self) -> list[Worker]:
        model, sizes, layout = self._policy.model, self._sizes, self._layout
        parameters = Parameters(self._weights, layout)
        programs = compile_programs(model, parameters.newest.params, sizes, layout, self._report)
        zeros = layout.zeros((layout.cache(cache_shapes(model, sizes)), layout.pool(pool_shapes(model, sizes))))
        return [
            Worker(
                index,
                parameters,
                programs,
                sizes,
                zeros(),
                take=partial(self._take, index),
                put_back=self._put_back,
                decode_text=self._policy.tokenizer.decode,
                max_context=self.max_context,
                deterministic=self._deterministic,
                recompute=self._recompute,
            )
            for index in range(self._queue.workers)
        ]

    def _serve(self, worker: Worker) -> None:
        try:
            while self._goes_on(worker):
                with span("engine.round", worker=worker.index):
                    worker.round()
        except BaseException as error:  # the thread's edge, as above; a panic in Rust is no Exception
            log.error("the engine failed", exc_info=error)
            self._end(_caused(error))
        else:
            self._end(EngineError("the engine was closed"))

    def _goes_on(self, worker: Worker) -> bool:
        """Waits while the worker has nothing to do; False when the engine ends."""
        with self._wake:
            self._wake.wait_for(
                lambda: self._closing or self._ended or not worker.idle or self._queue.has(worker.index)
            )
            return not (self._closing or self._ended)

    def _take(self, worker: int, others: bool) -> Job | None:
        with self._wake:
            return self._queue.take(worker, others=others)

    def _put_back(self, jobs: list[Job]) -> None:
        with self._wake:
            self._queue.put_back(jobs)
            self._wake.notify_all()

    def _end(self, error: EngineError) -> None:
        """Fails every open request and all later ones, and ends every thread; the first reason stands."""
        with self._wake:
            self._ended = self._ended or error
            self._wake.notify_all()
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
    """The static shapes a config asks for, of each worker. Raises ConfigError naming a size that can't be."""
    for name in ("slots", "workers", "prefill_chunk", "decode_steps", "queue_size"):
        if getattr(config, name) < 1:
            raise ConfigError(f"engine.{name} is {getattr(config, name)}; expected at least 1")
    if config.slots % config.workers:
        raise ConfigError(
            f"engine.slots is {config.slots}, which engine.workers of {config.workers} doesn't divide; "
            "choose a multiple of it"
        )
    if not 2 <= config.max_context <= max_positions:
        raise ConfigError(
            f"engine.max_context is {config.max_context}; expected 2 to {max_positions}, the positions the model has"
        )
    slots = config.slots // config.workers
    chunk = min(config.prefill_chunk, config.max_context)
    length = -(-config.max_context // chunk) * chunk
    # One row count when deterministic: another one may round differently.
    rows = (4,) if deterministic else (1, max(4, WIDE_PREFILL // chunk))  # several may be of one slot
    return Sizes(
        slots=slots,
        pieces=pieces_of(length, chunk),
        chunk=chunk,
        rows=rows,
        steps=config.decode_steps,
        blocks=POOL_SHARE * slots * length // chunk,
    )


def pieces_of(length: int, chunk: int) -> tuple[int, ...]:
    """How `length` positions, a multiple of `chunk`, lie: half of them, within the bounds of FIRST_PIECE; then what is
    there grows by the same factor with each piece, at most twofold."""
    least, most = FIRST_PIECE
    first = min(length, _whole(min(most, max(least, length // 2)), chunk))
    factor = min(2.0, (length / first) ** (1 / (PIECES - 1)))
    pieces = [first]
    while (there := sum(pieces)) < length:
        pieces.append(min(length, _whole(there * factor, chunk)) - there)
    return tuple(pieces)


def _whole(positions: float, chunk: int) -> int:
    """So many, up to whole chunks."""
    return math.ceil(positions / chunk) * chunk


def _caused(error: BaseException) -> EngineError:
    ended = EngineError(f"the engine failed: {type(error).__name__}: {error}")
    ended.__cause__ = error
    return ended


def _again(error: EngineError) -> EngineError:
    """The same error anew, since each waiter's traceback is its own."""
    copy = EngineError(str(error))
    copy.__cause__ = error.__cause__
    return copy
