"""The learner: right gradients whatever the packing, one compilation, and steps that may be skipped."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.algorithms import centred, clipped_surrogate, log_ratio, masked_sum, normalised, token_weights
from tunix_core.config import TrainerConfig
from tunix_core.contracts import Algorithm, Learner, LossTerms
from tunix_core.errors import UsageError
from tunix_core.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parent))
from stepping import change, compilations, first_state, flat, relative, step

CONFIG = TrainerConfig(rows=2, row_tokens=32, learning_rate=0.1, optimizer="sgd", max_grad_norm=1e9)
ADAM = replace(CONFIG, optimizer="adamw", schedule="cosine", warmup_steps=2)
NARROW = replace(CONFIG, rows=1, row_tokens=21)


def clipped(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
    ratio = jnp.exp(log_ratio(logp, batch["old_logp"], batch["mask"]))
    weights = token_weights(batch, "sequence")
    loss = clipped_surrogate(ratio, batch["advantages"], 0.2, 0.2)
    metrics = {"ratio_mean": (masked_sum(ratio, batch["mask"]), batch["mask"].sum())}
    return LossTerms(masked_sum(loss, weights), jnp.sum(weights), metrics)


def likelihood(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
    return LossTerms(masked_sum(-logp * batch["advantages"], batch["mask"]), jnp.sum(batch["mask"]), {})


CLIPPED = Algorithm("x/clipped", normalised, clipped)
REINFORCE = Algorithm("x/reinforce", centred, likelihood, idle_at_zero=True)
SFT = Algorithm("x/sft", np.ones_like, likelihood)


def trainer(
    model: Any, algorithms: Algorithm | dict[str, Algorithm] = CLIPPED, config: TrainerConfig = CONFIG, version: int = 0
) -> Trainer:
    """As `first_state`; the suite "warm" samples at 0.7."""
    by_suite = {"s": algorithms, "warm": algorithms} if isinstance(algorithms, Algorithm) else algorithms
    return first_state(model, by_suite, config, version=version, temperatures={"warm": 0.7})


def test_it_is_a_learner(model: Any) -> None:
    learner: Learner = trainer(model)
    assert learner.version == 0


def test_the_loss_is_what_numpy_says(model: Any, make: Any) -> None:
    """Log-probabilities at the suite's temperature, given only what precedes them in their own segment."""
    groups = [make.random_group(seed, suite="warm") for seed in range(3)]
    learner = trainer(model, SFT)
    params = learner.weights().params
    logp, count = 0.0, 0
    for member in (t for g in groups for t in g.trajectories):
        (row,) = member.rows()
        logp += float((make.logprobs(params, row.tokens.tolist(), 0.7) * row.mask).sum())
        count += int(row.mask.sum())
    metrics = step(learner, groups)
    assert metrics["trained_tokens"] == count
    assert metrics["loss"] == pytest.approx(-logp / count, rel=1e-5)


def test_the_gradient_is_the_slope_of_the_loss(model: Any, make: Any) -> None:
    """Finite differences in float64 along random directions."""
    groups = [make.random_group(seed) for seed in range(2)]
    params = model.init(0)

    def loss(moved: Any) -> float:
        rows = [row for g in groups for t in g.trajectories for row in t.rows()]
        total = sum(float((make.logprobs(moved, row.tokens.tolist()) * row.mask).sum()) for row in rows)
        return -total / sum(float(row.mask.sum()) for row in rows)

    gradient = change(trainer(model, SFT), groups) / -0.1
    rng = np.random.default_rng(0)
    for _ in range(3):
        direction = {name: rng.normal(size=value.shape) for name, value in params.items()}
        there = {n: np.asarray(params[n], np.float64) + 1e-5 * d for n, d in direction.items()}
        back = {n: np.asarray(params[n], np.float64) - 1e-5 * d for n, d in direction.items()}
        assert float(gradient @ flat(direction)) == pytest.approx((loss(there) - loss(back)) / 2e-5, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "config"),
    [(CLIPPED, NARROW), (SFT, NARROW), (CLIPPED, replace(CONFIG, rows=16, row_tokens=17))],
    ids=["one row", "one row, likelihood", "all at once"],
)
def test_packing_order_padding_and_micro_batches_change_nothing(
    model: Any, make: Any, algorithm: Algorithm, config: TrainerConfig
) -> None:
    groups = [make.random_group(seed) for seed in range(5)]
    expected = change(trainer(model, algorithm), groups)
    assert relative(change(trainer(model, algorithm, config), groups[::-1]), expected) < 1e-5


def test_the_loss_is_normalised_over_the_step_not_per_micro_batch(model: Any, make: Any) -> None:
    """A long sample and three short ones, each alone in a micro-batch: tokens count alike."""
    lengths = (20, 2, 2, 2)
    members = [
        make.trajectory([make.span([1], False), make.span([2] * n, True)], 1.0, sample=i) for i, n in enumerate(lengths)
    ]
    whole = step(trainer(model, SFT), [make.group(members)])
    split = step(trainer(model, SFT, NARROW), [make.group(members)])
    assert (whole["micro_batches"], split["micro_batches"]) == (1, 2)
    assert split["loss"] == pytest.approx(whole["loss"], rel=1e-6)


def test_the_same_groups_give_the_same_parameters_to_the_bit(model: Any, make: Any) -> None:
    def run() -> np.ndarray:
        learner = trainer(model, config=ADAM)
        for at in range(3):
            step(learner, [make.random_group(10 * at + seed) for seed in range(4)])
        return flat(learner.weights().params)

    np.testing.assert_array_equal(run(), run())


def test_a_second_step_compiles_nothing(model: Any, make: Any) -> None:
    learner = trainer(model, REINFORCE)
    learner.warm_up()
    step(learner, [make.random_group(0), make.random_group(1, longest=30)])
    traces, compiled = len(model.traces), len(compilations)
    for at in range(2, 5):
        flat_scores = make.random_group(at)
        same = tuple(replace(t, score=replace(t.score, value=0.5)) for t in flat_scores.trajectories)
        step(learner, [make.random_group(at), replace(flat_scores, trajectories=same)])
    assert len(model.traces) == traces
    assert len(compilations) == compiled
    assert compiled > 0


def test_warming_up_changes_nothing(model: Any, make: Any) -> None:
    groups = [make.random_group(0)]
    learner = trainer(model, config=ADAM)
    cold, params = step(learner, groups), flat(learner.weights().params)
    learner = trainer(model, config=ADAM)
    learner.warm_up()
    assert learner.version == 0
    assert step(learner, groups) == cold
    np.testing.assert_array_equal(flat(learner.weights().params), params)


def test_old_parameters_stay_readable(model: Any, make: Any) -> None:
    learner = trainer(model)
    old = learner.weights()
    values = flat(old.params).copy()
    step(learner, [make.random_group(0)])
    np.testing.assert_array_equal(flat(old.params), values)
    assert learner.weights().version == old.version + 1
    assert (flat(learner.weights().params) != values).any()


def test_a_sample_longer_than_a_row_is_refused_and_counted_never_cut(model: Any, make: Any) -> None:
    group = make.random_group(0)
    long = make.trajectory([make.span([1] * 20, False), make.span([2] * 20, True)], 1.0, sample=9)
    metrics = step(trainer(model, SFT), [replace(group, trajectories=(*group.trajectories, long))])
    without = step(trainer(model, SFT), [group])
    assert (metrics["refused_sequences"], without["refused_sequences"]) == (1, 0)
    assert metrics["trained_tokens"] == without["trained_tokens"]
    assert metrics["loss"] == without["loss"]


def test_a_sample_without_a_score_leaves_before_the_statistics(model: Any, make: Any) -> None:
    group = make.random_group(0, size=3)
    nobody = make.trajectory([make.span([1], False), make.span([2], True)], None, sample=7)
    mixed = replace(group, trajectories=(nobody, *group.trajectories))
    np.testing.assert_array_equal(change(trainer(model), [mixed]), change(trainer(model), [group]))


def test_groups_of_other_sizes_and_scores_are_compared_each_within_itself(model: Any, make: Any) -> None:
    small, large = make.random_group(0, size=2), make.random_group(1, size=5)
    higher = tuple(replace(t, score=replace(t.score, value=t.score.value + 4.0)) for t in large.trajectories)
    alone = [change(trainer(model), [group]) for group in (small, large)]
    together = change(trainer(model), [small, replace(large, trajectories=higher)])
    assert relative(together, (2 * alone[0] + 5 * alone[1]) / 7) < 1e-4


def test_a_group_of_one_gives_no_signal(model: Any, make: Any) -> None:
    assert not change(trainer(model), [make.random_group(0, size=1)]).any()


def test_samples_without_a_gradient_count_without_being_computed(model: Any, make: Any) -> None:
    group, still = make.random_group(0), make.random_group(1)
    still = replace(
        still, trajectories=tuple(replace(t, score=replace(t.score, value=1.0)) for t in still.trajectories)
    )
    computing = replace(REINFORCE, idle_at_zero=False)
    learner, reference = trainer(model, REINFORCE), trainer(model, computing)
    assert relative(change(learner, [group, still]), change(reference, [group, still])) < 1e-6
    metrics, full = step(learner, [group, still]), step(reference, [group, still])
    assert metrics["idle_tokens"] > 0
    assert metrics["trained_tokens"] + metrics["idle_tokens"] == full["trained_tokens"]
    assert metrics["loss"] == pytest.approx(full["loss"], rel=1e-5)


def test_a_step_without_tokens_is_skipped(model: Any) -> None:
    learner = trainer(model, config=ADAM)
    before = flat(learner.weights().params)
    metrics = learner.apply()
    assert (metrics["skipped"], metrics["trained_tokens"], learner.version) == (1, 0, 1)
    np.testing.assert_array_equal(flat(learner.weights().params), before)


def test_a_gradient_that_is_not_finite_skips_the_step(model: Any, make: Any) -> None:
    def poisoned(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
        terms = likelihood(logp, batch)
        return terms._replace(numerator=terms.numerator * jnp.log(batch["advantages"].max() - 2.0))

    learner = trainer(model, Algorithm("x/poisoned", np.ones_like, poisoned), ADAM)
    before, state = flat(learner.weights().params), jax.device_get(learner.state().optimizer)
    metrics = step(learner, [make.random_group(0)])
    assert metrics["skipped"] == 1
    np.testing.assert_array_equal(flat(learner.weights().params), before)
    np.testing.assert_array_equal(flat(learner.state().optimizer), flat(state))


def test_each_algorithm_has_its_own_denominator_and_its_share_of_groups(model: Any, make: Any) -> None:
    both = {"a": SFT, "b": CLIPPED}
    a = [make.random_group(seed, suite="a") for seed in range(3)]
    b = [make.random_group(9, suite="b", longest=30)]
    alone_a, alone_b = change(trainer(model, both), a), change(trainer(model, both), b)
    assert relative(change(trainer(model, both), [*a, *b]), 0.75 * alone_a + 0.25 * alone_b) < 1e-5
    metrics = step(trainer(model, both), [*a, *b])
    assert metrics["loss"] == pytest.approx(0.75 * metrics["loss/x/sft"] + 0.25 * metrics["loss/x/clipped"])


def test_two_settings_of_one_algorithm_are_told_apart(model: Any) -> None:
    metrics = trainer(model, {"a": SFT, "b": replace(SFT, loss=clipped)}).apply()
    assert {"loss/x/sft", "loss/x/sft@b"} <= set(metrics)


def test_staleness_is_of_the_tokens_trained(model: Any, make: Any) -> None:
    learner = trainer(model, SFT, version=5)
    spans = [make.span([1], False), make.span([2, 3, 4], True, version=5), make.span([6], True, version=3)]
    metrics = step(learner, [make.group([make.trajectory(spans, 1.0)])])
    assert (metrics["staleness_mean"], metrics["staleness_max"]) == (0.5, 2)


def test_agreement_is_the_distance_to_the_engine_over_fresh_tokens(model: Any, make: Any) -> None:
    learner = trainer(model, SFT, version=1)
    tokens = [1, 2, 3, 4]
    truth = make.logprobs(learner.weights().params, tokens).astype(np.float32)
    answer = replace(
        make.span(tokens[1:], True, version=1), logprobs=truth[1:] + np.array([0.0, 0.25, -0.5], np.float32)
    )
    old = [make.span([1], False), make.span([2], True, logp=-9.0), make.span([3], True, logp=-9.0, version=1)]
    members = [make.trajectory([make.span([1], False), answer], 1.0), make.trajectory(old, 1.0, sample=1)]
    metrics = step(learner, [make.group(members)])
    assert metrics["agreement_mean"] == pytest.approx(0.25, abs=1e-5)
    assert metrics["agreement_max"] == pytest.approx(0.5, abs=1e-5)


def test_going_on_from_a_state_is_going_on(model: Any, make: Any) -> None:
    groups = [[make.random_group(10 * at + seed) for seed in range(3)] for at in range(4)]
    learner = trainer(model, config=ADAM)
    for each in groups[:2]:
        step(learner, each)
    state = learner.state()
    saved = replace(state, params=jax.device_get(state.params), optimizer=jax.device_get(state.optimizer))
    whole = [step(learner, each) for each in groups[2:]]
    params = flat(learner.weights().params)
    resumed = trainer(model, config=ADAM)
    resumed.restore(saved)
    assert resumed.version == 2
    assert [step(resumed, each) for each in groups[2:]] == whole
    np.testing.assert_array_equal(flat(resumed.weights().params), params)


def test_what_is_sampled_greedily_is_refused(model: Any) -> None:
    with pytest.raises(UsageError, match="'s' samples at temperature 0"):
        Trainer(model, model.init(0), {"s": SFT}, CONFIG, steps=1, temperatures={"s": 0.0})
