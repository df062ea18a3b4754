"""One algorithm's way through a step: its samples, its micro-batches, its sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from tunix_core.config import CreditConfig
from tunix_core.contracts import Algorithm, Outcome
from tunix_core.trainer.critic import CriticLearner
from tunix_core.trainer.outcomes import decide
from tunix_core.trainer.packing import Packed, Packer, Sample, Unit, fresh_tokens
from tunix_core.trainer.parts import Parts
from tunix_core.trainer.steps import Accumulate, Sums
from tunix_core.types import Batch

Arrays = dict[str, Any]
Measure = Callable[[Arrays], Any]  # a batch's arrays -> [R, T]
Part = list[tuple[Batch, Arrays]]  # the micro-batches of one update


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One trajectory: what is packed, and what its advantages are decided from."""

    sample: Sample
    outcome: Outcome


Held = tuple[Sequence[Member], CreditConfig]  # a group, and how it is credited


@dataclass(slots=True, eq=False)
class Lane:
    """One algorithm's way through a step.

    Attributes:
        weight: scales its share of the gradient.
        packer, idle: what is to be computed, and samples without a gradient, which are only counted.
        measures: what its loss needs that is computed from a batch and parameters, by its name there.
        waits: its samples are held until the step is whole, and then passed over in minibatches.
        adaptive: the algorithm's adaptive numbers now.
        groups: taken in this step.
    """

    label: str
    algorithm: Algorithm
    weight: float
    functions: Accumulate
    sums: Sums
    packer: Packer
    idle: Packer
    measures: Mapping[str, Measure]
    waits: bool
    critic: CriticLearner | None
    adaptive: dict[str, float]
    groups: int = 0
    held: list[Held] = field(default_factory=list)

    def arrays(self, batch: Batch, version: int) -> Arrays:
        """The batch as the loss sees it, short of what is measured."""
        return {**arrays_of(batch, version), **{name: np.float32(x) for name, x in self.adaptive.items()}}

    def measured(self, batch: Batch, version: int) -> Arrays:
        """The batch as the loss sees it."""
        arrays = self.arrays(batch, version)
        return arrays | {name: measure(arrays) for name, measure in self.measures.items()}

    def add(self, parts: Parts, arrays: Arrays) -> None:
        self.sums = self.functions.add(self.sums, parts, arrays)
        if self.critic:
            self.critic.add(arrays)

    def count(self, arrays: Arrays) -> None:
        self.sums = self.sums._replace(denominator=self.functions.count(self.sums.denominator, arrays))

    def units(self, samples: Sequence[Sample]) -> list[Unit]:
        """The samples of one group by what must share a micro-batch."""
        return self.packer.units(samples, self.algorithm.together)

    def close(self, minibatches: int, version: int) -> tuple[list[Part], list[Outcome]]:
        """Decides the advantages of all that is held, now that the step is whole.

        Args:
            minibatches: the groups are shared out to so many.

        Returns:
            What each of them adds, and the outcomes.
        """
        held, self.held = self.held, []
        parts = [self._packed(held[start::minibatches], version) for start in range(minibatches)]
        flat = [pair for part in parts for pair in part]
        judged = self._judged(held, _gathered(flat, "reference_logp"), _gathered(flat, "old_values"))
        for packed, arrays in flat:
            arrays["advantages"] = packed.scatter({s: judged[s].advantages for s in packed.places})
            if self.critic:
                arrays["returns"] = packed.scatter({s: judged[s].returns for s in packed.places})
        return [[(packed.batch, arrays) for packed, arrays in part] for part in parts], list(judged.values())

    def state(self) -> dict[str, Any]:
        """What goes on from step to step besides parameters and optimizer; {} where nothing does."""
        found: dict[str, Any] = {name: jnp.float32(value) for name, value in self.adaptive.items()}
        return found | ({"critic": self.critic.state} if self.critic else {})

    def restore(self, state: Mapping[str, Any]) -> None:
        self.adaptive = {name: float(state[name]) for name in self.adaptive}
        if self.critic:
            self.critic.state = state["critic"]

    def _packed(self, groups: Sequence[Held], version: int) -> list[tuple[Packed, Arrays]]:
        units = [unit for members, _ in groups for unit in self.units([m.sample for m in members])]
        return [(packed, self.measured(packed.batch, version)) for packed in self.packer.pack(units)]

    def _judged(
        self, held: Sequence[Held], reference: Mapping[Sample, np.ndarray], values: Mapping[Sample, np.ndarray]
    ) -> dict[Sample, Outcome]:
        samples, outcomes = [m.sample for members, _ in held for m in members], list[Outcome]()
        for members, credit in held:
            outcomes += decide(self.algorithm, [_seen(m, reference, values) for m in members], credit)
        if self.algorithm.over_step and outcomes:
            outcomes = list(self.algorithm.over_step(outcomes))
        return dict(zip(samples, outcomes, strict=True))


def arrays_of(batch: Batch, version: int) -> Arrays:
    """What a loss is given of any batch: the fields of types.Batch, "fresh" and "staleness"."""
    found = {name: getattr(batch, name) for name in Batch.__slots__ if name != "sequences"}
    late = np.where(batch.versions >= 0, version - batch.versions, 0).astype(np.int32)
    return {**found, "fresh": fresh_tokens(batch, version), "staleness": late}


def _gathered(batches: Sequence[tuple[Packed, Arrays]], name: str) -> dict[Sample, np.ndarray]:
    """What the batches have under this name, by sample; nothing where they have none."""
    found = dict[Sample, np.ndarray]()
    for packed, arrays in batches:
        if name in arrays:
            found |= packed.gather(np.asarray(arrays[name]))
    return found


def _seen(member: Member, reference: Mapping[Sample, np.ndarray], values: Mapping[Sample, np.ndarray]) -> Outcome:
    outcome = member.outcome
    return replace(
        outcome,
        reference_logp=reference.get(member.sample, outcome.reference_logp),
        values=values.get(member.sample, outcome.values),
    )
