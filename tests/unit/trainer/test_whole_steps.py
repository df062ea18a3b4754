"""Algorithms that see the whole step, a reference or a critic; steps of several updates."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tunix_core.algorithms import (
    Critic,
    adaptive_weight,
    centred,
    clip_objective,
    clipped_value_loss,
    gae,
    group_advantages,
    log_ratio,
    masked_sum,
    policy_gradient,
    ratio_objective,
)
from tunix_core.config import CreditConfig, SuiteConfig, TrainerConfig
from tunix_core.contracts import Algorithm, LossTerms, Outcome
from tunix_core.errors import UsageError
from tunix_core.trainer import Checkpoints, Trainer, TrainerState
from tunix_core.types import Group

sys.path.insert(0, str(Path(__file__).parent))
from stepping import change, compilations, first_state, flat, relative, step

CONFIG = TrainerConfig(rows=2, row_tokens=32, learning_rate=1.0, optimizer="sgd", max_grad_norm=1e9)
CLIPPED = policy_gradient("x/clipped", centred, clip_objective(0.2, 0.2))
PLAIN = policy_gradient("x/plain", centred, ratio_objective)


def seen(algorithm: Algorithm) -> Algorithm:
    """The same, decided when the step is whole."""
    return replace(algorithm, over_step=lambda outcomes: outcomes)


@pytest.fixture(scope="module", autouse=True)
def compiled_fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """These programs run a few times each, and many are alike: optimizing each would never be earned back."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def trainer(model: Any, algorithms: Any, config: TrainerConfig = CONFIG, **how: Any) -> Trainer:
    """As `first_state`, for one suite unless several are given."""
    return first_state(model, {"s": algorithms} if isinstance(algorithms, Algorithm) else algorithms, config, **how)


def groups_of(make: Any, count: int = 3, **how: Any) -> list[Group]:
    return [make.random_group(seed, **how) for seed in range(count)]


def test_waiting_for_the_whole_step_changes_nothing_else(model: Any, make: Any) -> None:
    groups = groups_of(make, 5)
    assert relative(change(trainer(model, seen(PLAIN)), groups), change(trainer(model, PLAIN), groups)) < 1e-5
    waiting, at_once = (step(trainer(model, each), groups) for each in (seen(PLAIN), PLAIN))
    for name in ("groups", "trained_sequences", "suite/s/advantage_mean", "suite/s/advantage_std"):
        assert waiting[name] == pytest.approx(at_once[name], abs=1e-9)


def test_suites_with_rewards_of_another_scale_weigh_alike_when_each_is_normalised(model: Any, make: Any) -> None:
    """A thousandfold reward changes what the batch's deviation is, and so the other suite's share of it."""
    small, large = groups_of(make, suite="small"), [make.random_group(9, suite="large")]
    times = [replace(t, score=replace(t.score, value=1000 * t.score.value)) for t in large[0].trajectories]
    large = [replace(large[0], trajectories=tuple(times))]
    deviations = {}
    for scope in ("batch", "suite"):
        advantages, over_step = group_advantages(scope)  # type: ignore[arg-type]
        algorithm = policy_gradient("x/scaled", advantages, ratio_objective, over_step=over_step)
        metrics = step(trainer(model, {"small": algorithm, "large": algorithm}), [*small, *large])
        deviations[scope] = [metrics[f"suite/{suite}/advantage_std"] for suite in ("small", "large")]
    assert deviations["batch"][0] < 0.003 and deviations["batch"][1] > 1
    assert deviations["suite"] == pytest.approx([1, 1], rel=0.2)


def test_minibatches_are_updates_one_after_another(model: Any, make: Any) -> None:
    """Two groups in two minibatches: as two steps of one group each."""
    first, second = groups_of(make, 2)
    together, apart = trainer(model, CLIPPED, replace(CONFIG, minibatches=2)), trainer(model, CLIPPED)
    metrics = step(together, [first, second])
    step(apart, [first])
    step(apart, [second])
    np.testing.assert_allclose(flat(together.weights().params), flat(apart.weights().params), rtol=1e-5, atol=1e-6)
    assert (together.version, metrics["skipped"], metrics["groups"]) == (1, 0, 2)
    lone = trainer(model, CLIPPED, replace(CONFIG, minibatches=2))
    assert step(lone, [first])["skipped"] == 0  # a minibatch without a group is no update


def test_epochs_pass_over_the_same_samples(model: Any, make: Any) -> None:
    groups = groups_of(make, 2)
    twice, apart = trainer(model, CLIPPED, replace(CONFIG, epochs=2)), trainer(model, CLIPPED)
    metrics = step(twice, groups)
    step(apart, groups)
    once = step(apart, groups)
    np.testing.assert_allclose(flat(twice.weights().params), flat(apart.weights().params), rtol=1e-5, atol=1e-6)
    assert metrics["trained_tokens"] == once["trained_tokens"]


def test_all_updates_of_a_step_have_one_learning_rate(model: Any, make: Any) -> None:
    config = replace(CONFIG, epochs=2, schedule="linear")
    learner = trainer(model, CLIPPED, config)
    assert [step(learner, groups_of(make, 1))["learning_rate"] for _ in range(3)] == pytest.approx([1.0, 0.9, 0.8])


# ---- old log-probabilities ----
def test_proximal_is_what_the_step_started_with(model: Any, make: Any) -> None:
    groups, proximal = groups_of(make, 2), replace(CONFIG, old_logp="proximal")
    metrics = step(trainer(model, CLIPPED, proximal), groups)
    assert (metrics["ratio_mean"], metrics["ratio_max"], metrics["clip_low"], metrics["clip_high"]) == (1, 1, 0, 0)
    assert step(trainer(model, CLIPPED), groups)["ratio_max"] > 1.1
    assert metrics["kl_k3"] > 0
    twice = step(trainer(model, PLAIN, replace(proximal, epochs=2)), groups)
    assert twice["ratio_mean"] != 1 and twice["ratio_max"] > 1


def test_the_first_of_several_updates_has_ratio_one_to_the_proximal(model: Any, make: Any) -> None:
    """Log-probabilities that were computed before are those of the gradient's own pass."""
    still = replace(CONFIG, old_logp="proximal", epochs=2, learning_rate=0.0)
    metrics = step(trainer(model, CLIPPED, still), groups_of(make, 2))
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-6)


def test_the_proximal_is_of_the_weights_as_they_are_now_not_of_the_runs_first(model: Any, make: Any) -> None:
    moved = trainer(model, CLIPPED)
    step(moved, groups_of(make, 2))
    state = moved.state()
    still = trainer(model, CLIPPED, replace(CONFIG, old_logp="proximal", epochs=2, learning_rate=0.0))
    still.restore(state)
    metrics = step(still, groups_of(make, 2))
    assert (metrics["ratio_mean"], metrics["ratio_max"]) == pytest.approx((1, 1), abs=1e-6)


def test_the_whole_weight_on_proximal_is_the_ratio_to_behaviour(model: Any, make: Any) -> None:
    """exp(old − behaviour) · ∇exp(logp − old) = ∇exp(logp − behaviour), where the step starts."""
    groups = groups_of(make, 2)
    weighed = policy_gradient("x/weighed", centred, ratio_objective, corrections={"decoupled": {}})
    found = change(trainer(model, weighed, replace(CONFIG, old_logp="proximal")), groups)
    assert relative(found, change(trainer(model, PLAIN), groups)) < 1e-5


def test_a_correction_tells_what_it_kept(model: Any, make: Any) -> None:
    gated = policy_gradient("x/gated", centred, ratio_objective, corrections={"icepop": {"low": 0.3, "high": 1.5}})
    metrics = step(trainer(model, gated, replace(CONFIG, old_logp="proximal")), groups_of(make, 3))
    assert 0 < metrics["kept/icepop"] < 1
    assert metrics["kept/icepop"] + metrics["rejected/icepop"] == pytest.approx(1)


def test_a_correction_of_nothing_is_refused(model: Any) -> None:
    weighed = policy_gradient("x/weighed", centred, ratio_objective, corrections={"token_tis": {}})
    with pytest.raises(UsageError, match='set it to "proximal"'):
        trainer(model, weighed)


def test_staleness_reaches_the_loss(model: Any, make: Any) -> None:
    def late(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
        count = jnp.sum(batch["mask"])
        return LossTerms(
            masked_sum(logp, batch["mask"]), count, {"late": (masked_sum(batch["staleness"], batch["mask"]), count)}
        )

    learner = trainer(model, Algorithm("x/late", centred, late), version=5)
    assert step(learner, [make.random_group(0, version=3)])["late"] == 2


# ---- a reference ----
def test_the_reference_is_the_run_s_first_weights_whatever_is_restored(model: Any, make: Any) -> None:
    held = policy_gradient("x/held", centred, ratio_objective, kl_weight=0.1)
    learner = trainer(model, held)
    assert step(learner, groups_of(make))["reference_k3"] == pytest.approx(0, abs=1e-7)
    later = step(learner, groups_of(make))["reference_k3"]
    assert later > 1e-4
    moved = jax.device_get((learner.state().params, learner.state().optimizer))
    resumed = trainer(model, held)
    assert step(resumed, groups_of(make))["reference_k3"] == pytest.approx(0, abs=1e-7)
    resumed.restore(TrainerState(*moved, version=2))
    assert step(resumed, groups_of(make))["reference_k3"] > later


def test_the_reference_may_be_another_model(model: Any, make: Any) -> None:
    """What is told of it is what NumPy says."""
    teacher, groups = model.init(7), groups_of(make, 2)
    judged = policy_gradient("x/judged", centred, ratio_objective, needs_reference=True, idle_at_zero=False)
    metrics = step(trainer(model, judged, reference=(model, teacher)), groups)
    away, count = 0.0, 0.0
    for (row,) in (tuple(t.rows()) for group in groups for t in group.trajectories):
        own, other = (make.logprobs(p, row.tokens.tolist()) for p in (model.init(0), teacher))
        away, count = away + ((own - other) * row.mask).sum(), count + row.mask.sum()
    assert metrics["reference_k1"] == pytest.approx(away / count, rel=1e-4)


def test_a_reference_of_another_vocabulary_is_refused(model: Any) -> None:
    with pytest.raises(UsageError, match=r"vocabulary of 12 tokens, the policy of 11"):
        trainer(model, PLAIN, reference=(replace(model, vocab_size=12), model.init(0)))


def test_a_kl_in_the_reward_knows_the_reference_before_advantages_are_decided(model: Any, make: Any) -> None:
    outcomes: list[Outcome] = []
    costly = policy_gradient("x/costly", centred, ratio_objective, kl_weight=0.1, kl_in="reward", kl="k1")
    spied = replace(costly, over_step=lambda given: outcomes.extend(given) or given)
    (group,) = groups_of(make, 1)
    step(trainer(model, spied), [group])
    scores = []
    for member in group.trajectories:
        (row,) = member.rows()
        reference = make.logprobs(model.init(0), row.tokens.tolist())
        scores.append(member.score.value - 0.1 * float(((row.logprobs - reference) * row.mask).sum()))
    expected = np.array(scores) - np.mean(scores)
    np.testing.assert_allclose([o.advantages[0] for o in outcomes], expected, atol=1e-5)


def test_an_adaptive_weight_moves_with_the_metrics_and_is_restored(model: Any, make: Any, tmp_path: Path) -> None:
    held = policy_gradient("x/held", centred, ratio_objective, kl_weight=0.1, kl_target=1e-3)
    learner = trainer(model, held)
    told = [step(learner, groups_of(make)) for _ in range(3)]
    used = [metrics["kl_weight/x/held"] for metrics in told]
    assert used[:2] == pytest.approx([0.1, 0.098])  # at first there is no KL
    assert used[2] == pytest.approx(0.098 * (1 + 0.1 * np.clip(told[1]["reference_k3"] / 1e-3 - 1, -0.2, 0.2)))
    saved = through_a_checkpoint(learner, tmp_path)
    expected = step(learner, groups_of(make))
    resumed = trainer(model, held)
    resumed.restore(saved)
    assert step(resumed, groups_of(make)) == expected
    assert adaptive_weight(1.0, 1e-3).start == 1.0


def through_a_checkpoint(learner: Trainer, folder: Path) -> TrainerState:
    state, checkpoints = learner.state(), Checkpoints(folder)
    checkpoints.save(state.version, state.params, state.optimizer, {})
    params, optimizer, _ = checkpoints.restore(state.version, state.params, state.optimizer)
    return TrainerState(params, optimizer, state.version)


# ---- together, weights, credit ----
def test_what_a_group_has_to_train_lies_in_one_micro_batch(model: Any, make: Any) -> None:
    """Pairs: the loss of each is a function of both its sides, so rows of other pairs must not matter."""

    def paired(logp: Any, batch: Mapping[str, Any]) -> LossTerms:
        def by_group(values: Any) -> Any:
            return jax.ops.segment_sum(values.ravel(), batch["group_ids"].ravel(), num_segments=batch["sequences"])

        margins = by_group(batch["advantages"] * log_ratio(logp, batch["old_logp"], batch["mask"]))
        there = (by_group(jnp.abs(batch["advantages"])) > 0).astype(logp.dtype)
        return LossTerms(masked_sum(jax.nn.softplus(-margins), there), there.sum(), {})

    def ends(scores: np.ndarray) -> np.ndarray:
        return np.sign(scores - np.median(scores)) * (np.abs(scores - np.median(scores)) > 0.3)

    pairs = Algorithm("x/pairs", ends, paired, idle_at_zero=True, together=True)
    groups = groups_of(make, 4)
    wide, narrow = (trainer(model, pairs, replace(CONFIG, rows=1, row_tokens=tokens)) for tokens in (100, 30))
    expected, found = step(wide, groups), step(narrow, groups)
    assert found["micro_batches"] > expected["micro_batches"] == 1
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    np.testing.assert_allclose(flat(narrow.weights().params), flat(wide.weights().params), rtol=1e-4, atol=1e-6)


def test_a_suite_weighs_as_much_as_it_is_told(model: Any, make: Any) -> None:
    a, b = [make.random_group(0, suite="a")], [make.random_group(1, suite="b")]
    suites = (SuiteConfig("x/env", "a", learning_weight=0.25), SuiteConfig("x/env", "b"))
    both = {"a": PLAIN, "b": PLAIN}
    weighed = change(trainer(model, both, suites=suites), [*a, *b])
    alone = [change(trainer(model, both), each) for each in (a, b)]
    assert relative(weighed, 0.5 * (0.25 * alone[0] + alone[1])) < 1e-5


def test_a_suite_is_credited_as_it_is_told(model: Any, make: Any) -> None:
    (group,) = groups_of(make, 1)
    suites = (SuiteConfig("x/env", "s", credit=CreditConfig(per="turn", discount=0.5)),)
    outcomes: list[Outcome] = []
    spied = replace(PLAIN, over_step=lambda given: outcomes.extend(given) or given)
    found = trainer(model, spied, suites=suites)
    turns = [
        replace(t, spans=tuple(replace(s, turn=i // 2) for i, s in enumerate(t.spans)), step_rewards=(0.0, 0.0))
        for t in group.trajectories
    ]
    step(found, [replace(group, trajectories=tuple(turns))])
    last = [float(o.advantages[-1] - o.advantages[0]) for o in outcomes]
    expected = [t.score.value - 0.5 * t.score.value for t in turns]
    # in the place of its own whole return among four, a return moves its distance from the mean by 3/4
    np.testing.assert_allclose(last, 0.75 * np.array(expected), atol=1e-9)


# ---- a critic ----
def with_critic(learning_rate: float | None = 0.3) -> Algorithm:
    def estimated(outcomes: Sequence[Outcome]) -> list[Outcome]:
        advantages = [gae(o.rewards, o.values, 1.0, 1.0) for o in outcomes]
        return [replace(o, advantages=a, returns=a + o.values) for o, a in zip(outcomes, advantages, strict=True)]

    def loss(values: Any, batch: Mapping[str, Any]) -> LossTerms:
        return clipped_value_loss(values, batch, 10.0)

    base = policy_gradient("x/critic", lambda scores: scores, ratio_objective, over_step=estimated)
    return replace(base, critic=Critic(loss, learning_rate))


def test_a_critic_learns_what_is_returned(model: Any, make: Any) -> None:
    """The first token of a sample tells its score: the critic can learn it, and explains nothing at first."""
    groups = []
    for seed in range(4):
        members = []
        for sample, score in enumerate((0.0, 1.0)):
            spans = [make.span([3 + 4 * sample], False), make.span([1 + seed] * 3, True)]
            members.append(make.trajectory(spans, score, group=seed, sample=sample))
        groups.append(make.group(members, index=seed))
    still = replace(CONFIG, learning_rate=0.0)
    learner = trainer(model, with_critic(), still)
    before = flat(learner.weights().params)
    told = [step(learner, groups) for _ in range(40)]
    assert told[0]["explained_variance"] == pytest.approx(0, abs=1e-6)
    assert told[0]["value_loss"] == pytest.approx(0.25)  # half of the mean square of the returns
    assert told[-1]["explained_variance"] > 0.9 and told[-1]["value_loss"] < 0.03
    np.testing.assert_array_equal(flat(learner.weights().params), before)  # the critic has its own


def test_a_critic_is_saved_with_the_run(model: Any, make: Any, tmp_path: Path) -> None:
    learner = trainer(model, with_critic(None))
    learner.warm_up()
    for _ in range(2):
        step(learner, groups_of(make))
    saved = through_a_checkpoint(learner, tmp_path)
    expected = step(learner, groups_of(make))
    resumed = trainer(model, with_critic(None))
    resumed.restore(saved)
    assert step(resumed, groups_of(make)) == expected


def test_a_second_step_compiles_nothing(model: Any, make: Any) -> None:
    held = replace(with_critic(), needs_reference=True, adaptive=(adaptive_weight(0.1, 1e-3),))
    told = policy_gradient("x/held", centred, ratio_objective, kl_weight=0.1, kl_target=1e-3)
    config = replace(CONFIG, epochs=2, old_logp="proximal")
    learner = trainer(model, {"s": replace(held, loss=told.loss), "t": CLIPPED}, config)
    learner.warm_up()
    step(learner, [make.random_group(0), make.random_group(1, suite="t", longest=30)])
    traces, compiled = len(model.traces), len(compilations)
    for at in range(2, 4):
        step(learner, [make.random_group(at), make.random_group(at, suite="t")])
    assert len(model.traces) == traces
    assert len(compilations) == compiled > 0
