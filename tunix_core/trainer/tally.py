"""What is counted on the host during a step, and what the step's reports mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tunix_core.contracts import Outcome
from tunix_core.trainer.steps import Report, Sum
from tunix_core.types import Batch, staleness


@dataclass(slots=True)
class Tally:
    """Counts of one step.

    `sample_tokens` are those of the samples computed, `packed_tokens` those of the batches, where what
    samples share stands once.
    """

    groups: int = 0
    sequences: int = 0
    refused: int = 0
    batches: int = 0
    packed_tokens: int = 0
    sample_tokens: int = 0
    trained_tokens: int = 0
    idle_tokens: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    advantages: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def batch(self, batch: Batch, version: int) -> None:
        self.batches += 1
        self.packed_tokens += int((batch.segment_ids > 0).sum())
        for sampled, tokens in zip(*np.unique(batch.versions[batch.mask > 0], return_counts=True), strict=True):
            late = staleness(version, int(sampled))
            self.trained_tokens += int(tokens)
            self.staleness_sum += int(tokens) * late
            self.staleness_max = max(self.staleness_max, late)

    def outcomes(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.tokens:
                self.advantages[outcome.suite].append(float(outcome.advantages.mean()))

    def metrics(self, room: int) -> dict[str, float]:
        """Everything by name. `room`: tokens that a micro-batch has room for."""
        found: dict[str, float] = {
            "groups": self.groups,
            "trained_sequences": self.sequences,
            "trained_tokens": self.trained_tokens,
            "idle_tokens": self.idle_tokens,
            "shared_tokens": self.sample_tokens - self.packed_tokens,
            "refused_sequences": self.refused,
            "micro_batches": self.batches,
            "fill": self.packed_tokens / max(self.batches * room, 1),
            "staleness_mean": self.staleness_sum / max(self.trained_tokens, 1),
            "staleness_max": self.staleness_max,
        }
        for suite, each in self.advantages.items():
            found[f"suite/{suite}/advantage_mean"] = float(np.mean(each))
            found[f"suite/{suite}/advantage_std"] = float(np.std(each))
        return found


def losses(reports: Sequence[Report], shares: Mapping[str, float]) -> dict[str, float]:
    """The loss of each algorithm over the step, and the whole by their shares."""
    each = {
        k: ratio((sum(float(r.numerators[k]) for r in reports), sum(float(r.denominators[k]) for r in reports)))
        for k in shares
    }
    return {"loss": sum(shares[k] * each[k] for k in shares), **{f"loss/{k}": loss for k, loss in each.items()}}


def means(reports: Sequence[Report], label: str | None = None) -> dict[str, float]:
    """Means over all tokens of the step, and maxima; what several algorithms tell is pooled.

    Args:
        label: only what this algorithm tells.
    """
    pooled, largest = dict[str, Sum](), dict[str, float]()
    for report in reports:
        for key, metrics in report.metrics.items():
            if label in (None, key):
                for name, (total, count) in metrics.items():
                    before = pooled.get(name, (0.0, 0.0))
                    pooled[name] = before[0] + total, before[1] + count  # type: ignore[assignment]
                for name, value in report.maxima[key].items():
                    largest[name] = max(largest.get(name, 0.0), float(value))
    return {**{name: ratio(pair) for name, pair in pooled.items()}, **largest}


def updates(reports: Sequence[Report]) -> dict[str, float]:
    """What the optimizer did: the mean norm, the last rate, the share of updates that were skipped."""
    return {
        "grad_norm": float(np.mean([r.gradient_norm for r in reports])),
        "learning_rate": float(reports[-1].learning_rate),
        "skipped": float(np.mean([not r.applied for r in reports])),
    }


def explained_variance(outcomes: Sequence[Outcome]) -> float:
    """1 − Var(R − V) / Var(R) over the trained tokens; 0 where the returns don't vary."""
    returns, values = (np.concatenate([getattr(o, name) for o in outcomes]) for name in ("returns", "values"))
    spread = float(np.var(returns))
    return 1.0 - float(np.var(returns - values)) / spread if spread > 0 else 0.0


def ratio(pair: tuple[Any, Any]) -> float:
    total, count = pair
    return float(total) / float(count) if count else 0.0
