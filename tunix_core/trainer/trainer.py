"""The learner: groups in, new parameters out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tunix_core.config import TrainerConfig
from tunix_core.contracts import Algorithm, Model, Params, Weights
from tunix_core.errors import UsageError
from tunix_core.trainer.optimizer import make_optimizer, make_schedule
from tunix_core.trainer.packing import Packer, Sample, empty_batch, fresh_tokens
from tunix_core.trainer.steps import Accumulate, Report, Sum, Sums, make_accumulate, make_update
from tunix_core.types import Batch, Group, staleness


@dataclass(frozen=True, slots=True, eq=False)
class TrainerState:
    """What a trainer is between two steps.

    Attributes:
        params: pytree of arrays.
        optimizer: pytree of arrays; what optax keeps, and how many steps it took.
        version: the policy version of `params`.
    """

    params: Params
    optimizer: Any
    version: int


@dataclass(slots=True, eq=False)
class _Lane:
    """One algorithm's way through a step: its open micro-batches and its sums.

    `idle` holds the samples without a gradient, which are only counted.
    """

    label: str
    algorithm: Algorithm
    packer: Packer
    idle: Packer
    functions: Accumulate
    sums: Sums
    groups: int = 0


@dataclass(slots=True)
class _Tally:
    """What is counted on the host during a step."""

    groups: int = 0
    sequences: int = 0
    refused: int = 0
    batches: int = 0
    packed_tokens: int = 0
    trained_tokens: int = 0
    idle_tokens: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0

    def batch(self, batch: Batch, version: int) -> None:
        self.batches += 1
        self.packed_tokens += int((batch.segment_ids > 0).sum())
        for sampled, tokens in zip(*np.unique(batch.versions[batch.mask > 0], return_counts=True), strict=True):
            late = staleness(version, int(sampled))
            self.trained_tokens += int(tokens)
            self.staleness_sum += int(tokens) * late
            self.staleness_max = max(self.staleness_max, late)


class Trainer:
    """Accumulates groups into one gradient and steps an optimizer; satisfies contracts.Learner.

    Not for use from two threads at once.

    Args:
        model: the policy as pure functions.
        params: its weights; never written to.
        algorithms: each suite's algorithm. Suites that share one share its denominator.
        config: optimizer, schedule, and the shape of a micro-batch.
        steps: optimizer steps of the whole run, for the schedule.
        temperatures: at which each suite samples; 1 where not given.
        version: the policy version of `params`.

    Raises:
        UsageError: an optimizer there is not, or a temperature that is not positive.
    """

    def __init__(
        self,
        model: Model,
        params: Params,
        algorithms: Mapping[str, Algorithm],
        config: TrainerConfig,
        *,
        steps: int,
        temperatures: Mapping[str, float] | None = None,
        version: int = 0,
    ) -> None:
        self.version = version
        self._config = config
        self._temperatures = _checked(temperatures or {})
        self._params = jax.tree.map(jnp.asarray, params)
        schedule = make_schedule(config, steps)
        optimizer = make_optimizer(config, schedule)
        self._optimizer = jax.jit(optimizer.init)(self._params), jnp.zeros((), jnp.int32)
        self._update = make_update(optimizer, schedule)
        self._lanes = self._make_lanes(model, algorithms)
        self._tally = _Tally()

    def accumulate(self, group: Group) -> None:
        """Takes a group's survivors; computes gradients whenever a micro-batch is full.

        A sample with a branch longer than a row is left out and counted, never cut; its score still
        counts in its group's statistics.
        """
        lane, survivors = self._lanes[group.suite], group.survivors
        lane.groups += 1
        self._tally.groups += 1
        scores = np.array([t.score.value for t in survivors if t.score], np.float64)
        advantages = lane.algorithm.advantages(scores) if len(scores) else scores
        temperature = self._temperatures.get(group.suite, 1.0)
        for trajectory, advantage in zip(survivors, advantages, strict=True):
            self._take(lane, Sample.of(trajectory, float(advantage), temperature))

    def apply(self) -> Mapping[str, float]:
        """Flushes what is pending, takes the optimizer step, and gives the step's metrics.

        `version` goes up by one in any case. Where no token was trained or the gradient is not
        finite, the parameters stay as they are and the metric "skipped" is 1.
        """
        for lane in self._distinct():
            for batch in lane.packer.flush():
                self._add(lane, batch)
            for batch in lane.idle.flush():
                self._count(lane, batch)
        report: Report = jax.device_get(self._step(self._shares()))
        tally, self._tally = self._tally, _Tally()
        self.version += 1
        return {**_losses(report, self._shares(reset=True)), **_means(report), **self._counts(tally)}

    def weights(self) -> Weights:
        """The newest parameters and their version. What was given before stays valid."""
        return Weights(self.version, self._params)

    def state(self) -> TrainerState:
        """For a checkpoint, between `apply` and the next `accumulate`.

        Groups accumulated since the last `apply` are not in it: they count as untrained. The
        optimizer's arrays are valid until the next `apply`.
        """
        return TrainerState(self._params, self._optimizer, self.version)

    def restore(self, state: TrainerState) -> None:
        """Goes on from a state of the same shapes."""
        self._params = jax.tree.map(jnp.asarray, state.params)
        self._optimizer = jax.tree.map(jnp.asarray, state.optimizer)
        self.version = state.version

    def warm_up(self) -> None:
        """Compiles what a step runs; to be called before the first group. Changes nothing."""
        params = self._params
        for lane in self._distinct():
            padding = empty_batch(self._config.rows, self._config.row_tokens)
            self._compute(lane, padding)
            self._count(lane, padding)
        jax.block_until_ready(self._step({lane.label: 0.0 for lane in self._distinct()}))
        self._params = params

    def _make_lanes(self, model: Model, algorithms: Mapping[str, Algorithm]) -> dict[str, _Lane]:
        rows, row_tokens = self._config.rows, self._config.row_tokens
        made: dict[Algorithm, _Lane] = {}
        for suite, algorithm in algorithms.items():
            if algorithm not in made:
                functions = make_accumulate(model, algorithm)
                taken = {lane.label for lane in made.values()}
                label = algorithm.id if algorithm.id not in taken else f"{algorithm.id}@{suite}"
                sums = functions.zeros(self._params, _arrays(empty_batch(rows, row_tokens), self.version))
                packers = Packer(rows, row_tokens), Packer(rows, row_tokens)
                made[algorithm] = _Lane(label, algorithm, *packers, functions, sums)
        return {suite: made[algorithm] for suite, algorithm in algorithms.items()}

    def _distinct(self) -> list[_Lane]:
        return list({lane.label: lane for lane in self._lanes.values()}.values())

    def _take(self, lane: _Lane, sample: Sample) -> None:
        if not lane.packer.fits(sample):
            self._tally.refused += 1
            return
        self._tally.sequences += 1
        if lane.algorithm.idle_at_zero and sample.advantage == 0:
            self._tally.idle_tokens += sample.trained_tokens
            self._count(lane, lane.idle.add(sample))
        else:
            self._add(lane, lane.packer.add(sample))

    def _add(self, lane: _Lane, batch: Batch | None) -> None:
        if batch is not None:
            self._tally.batch(batch, self.version)
            self._compute(lane, batch)

    def _compute(self, lane: _Lane, batch: Batch) -> None:
        lane.sums = lane.functions.add(lane.sums, self._params, _arrays(batch, self.version))

    def _count(self, lane: _Lane, batch: Batch | None) -> None:
        if batch is not None:
            counted = lane.functions.count(lane.sums.denominator, _arrays(batch, self.version))
            lane.sums = lane.sums._replace(denominator=counted)

    def _step(self, shares: Mapping[str, float]) -> Report:
        lanes = self._distinct()
        sums = {lane.label: lane.sums for lane in lanes}
        state, taken = self._optimizer
        self._params, state, taken, sums, report = self._update(self._params, state, taken, sums, shares)
        self._optimizer = state, taken
        for lane in lanes:
            lane.sums = sums[lane.label]
        return report

    def _shares(self, reset: bool = False) -> dict[str, float]:
        lanes = self._distinct()
        total = max(sum(lane.groups for lane in lanes), 1)
        shares = {lane.label: lane.groups / total for lane in lanes}
        if reset:
            for lane in lanes:
                lane.groups = 0
        return shares

    def _counts(self, tally: _Tally) -> dict[str, float]:
        room = tally.batches * self._config.rows * self._config.row_tokens
        return {
            "groups": tally.groups,
            "trained_sequences": tally.sequences,
            "trained_tokens": tally.trained_tokens,
            "idle_tokens": tally.idle_tokens,
            "refused_sequences": tally.refused,
            "micro_batches": tally.batches,
            "fill": tally.packed_tokens / max(room, 1),
            "staleness_mean": tally.staleness_sum / max(tally.trained_tokens, 1),
            "staleness_max": tally.staleness_max,
        }


def _checked(temperatures: Mapping[str, float]) -> dict[str, float]:
    for suite, temperature in temperatures.items():
        if not temperature > 0:
            raise UsageError(
                f"suite {suite!r} samples at temperature {temperature}; what is sampled greedily has no "
                "log-probability to train on: give it a temperature above 0"
            )
    return dict(temperatures)


def _arrays(batch: Batch, version: int) -> dict[str, np.ndarray]:
    """The batch as a loss sees it, short of what the step computes."""
    arrays = {name: getattr(batch, name) for name in Batch.__slots__ if name != "sequences"}
    return {**arrays, "fresh": fresh_tokens(batch, version)}


def _losses(report: Report, shares: Mapping[str, float]) -> dict[str, float]:
    each = {k: _ratio((report.numerators[k], report.denominators[k])) for k in shares}
    return {"loss": sum(shares[k] * each[k] for k in shares), **{f"loss/{k}": loss for k, loss in each.items()}}


def _means(report: Report) -> dict[str, float]:
    """Means over all tokens of the step; a metric that several algorithms have is pooled."""
    pooled: dict[str, Sum] = {}
    for metrics in report.metrics.values():
        for name, (total, count) in metrics.items():
            before = pooled.get(name, (0.0, 0.0))
            pooled[name] = before[0] + total, before[1] + count  # type: ignore[assignment]
    return {
        **{name: _ratio(pair) for name, pair in pooled.items()},
        "agreement_max": float(report.gap_max),
        "grad_norm": float(report.gradient_norm),
        "learning_rate": float(report.learning_rate),
        "skipped": float(not report.applied),
    }


def _ratio(pair: tuple[Any, Any]) -> float:
    total, count = pair
    return float(total) / float(count) if count else 0.0
