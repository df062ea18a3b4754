"""The learner: groups in, new parameters out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tunix_core.config import SuiteConfig, TrainerConfig
from tunix_core.contracts import Adapters, Algorithm, Layout, Model, Params, Weights
from tunix_core.errors import UsageError
from tunix_core.trainer.critic import CriticLearner
from tunix_core.trainer.health import Health, Keep, drop
from tunix_core.trainer.lanes import Arrays, Lane, Measure, Member, Part, arrays_of
from tunix_core.trainer.logprobs import token_logprobs
from tunix_core.trainer.measures import checked_reference, logprobs, reference_measure, shown
from tunix_core.trainer.memory import IN_AN_UPDATE, bytes_of, gathered_bytes, step_bytes
from tunix_core.trainer.optimizer import make_stepping
from tunix_core.trainer.outcomes import decide, outcome_of
from tunix_core.trainer.packing import Packer, Sample, empty_batch
from tunix_core.trainer.parts import make_parts
from tunix_core.trainer.placing import Placing
from tunix_core.trainer.steps import Report, forward_arrays, make_accumulate
from tunix_core.trainer.tally import Tally, explained_variance, losses, means, updates
from tunix_core.types import Batch, Group


@dataclass(frozen=True, slots=True, eq=False)
class TrainerState:
    """What a trainer is between two steps.

    Attributes:
        params: pytree of arrays, what is trained: of adapters these alone.
        optimizer: pytree of arrays; what optax keeps, and how many updates it took; critics and adaptive
            numbers, where there are any.
        version: the policy version of `params`.
    """

    params: Params
    optimizer: Any
    version: int


class Trainer:
    """Accumulates groups into one gradient and steps an optimizer; satisfies contracts.Learner.

    Not for use from two threads at once. Gradients are computed as groups come, unless an algorithm has
    to see the whole step, or a step has several updates: then `apply` computes them.

    Args:
        model: the policy as pure functions.
        params: its weights; never written to.
        algorithms: each suite's algorithm. Suites that share one, and a learning weight, share its denominator.
        config: optimizer, schedule, and the shape of a micro-batch.
        steps: of the whole run, for the schedule.
        suites: how each suite is credited, and how much it weighs; the defaults where not given.
        temperatures: at which each suite samples; 1 where not given.
        reference: the model, with its weights, that an algorithm's `needs_reference` means; None: the
            policy with `params`.
        adapters: trained in the place of `params`, which then stay as they are.
        layout: how parameters, optimizer state, sums and batches lie on a mesh; None: the default device.
        reference_layout: the same for the reference; None: `layout`.
        keep: given the version and the groups of a step whose gradient was not finite.
        version: the policy version of `params`.

    Raises:
        UsageError: an optimizer there is not, a temperature that is not positive, a reference of another
            vocabulary, or an algorithm that means nothing with the config's `old_logp`.
    """

    def __init__(
        self,
        model: Model,
        params: Params,
        algorithms: Mapping[str, Algorithm],
        config: TrainerConfig,
        *,
        steps: int,
        suites: Sequence[SuiteConfig] = (),
        temperatures: Mapping[str, float] | None = None,
        reference: tuple[Model, Params] | None = None,
        adapters: Adapters | None = None,
        layout: Layout | None = None,
        reference_layout: Layout | None = None,
        keep: Keep = drop,
        version: int = 0,
    ) -> None:
        self.version = version
        self._config, self._steps, self._placing = config, steps, Placing(layout)
        self._suites = {suite: SuiteConfig("", suite) for suite in algorithms} | {s.name: s for s in suites}
        self._temperatures = _checked(temperatures or {})
        self._model = model if adapters is None else adapters.model
        params = self._placing.params(params)
        parts = make_parts(params, config.master, adapters)
        self._parts = parts.having(self._placing.params(parts.trained))
        elsewhere = self._placing if reference_layout is None else Placing(reference_layout)
        reference = checked_reference(model, reference) or (model, params)
        if any(algorithm.needs_reference for algorithm in algorithms.values()):  # else the first weights may go
            self._reference = self._brought(reference_measure(*reference, elsewhere), elsewhere)
        self._shown = shown(self._parts, adapters, self._placing)
        self._lanes = self._make_lanes(algorithms)
        labels = [lane.label for lane in self._distinct()]
        self._optimizer, self._update = make_stepping(config, steps, self._parts.trained, labels, self._placing)
        self._tally, self._health = Tally(), Health(config, keep)

    def accumulate(self, group: Group) -> None:
        """Takes a group's survivors; computes gradients whenever a micro-batch is full.

        A sample with a branch longer than a row is left out and counted, never cut; its score still
        counts in its group's statistics, unless these wait for the whole step.
        """
        lane, credit = self._lanes[group.suite], self._suites[group.suite].credit
        lane.groups += 1
        self._tally.groups += 1
        self._health.take(group)
        members = self._members(group, lane)
        if lane.waits:
            kept = [m for m in members if m.outcome.tokens and self._fits(lane, m.sample)]
            lane.held.append((kept, credit))
            self._tally.sample_tokens += sum(m.sample.tokens for m in kept)
            return
        outcomes = decide(lane.algorithm, [m.outcome for m in members], credit)
        self._tally.outcomes(outcomes)
        samples = [replace(m.sample, advantage=o.advantages) for m, o in zip(members, outcomes, strict=True)]
        self._take(lane, [sample for sample in samples if self._fits(lane, sample)])

    def apply(self) -> Mapping[str, float]:
        """Flushes what is pending, takes the step's updates, and gives the step's metrics.

        `version` goes up by one in any case. Where no token was trained or the gradient is not
        finite, the parameters stay as they are and the metric "skipped" is 1.

        Raises:
            NotFinite: the gradient of several steps in a row was not finite.
            Disagreement: trainer and engine give the same tokens other log-probabilities.
        """
        metrics = dict[str, float]()
        parts: list[list[tuple[Lane, Part]]] = [[] for _ in range(self._config.minibatches)]
        for lane in self._distinct():
            self._flush(lane)
            metrics |= self._close(lane, parts)
        reports = self._pass_over(parts)
        metrics |= self._adapt(reports)
        shares, tally, self._tally = self._shares(reset=True), self._tally, Tally()
        counts = tally.metrics(self._config.rows * self._config.row_tokens)
        found = {**losses(reports, shares), **means(reports), **updates(reports), **metrics, **counts}
        found |= self._health.check(self.version, reports, found)
        self.version += 1
        return found

    def weights(self) -> Weights:
        """The newest parameters, or adapters alone, and their version. What was given before stays valid."""
        return Weights(self.version, self._shown(self._parts.trained))

    def state(self) -> TrainerState:
        """For a checkpoint, between `apply` and the next `accumulate`.

        Groups accumulated since the last `apply` are not in it: they count as untrained. The
        optimizer's arrays are valid until the next `apply`.
        """
        params, optimizer = self._placing.gathered(self._state())
        return TrainerState(params, optimizer, self.version)

    def _state(self) -> tuple[Params, Any]:
        lanes = {f"lane{i}": lane.state() for i, lane in enumerate(self._distinct()) if lane.state()}
        return self._parts.trained, (*self._optimizer, lanes) if lanes else self._optimizer

    def restore(self, state: TrainerState) -> None:
        """Goes on from a state of the same shapes."""
        params, (optimizer, taken, *lanes) = self._placing.like(self._state(), (state.params, state.optimizer))
        self._parts, self._optimizer = self._parts.having(params), (optimizer, taken)
        for i, lane in enumerate(self._distinct()):
            if lane.state():
                lane.restore(lanes[0][f"lane{i}"])
        self.version = state.version

    def memory(self) -> dict[str, int]:
        """Bytes that one device will hold, by what they are for: known before anything is compiled. Activations are
        those of a whole micro-batch's rows on the device, as if nothing else were split."""
        config, parts = self._config, self._parts
        batch = forward_arrays(arrays_of(empty_batch(config.rows, config.row_tokens), 0))

        def value(trained: Params) -> jax.Array:
            return jnp.sum(token_logprobs(self._model, parts.having(trained).whole, batch, remat=config.remat)[0])

        lanes, trained = self._distinct(), bytes_of(parts.trained)
        kept, largest = (n // self._placing.row_share(config.rows) for n in step_bytes(value, parts.trained))
        return {
            "parameters": bytes_of(parts),
            "their successors": trained,
            "gradients": sum(bytes_of(lane.sums.gradient) for lane in lanes),
            "optimizer": bytes_of(self._optimizer),
            "critics": sum(lane.critic.bytes() for lane in lanes if lane.critic),
            "activations": kept,
            "largest array": largest,
            "gathered over fsdp": gathered_bytes(parts) + gathered_bytes(parts.trained),  # with their gradients
            # A micro-batch's own gradient; or, when the activations are gone, what an update has in hand.
            "gradients in passing": max(trained, IN_AN_UPDATE * trained - kept - largest),
            "a checkpoint's copy": bytes_of(self._state()) if jax.default_backend() == "cpu" else 0,
        }

    def warm_up(self) -> None:
        """Compiles what a step runs; to be called before the first group. Changes nothing."""
        parts, padding = self._parts, empty_batch(self._config.rows, self._config.row_tokens)
        for lane in self._distinct():
            arrays = lane.measured(padding, self.version)
            if lane.critic:
                arrays["returns"] = padding.advantages
            lane.add(parts, arrays)
            if lane.algorithm.idle_at_zero and not lane.waits:
                lane.count(lane.arrays(padding, self.version))
        jax.block_until_ready(self._step({lane.label: 0.0 for lane in self._distinct()}))
        self._parts = parts

    # ---- lanes ----
    def _make_lanes(self, algorithms: Mapping[str, Algorithm]) -> dict[str, Lane]:
        made: dict[tuple[Algorithm, float], Lane] = {}
        found: dict[str, Lane] = {}
        for suite, algorithm in algorithms.items():
            key = algorithm, self._suites[suite].learning_weight
            if key not in made:
                taken = {lane.label for lane in made.values()}
                label = algorithm.id if algorithm.id not in taken else f"{algorithm.id}@{suite}"
                made[key] = self._make_lane(label, *key)
            found[suite] = made[key]
        return found

    def _make_lane(self, label: str, algorithm: Algorithm, weight: float) -> Lane:
        config = self._config
        if algorithm.needs_proximal and config.old_logp == "behaviour":
            raise UsageError(
                f"{algorithm.id} weighs tokens by exp(old_logp − behaviour_logp), which is 1 with "
                'trainer.old_logp = "behaviour": set it to "proximal", or leave the correction out'
            )
        critic, adaptive = None, {each.name: each.start for each in algorithm.adaptive}
        how = config.old_logp, config.remat, self._placing
        functions = make_accumulate(self._model, algorithm, self._parts, *how)
        padding = empty_batch(config.rows, config.row_tokens)
        computed = ("reference_logp", "old_logp", "old_values", "returns")
        shapes = arrays_of(padding, 0) | dict.fromkeys(computed, padding.behaviour_logp) | adaptive
        if algorithm.critic:
            how = config, self._steps, shapes, self._placing
            critic = CriticLearner(self._model, algorithm.critic, self._parts.whole, *how)
        return Lane(
            label=label,
            algorithm=algorithm,
            weight=weight,
            functions=functions,
            sums=functions.zeros(shapes),
            packer=Packer(config.rows, config.row_tokens, config.share_prefix),
            idle=Packer(config.rows, config.row_tokens),
            measures=self._measures(algorithm, critic),
            waits=algorithm.over_step is not None or self._several_updates,
            critic=critic,
            adaptive=adaptive,
        )

    def _measures(self, algorithm: Algorithm, critic: CriticLearner | None) -> dict[str, Measure]:
        found: dict[str, Measure] = {}
        if algorithm.needs_reference:
            found["reference_logp"] = self._reference
        if self._config.old_logp == "proximal" and self._several_updates:
            measure = logprobs(self._model, self._placing)
            found["old_logp"] = lambda arrays: measure(self._parts, arrays)
        if critic:
            found["old_values"] = critic.values
        return found

    def _brought(self, measure: Measure, placing: Placing) -> Measure:
        """What is measured on other devices, by way of the host."""
        return measure if placing == self._placing else lambda arrays: np.asarray(measure(arrays))

    @property
    def _several_updates(self) -> bool:
        return self._config.epochs * self._config.minibatches > 1

    def _distinct(self) -> list[Lane]:
        return list({lane.label: lane for lane in self._lanes.values()}.values())

    # ---- groups in ----
    def _members(self, group: Group, lane: Lane) -> list[Member]:
        temperature = self._temperatures.get(group.suite, 1.0)
        env_weight = sum(part.weight for part in self._suites[group.suite].rewards if part.id == "env")
        found = []
        for trajectory in group.survivors:
            sample = Sample.of(trajectory, 0.0, temperature)
            found.append(Member(sample, outcome_of(trajectory, sample.branches, env_weight, lane.adaptive)))
        return found

    def _fits(self, lane: Lane, sample: Sample) -> bool:
        fits = lane.packer.fits(sample)
        self._tally.sequences += fits
        self._tally.refused += not fits
        return fits

    def _take(self, lane: Lane, samples: Sequence[Sample]) -> None:
        active = list[Sample]()
        for sample in samples:
            if lane.algorithm.idle_at_zero and not np.any(sample.advantage):
                self._tally.idle_tokens += sample.trained_tokens
                self._count(lane, lane.idle.add(sample))
            else:
                active.append(sample)
        self._tally.sample_tokens += sum(sample.tokens for sample in active)
        for unit in lane.units(active):
            self._add(lane, lane.packer.add(*unit))

    def _flush(self, lane: Lane) -> None:
        for batch in lane.packer.flush():
            self._add(lane, batch)
        for batch in lane.idle.flush():
            self._count(lane, batch)

    def _add(self, lane: Lane, batch: Batch | None) -> None:
        if batch is not None:
            self._tally.batch(batch, self.version)
            lane.add(self._parts, lane.measured(batch, self.version))
            # Its thread has nothing else to do, and whoever times this call wants to know when it computed.
            jax.block_until_ready(lane.sums.denominator)

    def _count(self, lane: Lane, batch: Batch | None) -> None:
        if batch is not None:
            lane.count(lane.arrays(batch, self.version))

    # ---- the step ----
    def _close(self, lane: Lane, parts: list[list[tuple[Lane, Part]]]) -> dict[str, float]:
        """Shares out what the lane held to the step's updates."""
        if not lane.waits:
            return {}
        own, outcomes = lane.close(len(parts), self.version)
        self._tally.outcomes(outcomes)
        for part, mine in zip(parts, own, strict=True):
            part.append((lane, mine))
            for batch, _ in mine:
                self._tally.batch(batch, self.version)
        return {"explained_variance": explained_variance(outcomes)} if lane.critic and outcomes else {}

    def _pass_over(self, parts: list[list[tuple[Lane, Part]]]) -> list[Report]:
        """Adds what was held, and updates after each part, `epochs` times."""
        reports = list[Report]()
        for part in parts * self._config.epochs:
            if reports and not any(mine for _, mine in part):
                continue  # fewer groups than minibatches
            for lane, mine in part:
                for _, arrays in mine:
                    lane.add(self._parts, arrays if not reports else _no_longer_fresh(arrays))
            reports.append(jax.device_get(self._step(self._shares())))
        return reports

    def _step(self, shares: Mapping[str, float]) -> Report:
        lanes = self._distinct()
        sums = {lane.label: lane.sums for lane in lanes}
        state, taken = self._optimizer
        params, state, taken, sums, report = self._update(self._parts.trained, state, taken, sums, shares)
        self._parts, self._optimizer = self._parts.having(params), (state, taken)
        for lane in lanes:
            lane.sums = sums[lane.label]
            if lane.critic:
                report.metrics[lane.label].update(lane.critic.update())
        return report

    def _adapt(self, reports: Sequence[Report]) -> dict[str, float]:
        """Moves the adaptive numbers on; gives what they were in this step."""
        used = dict[str, float]()
        for lane in self._distinct():
            used |= {f"{name}/{lane.label}": value for name, value in lane.adaptive.items()}
            if any(report.denominators[lane.label] > 0 for report in reports):
                seen = means(reports, lane.label)
                moved = {each.name: each.update(lane.adaptive[each.name], seen) for each in lane.algorithm.adaptive}
                lane.adaptive = {name: float(np.float32(x)) for name, x in moved.items()}  # as a checkpoint keeps it
        return used

    def _shares(self, reset: bool = False) -> dict[str, float]:
        lanes = self._distinct()
        total = max(sum(lane.groups for lane in lanes), 1)
        shares = {lane.label: lane.weight * lane.groups / total for lane in lanes}
        if reset:
            for lane in lanes:
                lane.groups = 0
        return shares


def _checked(temperatures: Mapping[str, float]) -> dict[str, float]:
    for suite, temperature in temperatures.items():
        if not temperature > 0:
            raise UsageError(
                f"suite {suite!r} samples at temperature {temperature}; what is sampled greedily has no "
                "log-probability to train on: give it a temperature above 0"
            )
    return dict(temperatures)


def _no_longer_fresh(arrays: Arrays) -> Arrays:
    """After an update no token was sampled by the parameters as they are."""
    return arrays | {"fresh": np.zeros_like(arrays["fresh"])}
