"""What has no published figure: a reference in NumPy from the cited formula, and its slope by finite differences.

In float64. A formula with a part that has no gradient takes it from `frozen`, which stays when `logp` moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tunix_algorithms.cispo import make_cispo, make_cispo_cap
from tunix_algorithms.distillation import make_distillation
from tunix_algorithms.dpo import make_dpo
from tunix_algorithms.dppo import make_dppo_tv
from tunix_algorithms.grpo import make_grpo
from tunix_algorithms.gspo import make_gspo
from tunix_algorithms.max_rl import make_max_rl
from tunix_algorithms.ppo import make_ppo
from tunix_algorithms.reinforce_pp import make_reinforce_pp
from tunix_algorithms.rloo import make_rloo
from tunix_algorithms.sapo import make_sapo

from tunix_core.algorithms import Algorithm, Outcome, UsageError, clipped_value_loss

LENGTHS = (3, 5, 2, 4)
STEP = 1e-6
Given = dict[str, list[np.ndarray]]
Reference = Callable[[list[np.ndarray], list[np.ndarray], Given], float]


def given() -> Given:
    """Per sample, float64 [T]; no token stands where a formula has a kink."""
    rng = np.random.default_rng(5)
    logp = [-rng.uniform(0.2, 2.0, n) for n in LENGTHS]
    advantages = [np.full(n, a) for n, a in zip(LENGTHS, (1.0, -0.7, -1.3, 0.4), strict=True)]
    near = {name: [x + rng.normal(0, spread, len(x)) for x in logp] for name, spread in (
        ("old_logp", 0.3), ("behaviour_logp", 0.5), ("reference_logp", 0.4), ("entropy", 1.0)
    )}  # fmt: skip
    staleness = [rng.integers(0, 4, n) for n in LENGTHS]
    return {"logp": logp, "advantages": advantages, "staleness": staleness, **near}


def batch(given: Given) -> dict[str, Any]:
    """One sample a row, each after a token that is not trained."""
    rows: dict[str, Any] = {}
    width = max(LENGTHS) + 1
    for name, values in given.items():
        rows[name] = np.stack([np.pad(v, (1, width - 1 - len(v)), constant_values=3) for v in values])
    rows["mask"] = np.stack([np.pad(np.ones(n), (1, width - 1 - n)) for n in LENGTHS])
    owners = np.repeat(np.arange(len(LENGTHS))[:, None], width, axis=1)
    rows |= {"sequence_ids": owners, "group_ids": owners // 2}
    return {**{name: jnp.asarray(x) for name, x in rows.items()}, "sequences": len(LENGTHS)}


def value_and_gradient(algorithm: Algorithm, given: Given) -> tuple[float, list[np.ndarray]]:
    with jax.enable_x64(True):
        rows = batch(given)

        def loss(logp: jax.Array) -> jax.Array:
            terms = algorithm.loss(logp, rows)
            return terms.numerator / terms.denominator

        value, gradient = jax.value_and_grad(loss)(rows["logp"])
        return float(value), [np.asarray(gradient)[i, 1 : n + 1] for i, n in enumerate(LENGTHS)]


def slopes(reference: Reference, given: Given) -> list[np.ndarray]:
    found = [np.zeros(n) for n in LENGTHS]
    for i, n in enumerate(LENGTHS):
        for t in range(n):
            moved = []
            for sign in (1, -1):
                logp = [x.copy() for x in given["logp"]]
                logp[i][t] += sign * STEP
                moved.append(reference(logp, given["logp"], given))
            found[i][t] = (moved[0] - moved[1]) / (2 * STEP)
    return found


def token_mean(losses: Sequence[np.ndarray]) -> float:
    return float(np.concatenate(losses).mean())


def sequence_mean(losses: Sequence[np.ndarray]) -> float:
    return float(np.mean([x.mean() for x in losses]))


def by_token(formula: Callable[..., np.ndarray], reduce: Any = token_mean) -> Reference:
    """formula(logp, frozen, old, behaviour, reference, A, entropy, staleness) of each sample, then the mean."""
    names = ("old_logp", "behaviour_logp", "reference_logp", "advantages", "entropy", "staleness")

    def loss(logp: list[np.ndarray], frozen: list[np.ndarray], given: Given) -> float:
        rest = zip(*(given[name] for name in names), strict=True)
        return reduce([formula(x, f, *r) for x, f, r in zip(logp, frozen, rest, strict=True)])

    return loss


def ppo(ratio: np.ndarray, A: np.ndarray, low: float = 0.2, high: float = 0.2) -> np.ndarray:
    return -np.minimum(A * ratio, A * np.clip(ratio, 1 - low, 1 + high))


def cispo(x: Any, f: Any, old: Any, b: Any, ref: Any, A: Any, *_: Any) -> np.ndarray:
    return -np.clip(np.exp(f - old), 0.8, 1.2) * A * x


def cispo_cap(x: Any, f: Any, old: Any, b: Any, ref: Any, A: Any, *_: Any) -> np.ndarray:
    return -np.minimum(np.exp(f - old), 1.1) * A * x


def sapo(x: Any, f: Any, old: Any, b: Any, ref: Any, A: Any, *_: Any) -> np.ndarray:
    tau = 1.0 if A[0] > 0 else 1.05
    return -A * 4 / tau / (1 + np.exp(-tau * (np.exp(x - old) - 1)))


def gspo(x: Any, f: Any, old: Any, b: Any, ref: Any, A: Any, *_: Any) -> np.ndarray:
    return ppo(np.exp(np.mean(x - old)) + 0 * x, A, 0.05, 0.1)


def dppo(x: Any, f: Any, old: Any, b: Any, ref: Any, A: Any, *_: Any) -> np.ndarray:
    moved = np.exp(f) - np.exp(b)
    keep = ~((A > 0) & (moved > 0.1) | (A < 0) & (moved < -0.1))
    return -A * keep * np.exp(x - b) + 1e-3 * (x - b) ** 2


def reinforce(x: Any, f: Any, old: Any, b: Any, ref: Any, A: Any, *_: Any) -> np.ndarray:
    return -A * np.exp(x - old)


def distilled(x: Any, f: Any, old: Any, b: Any, ref: Any, *_: Any) -> np.ndarray:
    return -(ref - b) * np.exp(x - old)


def opsm(x: Any, f: Any, old: Any, b: Any, ref: Any, A: Any, *_: Any) -> np.ndarray:
    rejected = A[0] < 0 and np.mean(b - f) > 0.05
    return ppo(np.exp(x - old), A) * (not rejected)


def a3po(x: Any, f: Any, old: Any, b: Any, ref: Any, A: Any, entropy: Any, late: Any) -> np.ndarray:
    alpha = np.divide(1.0, late, out=np.zeros(len(late)), where=late > 0)
    near = alpha * b + (1 - alpha) * f
    return np.exp(near - b) * ppo(np.exp(x - near), A)


def decoupled(x: Any, f: Any, old: Any, b: Any, ref: Any, A: Any, *_: Any) -> np.ndarray:
    return np.exp(old - b) * ppo(np.exp(x - old), A)


def everything(x: Any, f: Any, old: Any, b: Any, ref: Any, A: Any, entropy: Any, late: Any) -> np.ndarray:
    """Clip, dual clip, truncated weight, KL by k3 and entropy, each where it belongs."""
    loss = ppo(np.exp(x - old), A)
    loss = np.where(A < 0, np.minimum(loss, -A * 1.1), loss) * np.minimum(np.exp(old - b), 1.3)
    return loss + 0.2 * (np.exp(ref - x) + x - ref - 1) - 0.3 * entropy


def preferred(logp: list[np.ndarray], frozen: list[np.ndarray], given: Given) -> float:
    """Two pairs: samples 0 and 1, samples 2 and 3."""
    away = [
        float(a[0] * np.sum(x - r)) for x, r, a in zip(logp, given["reference_logp"], given["advantages"], strict=True)
    ]
    margins = np.array([away[0] + away[1], away[2] + away[3]])
    return float(np.mean(np.log(1 + np.exp(-0.1 * margins))))


WITH_ALL = make_grpo(corrections={"token_tis": {"cap": 1.3}}, kl="k3", kl_weight=0.2, entropy_weight=0.3, dual_clip=1.1)
CASES: dict[str, tuple[Algorithm, Reference]] = {
    "cispo": (make_cispo(), by_token(cispo)),
    "cispo-cap": (make_cispo_cap(cap=1.1), by_token(cispo_cap)),
    "sapo": (make_sapo(), by_token(sapo, sequence_mean)),
    "gspo": (make_gspo(eps_low=0.05, eps_high=0.1), by_token(gspo, sequence_mean)),
    "dppo-tv": (make_dppo_tv(delta=0.1), by_token(dppo)),
    "rloo": (make_rloo(), by_token(reinforce)),
    "rloo, by sample": (make_rloo(aggregate="sequence"), by_token(reinforce, sequence_mean)),
    "distillation": (make_distillation(), by_token(distilled)),
    "opsm": (make_grpo(corrections={"opsm": {}}), by_token(opsm)),
    "a3po": (make_grpo(corrections={"a3po": {}}), by_token(a3po)),
    "decoupled": (make_grpo(corrections={"decoupled": {}}), by_token(decoupled)),
    "all at once": (WITH_ALL, by_token(everything)),
    "dpo": (make_dpo(), preferred),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    algorithm, reference = CASES[name]
    inputs = given()
    value, gradient = value_and_gradient(algorithm, inputs)
    assert value == pytest.approx(reference(inputs["logp"], inputs["logp"], inputs), abs=1e-9)
    for found, slope in zip(gradient, slopes(reference, inputs), strict=True):
        np.testing.assert_allclose(found, slope, atol=1e-7)
    assert any(g.any() for g in gradient)


def test_a_token_that_is_rejected_stays_in_the_denominator() -> None:
    """The gate keeps one sample of four; what is kept weighs as much as it did among all."""
    inputs = given()
    drift = [float(np.sum(o - b)) for o, b in zip(inputs["old_logp"], inputs["behaviour_logp"], strict=True)]
    _, whole = value_and_gradient(make_grpo(), inputs)
    order = np.argsort(drift)
    for one in order[[0, 1, -1]].tolist():
        edges = {"low": float(np.exp(drift[one]) * 0.999), "cutoff": float(np.exp(drift[one]) * 1.001)}
        _, gated = value_and_gradient(make_grpo(corrections={"product_gate": edges}), inputs)
        assert [index for index, gradient in enumerate(gated) if gradient.any()] == [one]
        np.testing.assert_allclose(gated[one], whole[one])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"product_gate": {"low": 3.0}}, "'product_gate' keeps nothing: its low, 3.0, is above cutoff, 2.0"),
        ({"icepop": {"low": 0.5, "high": 0.1}}, "its low, 0.5, is above high, 0.1"),
        ({"product_gate": 2.0}, "'product_gate' has 2.0; expected a table of its options"),
        ({"token_tis": {"cap": "big"}}, "'token_tis': 'cap' is the text 'big'; expected a number"),
    ],
)
def test_a_correction_that_would_keep_nothing_or_no_number_is_refused(options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make_grpo(corrections=options)


def test_the_value_loss_is_clipped_around_the_old_value() -> None:
    rng = np.random.default_rng(0)
    values, old, returns = rng.normal(size=(3, 1, 9))
    near = old + np.clip(values - old, -0.2, 0.2)
    expected = np.mean(np.maximum((values - returns) ** 2, (near - returns) ** 2)) / 2
    with jax.enable_x64(True):
        rows = {"old_values": jnp.asarray(old), "returns": jnp.asarray(returns), "mask": jnp.ones((1, 9))}
        terms = clipped_value_loss(jnp.asarray(values), rows, 0.2)
    assert float(terms.numerator / terms.denominator) == pytest.approx(expected, abs=1e-12)
    held, count = terms.metrics["value_clipped"]
    assert float(held / count) == np.mean(np.abs(values - old) > 0.2)


# ---- advantages ----
def outcome(score: float, tokens: int, **fields: Any) -> Outcome:
    zeros = np.zeros(tokens)
    plain = Outcome("s", 0, score, {}, zeros.astype(np.int32), zeros, zeros, zeros + score)
    return replace(plain, **fields)


def test_reinforce_pp_whitens_scores_over_the_tokens_of_the_step() -> None:
    scores, lengths = [1.0, 0.0, 0.0, 0.5], [2, 4, 1, 3]
    tokens = np.repeat(scores, lengths)
    found = make_reinforce_pp().over_step([outcome(r, n) for r, n in zip(scores, lengths, strict=True)])  # type: ignore[misc]
    expected = (tokens - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(np.concatenate([o.advantages for o in found]), expected, atol=1e-12)


def test_reinforce_pp_charges_a_token_for_the_kl_from_it_on() -> None:
    algorithm = make_reinforce_pp(kl="k1", kl_weight=0.5, kl_in="reward")
    behaviour, reference = np.array([-1.0, -2.0, -0.5]), np.array([-1.5, -1.0, -0.7])
    one = outcome(1.0, 3, behaviour_logp=behaviour, reference_logp=reference)
    two = outcome(0.0, 1, behaviour_logp=np.array([-1.0]), reference_logp=np.array([-1.0]))
    raw = np.array([1 - 0.5 * (0.5 - 1.0 + 0.2), 1 - 0.5 * (-1.0 + 0.2), 1 - 0.5 * 0.2, 0.0])
    found = algorithm.over_step([one, two])  # type: ignore[misc]
    expected = (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    np.testing.assert_allclose(np.concatenate([o.advantages for o in found]), expected, atol=1e-12)
    assert algorithm.needs_reference and algorithm.scores is None


@pytest.mark.parametrize(
    ("kl", "cost"), [("k1", lambda d: d), ("k2", lambda d: d * d / 2), ("k3", lambda d: np.exp(-d) - 1 + d)]
)
def test_a_kl_in_the_reward_is_taken_from_the_score(kl: Any, cost: Any) -> None:
    algorithm = make_grpo(kl=kl, kl_weight=0.5, kl_in="reward")
    away = np.array([0.5, -1.0])
    member = outcome(1.0, 2, behaviour_logp=away - 1.0, reference_logp=np.full(2, -1.0))
    assert algorithm.scores is not None and algorithm.over_step is not None
    np.testing.assert_allclose(algorithm.scores([member]), [1.0 - 0.5 * np.sum(cost(away))], atol=1e-12)
    adaptive = replace(member, adaptive={"kl_weight": 2.0})
    np.testing.assert_allclose(algorithm.scores([adaptive]), [1.0 - 2.0 * np.sum(cost(away))], atol=1e-12)
    assert [o.advantages for o in algorithm.over_step([member])] == [member.advantages]
    assert algorithm.idle_at_zero  # nothing of it is in the loss


def test_a_weight_that_adapts_goes_towards_its_target() -> None:
    (adaptive,) = make_grpo(kl_weight=0.1, kl_target=0.02).adaptive
    assert (adaptive.name, adaptive.start) == ("kl_weight", 0.1)
    for kl, factor in ((0.021, 1.005), (0.2, 1.02), (0.0, 0.98), (0.02, 1.0)):
        assert adaptive.update(0.1, {"reference_k3": kl}) == pytest.approx(0.1 * factor)


def test_max_rl_refuses_what_is_no_rate_of_success() -> None:
    np.testing.assert_allclose(make_max_rl().advantages(np.zeros(3)), np.zeros(3))
    with pytest.raises(UsageError, match="must be at least 0"):
        make_max_rl().advantages(np.array([1.0, -1.0]))


def test_ppo_estimates_then_whitens_and_keeps_the_returns_as_they_were() -> None:
    rewards, values = np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.4, 0.7])
    one = outcome(1.0, 3, rewards=rewards, values=values)
    two = outcome(0.0, 1, rewards=np.zeros(1), values=np.array([0.2]))
    deltas = np.array([0.4 - 0.5, 0.7 - 0.4, 1.0 - 0.7])
    advantages = np.array([deltas[0] + 0.95 * (deltas[1] + 0.95 * deltas[2]), deltas[1] + 0.95 * deltas[2], deltas[2]])
    plain = make_ppo(whiten=False).over_step([one, two])  # type: ignore[misc]
    np.testing.assert_allclose(plain[0].advantages, advantages, atol=1e-12)
    np.testing.assert_allclose(plain[0].returns, advantages + values, atol=1e-12)
    whitened = make_ppo().over_step([one, two])  # type: ignore[misc]
    tokens = np.concatenate([o.advantages for o in whitened])
    assert tokens.mean() == pytest.approx(0, abs=1e-12) and tokens.var(ddof=1) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(whitened[1].returns, plain[1].returns)


def test_dpo_pairs_the_best_with_the_worst() -> None:
    advantages = make_dpo().advantages
    np.testing.assert_array_equal(advantages(np.array([0.2, 1.0, 0.0, 0.5])), [0, 1, -1, 0])
    np.testing.assert_array_equal(advantages(np.array([1.0, 1.0, 0.0, 0.5])), [0.5, 0.5, -1, 0])
    np.testing.assert_array_equal(advantages(np.full(3, 0.5)), np.zeros(3))
