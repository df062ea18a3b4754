"""The device programs of the engine, compiled once for the shapes it declares.

Takes a model and sizes; gives the programs over a cache that each of them consumes and returns. Does not
know requests. S slots, L cache length, C chunk, R rows, K fused steps, P pool blocks, M moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tunix_core.contracts import Cache, Model, Params
from tunix_core.engine.layout import Layout
from tunix_core.engine.sampling import Settings, draw, uniform
from tunix_core.errors import EngineError

Array = jax.Array
Compiled = Callable[..., Any]
Place = tuple[Any, Any]
State = tuple[Any, Any, Any, Any]
Progress = Callable[[str, int, int], None]
# By platform. On CPUs another level of LLVM's takes a fifth more time to compile, and what it gives is no faster.
COMPILER_OPTIONS: dict[str, dict[str, str | bool]] = {"cpu": {"xla_backend_optimization_level": "1"}}
NONE = -1  # no token: an idle slot, or padding among stop tokens


@dataclass(frozen=True, slots=True)
class Sizes:
    """Every static size of the engine.

    Attributes:
        slots: requests decoded together.
        pieces: cache positions of a slot, in the pieces they lie in; each a multiple of `chunk`.
        chunk: tokens of a prefill row, and of a block of the pool.
        rows: the row counts prefill is compiled for, ascending.
        steps: decode steps fused into one call.
        blocks: blocks in the pool of the prefix cache.
        moves: block copies one call can carry.
        stops: stop tokens a request can have.
    """

    slots: int
    pieces: tuple[int, ...]
    chunk: int
    rows: tuple[int, ...]
    steps: int
    blocks: int
    moves: int = 64
    stops: int = 8

    @property
    def length(self) -> int:
        """Cache positions of a slot."""
        return sum(self.pieces)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first position of each piece."""
        return tuple(accumulate(self.pieces[:-1], initial=0))


class Live(NamedTuple):
    """Where each slot stands, int32 [S] each: its last token, that token's position, tokens it may still draw
    (0: idle)."""

    token: Any
    position: Any
    remaining: Any


class Slotwise(NamedTuple):
    """What a request fixes for its slot: how it draws, and its stop tokens int32 [S, stops]."""

    settings: Settings
    stops: Any


@dataclass(frozen=True, slots=True)
class Programs:
    """The compiled programs. `cache` and `pool` are consumed where they are returned.

    Attributes:
        decode: (params, cache, Live, Slotwise) -> cache, int32 [K, 3, S]: token (NONE where idle) and the bits
            of logprob and full_logprob.
        prefill: by row count: (params, cache, tokens [R, C], positions [R, C], slots [R]) -> cache. Rows may be of
            one slot; a position >= L writes nothing.
        load: (cache, pool, moves int32 [M, 3], bounds int32 [pieces + 1]) -> cache; a move is (slot, start, block),
            and those from bounds[i] up to bounds[i + 1] lie in piece i.
        store: (pool, cache, moves, bounds) -> pool.
    """

    decode: Compiled
    prefill: dict[int, Compiled]
    load: Compiled
    store: Compiled

    @property
    def count(self) -> int:
        return 3 + len(self.prefill)


def compile_programs(model: Model, params: Params, sizes: Sizes, layout: Layout, progress: Progress) -> Programs:
    """Compiles every program ahead of time, several at once; `progress(name, done, total)` is called after each."""
    cache, pool = layout.cache(cache_shapes(model, sizes)), layout.pool(pool_shapes(model, sizes))
    params = layout.params(params)
    axes = length_axes(model, sizes)
    page = layout.whole((ints(sizes.moves, 3), ints(len(sizes.pieces) + 1)))
    chunks = {r: layout.whole((ints(r, sizes.chunk), ints(r, sizes.chunk), ints(r))) for r in sizes.rows}
    wanted: dict[str | int, tuple[Callable[..., Any], int, tuple[Any, ...]]] = {
        "decode": (partial(decode, model, sizes), 1, (params, cache, *layout.whole(shapes_of(sizes)))),
        **{r: (partial(prefill, model), 1, (params, cache, *chunks[r])) for r in sizes.rows},
        "load": (partial(load, axes, sizes), 0, (cache, pool, *page)),
        "store": (partial(store, axes, sizes), 0, (pool, cache, *page)),
    }
    with ThreadPoolExecutor(len(wanted), thread_name_prefix="compile") as threads:
        started = {threads.submit(_compiled, layout, *what): name for name, what in wanted.items()}
        made: dict[str | int, Compiled] = {}
        for future in as_completed(started):
            name = started[future]
            made[name] = future.result()
            progress(f"prefill {name}" if isinstance(name, int) else name, len(made), len(wanted))
    return Programs(made["decode"], {r: made[r] for r in sizes.rows}, made["load"], made["store"])


def _compiled(layout: Layout, program: Callable[..., Any], donated: int, arguments: tuple[Any, ...]) -> Compiled:
    """The program, compiled for those arguments; what it consumes lies afterwards as it did before."""
    results = layout.results(program, donated, arguments)
    lowered = jax.jit(program, donate_argnums=donated, out_shardings=results).lower(*arguments)
    return lowered.compile(COMPILER_OPTIONS.get(jax.default_backend()))


def cache_shapes(model: Model, sizes: Sizes) -> tuple[Cache, ...]:
    """Abstract values of the cache, a piece at a time."""
    return tuple(jax.eval_shape(partial(model.init_cache, sizes.slots, length)) for length in sizes.pieces)


def pool_shapes(model: Model, sizes: Sizes) -> Cache:
    """Abstract values of the prefix cache's pool."""
    return jax.eval_shape(partial(model.init_cache, sizes.blocks, sizes.chunk))


def decode(
    model: Model, sizes: Sizes, params: Params, cache: tuple[Cache, ...], live: Live, slotwise: Slotwise
) -> tuple[tuple[Cache, ...], Array]:
    """Up to K steps for all slots, ending early when none has tokens left to draw."""

    first = jnp.where(live.remaining > 0, live.position, sizes.length)
    # For all steps at once: on a CPU it is a loop of many small operations, whatever their size.
    variates = uniform(slotwise.settings.seed, live.position + 1 + jnp.arange(sizes.steps)[:, None])

    def some_left(state: State) -> Array:
        return (state[0] < sizes.steps) & (state[1].remaining > 0).any()

    def step(state: State) -> State:
        index, live, fresh, out = state
        active = live.remaining > 0
        hidden, fresh = model.decode(params, live.token, first + index, cache, fresh, index)
        drawn = draw(model.logits(params, hidden), variates[index], slotwise.settings)
        stopped = (drawn.token[:, None] == slotwise.stops).any(axis=-1)
        row = jnp.stack([jnp.where(active, drawn.token, NONE), _bits(drawn.logprob), _bits(drawn.full_logprob)])
        left = jnp.where(stopped, 0, live.remaining - 1)
        after = Live(drawn.token, live.position + 1, jnp.where(active, left, 0))
        return index + 1, after, fresh, out.at[index].set(row)

    out = jnp.full((sizes.steps, 3, sizes.slots), NONE, jnp.int32)
    fresh = model.init_cache(sizes.slots, sizes.steps)
    _, _, fresh, out = lax.while_loop(some_left, step, (jnp.int32(0), live, fresh, out))
    return model.settle(cache, fresh, first, (out[:, 0] != NONE).sum(axis=0)), out


def prefill(
    model: Model, params: Params, cache: tuple[Cache, ...], tokens: Array, positions: Array, slots: Array
) -> tuple[Cache, ...]:
    """Writes R chunks of tokens into their slots; see `Programs.prefill`."""
    return model.forward_cached(params, tokens, positions, slots, cache)[1]


def load(
    axes: Sequence[int], sizes: Sizes, cache: tuple[Cache, ...], pool: Cache, moves: Array, bounds: Array
) -> tuple[Cache, ...]:
    """Copies blocks of the pool into slots; see `Programs.load`."""

    def move(start: int, index: Array, piece: Cache) -> Cache:
        slot, position, block = moves[index]
        return _copy(axes, sizes.chunk, piece, (slot, position - start), pool, (block, 0))

    return tuple(
        lax.fori_loop(bounds[i], bounds[i + 1], partial(move, start), piece)
        for i, (start, piece) in enumerate(zip(sizes.starts, cache, strict=True))
    )


def store(
    axes: Sequence[int], sizes: Sizes, pool: Cache, cache: tuple[Cache, ...], moves: Array, bounds: Array
) -> Cache:
    """Copies blocks of slots into the pool; see `Programs.store`."""

    def move(piece: Cache, start: int, index: Array, pool: Cache) -> Cache:
        slot, position, block = moves[index]
        return _copy(axes, sizes.chunk, pool, (block, 0), piece, (slot, position - start))

    for i, (start, piece) in enumerate(zip(sizes.starts, cache, strict=True)):
        pool = lax.fori_loop(bounds[i], bounds[i + 1], partial(move, piece, start), pool)
    return pool


def _copy(axes: Sequence[int], chunk: int, into: Cache, to: Place, source: Cache, place: Place) -> Cache:
    """`into` with the `chunk` positions at `place` of `source` written at `to`; a place is (row, position)."""
    targets, structure = jax.tree.flatten(into)
    copied = []
    for axis, target, leaf in zip(axes, targets, jax.tree.leaves(source), strict=True):
        size = [1 if i == 0 else chunk if i == axis else n for i, n in enumerate(leaf.shape)]
        block = lax.dynamic_slice(leaf, _corner(axis, leaf.ndim, place), size)
        copied.append(lax.dynamic_update_slice(target, block, _corner(axis, leaf.ndim, to)))
    return jax.tree.unflatten(structure, copied)


def _corner(axis: int, rank: int, place: Place) -> list[Any]:
    return [place[0] if i == 0 else place[1] if i == axis else 0 for i in range(rank)]


def _bits(values: Array) -> Array:
    return lax.bitcast_convert_type(values, jnp.int32)


def length_axes(model: Model, sizes: Sizes) -> list[int]:
    """The axis of each cache leaf that counts positions, in the order of the leaves.

    Raises:
        EngineError: a leaf has no such axis, so that its prefixes can't be shared.
    """
    short = jax.eval_shape(partial(model.init_cache, sizes.slots, sizes.chunk))
    longer = jax.eval_shape(partial(model.init_cache, sizes.slots, sizes.chunk + 1))

    def axis(a: jax.ShapeDtypeStruct, b: jax.ShapeDtypeStruct) -> int:
        found = [i for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if (x, y) == (sizes.chunk, x + 1)]
        if len(found) != 1:
            raise EngineError(
                f"init_cache gives a leaf of shape {a.shape} for length {sizes.chunk} and {b.shape} for one more; "
                "expected exactly one axis of that length in every leaf"
            )
        return found[0]

    return [axis(a, b) for a, b in zip(jax.tree.leaves(short), jax.tree.leaves(longer), strict=True)]


def shapes_of(sizes: Sizes) -> tuple[Live, Slotwise]:
    """Abstract values of decode's last two arguments."""
    each, real = ints(sizes.slots), jax.ShapeDtypeStruct((sizes.slots,), np.float32)
    seed = jax.ShapeDtypeStruct((sizes.slots, 2), np.uint32)
    return Live(each, each, each), Slotwise(Settings(seed, real, each, real, real), ints(sizes.slots, sizes.stops))


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int32)
