"""What learns: algorithms and the trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from tunix_core.contracts.inference import Model, Params, Weights
from tunix_core.types import Group


class LossTerms(NamedTuple):
    """A loss as sums, so that micro-batches add up: loss = numerator / denominator over the step.

    `metrics` maps a name to (sum, count), both scalars; `maxima` a name to a scalar >= 0, of which the
    step reports the largest.
    """

    numerator: Any
    denominator: Any
    metrics: Mapping[str, tuple[Any, Any]]
    maxima: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One trajectory as its advantages are decided from. Arrays are [T]: its trained tokens, in order.

    Attributes:
        group: the index of its group within its suite.
        score: what it scored.
        parts: the parts of the score that have a value, by name.
        turns: int32, the turn each token belongs to.
        rewards: float64; what a turn earned stands at its last token, and all of them sum to the score.
        behaviour_logp: float32.
        advantages: float64; zeros until decided.
        reference_logp: float32, where the algorithm has `over_step` and `needs_reference`; else empty.
        values: float32, the critic's before the step, where there is one; else empty.
        returns: float64, what the critic is to learn; `over_step` puts it in.
        adaptive: the algorithm's adaptive numbers, by name.
    """

    suite: str
    group: int
    score: float
    parts: Mapping[str, float]
    turns: np.ndarray
    rewards: np.ndarray
    behaviour_logp: np.ndarray
    advantages: np.ndarray
    reference_logp: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    values: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    returns: np.ndarray = field(default_factory=lambda: np.empty(0, np.float64))
    adaptive: Mapping[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """How many tokens are trained."""
        return len(self.turns)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """A number that follows the run. A loss finds it in its batch by name, advantages in `Outcome.adaptive`.

    Attributes:
        update: (its value, the step's metrics of this algorithm) -> its next value.
    """

    name: str
    start: float
    update: Callable[[float, Mapping[str, float]], float]


@dataclass(frozen=True, slots=True)
class Critic:
    """How the values of states are learned, by a network of its own.

    Attributes:
        loss: (values float32 [R, T], batch with "returns" and "old_values" [R, T]) -> LossTerms. JAX.
        learning_rate: None: the policy's.
    """

    loss: Callable[[Any, Mapping[str, Any]], LossTerms]
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A pair of pure functions, advantages and loss; what follows them is for those who need more.

    Attributes:
        id: under which it was registered.
        advantages: float64 scores [G] (survivors of one group) -> float64 [G]. NumPy.
        loss: (logp float32 [R, T], batch as a mapping of jax arrays with the names of types.Batch,
            plus "old_logp" and "staleness", int32 [R, T]) -> LossTerms. JAX; traced under jit.
        needs_entropy: the loss wants batch["entropy"] [R, T].
        idle_at_zero: a token whose advantage is 0 has no gradient, whatever its log-probability, and its
            share of the denominator doesn't depend on it: the trainer counts it without computing it.
        needs_reference: the loss wants batch["reference_logp"] [R, T], the tokens' log-probabilities
            under the run's reference model.
        needs_proximal: it weighs tokens by exp(old_logp − behaviour_logp), so it means nothing where
            old_logp is the behaviour's.
        scores: the survivors of one group -> float64 [G], given to `advantages` in the scores' place.
        over_step: all the step's outcomes, their advantages by group decided -> the same, in order, with
            the advantages (and returns) to train on. Gradients wait until the step is whole.
        together: what a group has to train lies in one micro-batch; batch["group_ids"] tells groups apart.
        adaptive: numbers that change from step to step.
        critic: learns what `over_step` puts into `returns`; needs `over_step`.
    """

    id: str
    advantages: Callable[[np.ndarray], np.ndarray]
    loss: Callable[[Any, Mapping[str, Any]], LossTerms]
    needs_entropy: bool = False
    idle_at_zero: bool = False
    needs_reference: bool = False
    needs_proximal: bool = False
    scores: Callable[[Sequence[Outcome]], np.ndarray] | None = None
    over_step: Callable[[Sequence[Outcome]], Sequence[Outcome]] | None = None
    together: bool = False
    adaptive: tuple[Adaptive, ...] = ()
    critic: Critic | None = None


class Layout(Protocol):
    """How arrays lie on a mesh of devices, as shardings of JAX.

    Attributes:
        whole: every device has all of it.
    """

    whole: Any

    def of(self, params: Params) -> Any:
        """A sharding for each leaf, by its path and shape."""
        ...

    def rows(self, shape: tuple[int, ...]) -> Any:
        """Of a batch's array: split by its leading axis where the mesh divides that, else whole."""
        ...

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, for `jit`, with what it computes on its way on the mesh too."""
        ...


@dataclass(frozen=True, slots=True)
class Adapters:
    """Small trained weights beside frozen ones, which are the parameters of a model without them.

    Attributes:
        model: computes with what `join` gives.
        first: the adapters as training begins, pytree of arrays; they change nothing yet.
        base: parameters -> what is kept of them, in their place: themselves, or in fewer bits.
        join: (adapters, base) -> what `model` takes. Traced.
        merge: (adapters, base) -> parameters of the model without adapters that computes the same. Traced.
    """

    model: Model
    first: Params
    base: Callable[[Params], Params]
    join: Callable[[Params, Params], Params]
    merge: Callable[[Params, Params], Params]


class Learner(Protocol):
    """Turns groups into new weights. Methods block; call them off the event loop."""

    version: int

    def accumulate(self, group: Group) -> None:
        """Takes a group into the step; computes gradients whenever a micro-batch is full."""
        ...

    def apply(self) -> Mapping[str, float]:
        """Flushes what is pending, takes the optimizer step, and gives the step's metrics."""
        ...

    def weights(self) -> Weights: ...
