"""Every value and gradient of figures.json, which was computed in float64 from the formulas it states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tunix_algorithms.cispo import make_cispo, make_cispo_cap
from tunix_algorithms.dapo import make_dapo
from tunix_algorithms.dppo import make_dppo_tv
from tunix_algorithms.dr_grpo import make_dr_grpo
from tunix_algorithms.gdpo import make_gdpo
from tunix_algorithms.grpo import make_grpo
from tunix_algorithms.gspo import make_gspo
from tunix_algorithms.max_rl import make_max_rl
from tunix_algorithms.reinforce_pp import make_reinforce_pp_baseline
from tunix_algorithms.rloo import make_rloo
from tunix_algorithms.sapo import make_sapo
from tunix_algorithms.sft import make_sft

from tunix_core.algorithms import ESTIMATORS, Algorithm, Outcome, gae, masked_sum, overlong_penalty

FIGURES = json.loads((Path(__file__).parent / "figures.json").read_text())
INPUTS = FIGURES["inputs"]
BYPASS = {"old_logp": INPUTS["behaviour_logp"]}
FLIPPED = {"advantages": -np.array(INPUTS["advantage"])}


def corrected(**corrections: dict[str, float]) -> Algorithm:
    return make_grpo(corrections=corrections)


# the name in figures.json -> the algorithm, and what its batch has in the place of the inputs
LOSSES: dict[str, tuple[Algorithm, dict[str, Any]]] = {
    "ppo clip .2/.2, token mean": (make_grpo(), {}),
    "ppo clip .2/.2, sequence mean of token means": (make_grpo(aggregate="sequence"), {}),
    "dr. grpo: sum / (sequences * L), L=4": (make_dr_grpo(length=4), {}),
    "clip-higher .2/.28, token mean": (make_dapo(), {}),
    "gspo eps .2/.2, mean over sequences": (make_gspo(eps_low=0.2, eps_high=0.2), {}),
    "gspo eps .2/.2, advantages flipped": (make_gspo(eps_low=0.2, eps_high=0.2), FLIPPED),
    "gspo eps 3e-4/4e-4, advantages flipped": (make_gspo(), FLIPPED),
    "cispo, absolute cap 5, token mean": (make_cispo_cap(), {}),
    "cispo, clip 1±.2, token mean": (make_cispo(), {}),
    "sapo tau 1.0/1.05, token mean": (make_sapo(aggregate="token"), {}),
    "sapo tau 1.0/1.05, sequence mean of token means": (make_sapo(), {}),
    "ppo x token TIS cap 2, token mean": (corrected(token_tis={}), {}),
    "ppo x IcePop [.5,2], token mean, denominator all masked-in tokens": (corrected(icepop={"high": 2.0}), {}),
    "ppo x IcePop [.5,5], token mean": (corrected(icepop={}), {}),
    "ppo x product weight, > 3 -> 0, token mean": (corrected(product_weight={"cutoff": 3.0}), {}),
    "ppo x product weight, > 2 -> 0, token mean": (corrected(product_weight={}), {}),
    "ppo x gate only, product > 2 -> 0, token mean": (corrected(product_gate={"low": 0.0}), {}),
    "ppo x sequence TIS cap 2, token mean": (corrected(sequence_tis={}), {}),
    "ppo x geometric gate [.5,1.5] x token weight, token mean": (
        corrected(geometric_gate={"low": 0.5, "high": 1.5}, decoupled={}),
        {},
    ),
    "bypass: ppo with old := behaviour, token mean": (make_grpo(), BYPASS),
    "dppo-tv delta .2, token mean": (make_dppo_tv(), {}),
    "dppo-tv delta .1, token mean (one token masked; its regulariser stays)": (make_dppo_tv(delta=0.1), {}),
}
ALONE = "dual clip c=3 at ratio 4, A=-1"


def batch(**instead: Any) -> dict[str, Any]:
    """The inputs as a loss gets them: two sequences, one a row."""
    given = {
        "mask": INPUTS["mask"],
        "behaviour_logp": INPUTS["behaviour_logp"],
        "old_logp": INPUTS["old_logp"],
        "reference_logp": INPUTS["ref_logp"],
        "advantages": INPUTS["advantage"],
        "sequence_ids": [[0, 0, 0], [1, 1, 1]],
        **instead,
    }
    return {**{name: jnp.asarray(value) for name, value in given.items()}, "sequences": 2}


def value_and_gradient(algorithm: Algorithm, given: dict[str, Any], logp: Any = None) -> tuple[float, np.ndarray]:
    def loss(logp: jax.Array) -> jax.Array:
        terms = algorithm.loss(logp, given)
        return terms.numerator / terms.denominator

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(INPUTS["logp"] if logp is None else logp))
    return float(value), np.asarray(gradient)


def test_every_figure_is_asked_for() -> None:
    assert {figure["name"] for figure in FIGURES["policy_loss"]} == {*LOSSES, ALONE}
    assert {figure["name"] for figure in FIGURES["kl"]} == {f"{k} token mean" for k in ("k1", "k2", "k3")}


@pytest.mark.parametrize("figure", FIGURES["policy_loss"][:-1], ids=lambda figure: figure["name"])
def test_policy_losses(figure: dict[str, Any]) -> None:
    algorithm, instead = LOSSES[figure["name"]]
    value, gradient = value_and_gradient(algorithm, batch(**instead))
    assert value == pytest.approx(figure["value"], abs=1e-6)
    np.testing.assert_allclose(gradient, figure["grad_logp"], atol=1e-6)


def test_dual_clip() -> None:
    (figure,) = (f for f in FIGURES["policy_loss"] if f["name"] == ALONE)
    one = {name: jnp.asarray([[x]]) for name, x in {"mask": 1.0, "advantages": -1.0, "sequence_ids": 0}.items()}
    given = {**one, "old_logp": jnp.zeros((1, 1)), "behaviour_logp": jnp.zeros((1, 1)), "sequences": 1}
    ratio_4 = [[np.log(4.0)]]
    value, gradient = value_and_gradient(make_grpo(dual_clip=3.0), given, ratio_4)
    assert (value, gradient.item()) == (pytest.approx(figure["value"]), 0.0)
    value, gradient = value_and_gradient(make_grpo(), given, ratio_4)
    assert (value, gradient.item()) == (pytest.approx(4.0), pytest.approx(4.0))


@pytest.mark.parametrize("figure", FIGURES["kl"], ids=lambda figure: figure["name"])
def test_kl_estimators(figure: dict[str, Any]) -> None:
    given = batch()

    def mean(logp: jax.Array) -> jax.Array:
        kl = ESTIMATORS[figure["name"].split()[0]](logp, given["reference_logp"])
        return masked_sum(kl, given["mask"]) / given["mask"].sum()

    value, gradient = jax.value_and_grad(mean)(jnp.asarray(INPUTS["logp"]))
    assert float(value) == pytest.approx(figure["value"], abs=1e-6)
    np.testing.assert_allclose(gradient, figure["grad_logp"], atol=1e-6)


@pytest.mark.parametrize("figure", FIGURES["kl"], ids=lambda figure: figure["name"])
def test_kl_in_the_loss_adds_its_figure(figure: dict[str, Any]) -> None:
    kl = figure["name"].split()[0]
    plain, plain_gradient = value_and_gradient(make_grpo(), batch())
    value, gradient = value_and_gradient(make_grpo(kl=kl, kl_weight=0.5), batch())
    assert value - plain == pytest.approx(0.5 * figure["value"], abs=1e-6)
    np.testing.assert_allclose(gradient - plain_gradient, 0.5 * np.array(figure["grad_logp"]), atol=1e-6)


@pytest.mark.parametrize("kl", ["k1", "k3"])
def test_a_corrected_estimator_has_its_own_value_and_the_gradient_of_k2(kl: Any) -> None:
    value, slope = (next(f for f in FIGURES["kl"] if f["name"].startswith(name)) for name in (kl, "k2"))
    plain, plain_gradient = value_and_gradient(make_grpo(), batch())
    found, gradient = value_and_gradient(make_grpo(kl=f"{kl}_corrected", kl_weight=1.0), batch())
    assert found - plain == pytest.approx(value["value"], abs=1e-6)
    np.testing.assert_allclose(gradient - plain_gradient, slope["grad_logp"], atol=1e-6)


def test_gae_carries_value_and_advantage_across_what_a_tool_wrote() -> None:
    figure = FIGURES["gae"]
    reward, value, mask = (np.array(figure[name]) for name in ("reward", "value", "mask"))
    found = gae(reward, value, figure["gamma"], figure["lam"], mask)
    np.testing.assert_allclose(found, figure["advantage"], atol=1e-12)
    sampled = mask > 0
    alone = gae(reward[sampled], value[sampled], figure["gamma"], figure["lam"])
    np.testing.assert_allclose(alone, np.array(figure["advantage"])[sampled], atol=1e-12)


ADVANTAGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "grpo_ddof1_eps1e_6": make_grpo().advantages,
    "dr_grpo": make_dr_grpo().advantages,
    "rloo": make_rloo().advantages,
    "maxrl": make_max_rl().advantages,
}


@pytest.mark.parametrize("name", ADVANTAGES)
def test_advantages_of_a_group(name: str) -> None:
    figure = FIGURES["group_advantages"]
    np.testing.assert_allclose(ADVANTAGES[name](np.array(figure["rewards"])), figure[name], atol=1e-12)


@pytest.mark.parametrize("case", FIGURES["group_edge_cases"], ids=lambda case: str(case["rewards"]))
def test_edge_cases_of_a_group(case: dict[str, Any]) -> None:
    """A sample without a score has left its group before."""
    scores, expected = ([x for x in case[name] if x is not None] for name in ("rewards", "advantage"))
    np.testing.assert_allclose(make_grpo().advantages(np.array(scores, float)), expected, atol=1e-12)


def outcome(score: float, tokens: int, advantage: float, parts: dict[str, float] | None = None) -> Outcome:
    zeros = np.zeros(tokens)
    return Outcome(
        "s", 0, score, parts or {}, zeros.astype(np.int32), zeros, zeros.astype(np.float32), zeros + advantage
    )


def over_step(algorithm: Algorithm, groups: list[list[Outcome]]) -> list[float]:
    """The advantages after both stages, one for each sample."""
    decided = []
    for group in groups:
        scores = np.array([o.score for o in group]) if algorithm.scores is None else algorithm.scores(group)
        decided += [outcome(o.score, o.tokens, a) for o, a in zip(group, algorithm.advantages(scores), strict=True)]
    assert algorithm.over_step
    return [float(o.advantages[0]) for o in algorithm.over_step(decided)]


def test_reinforce_pp_with_baseline_whitens_over_tokens() -> None:
    figure = FIGURES["reinforce_pp_baseline"]
    lengths = iter(figure["lengths"])
    groups = [[outcome(r, int(next(lengths)), 0.0) for r in group] for group in figure["groups"]]
    found = over_step(make_reinforce_pp_baseline(), groups)
    np.testing.assert_allclose(found, figure["advantage_ddof1"], atol=1e-7)


def test_gdpo_normalises_each_reward_apart() -> None:
    figure = FIGURES["gdpo"]
    parts = [dict(zip("ab", values, strict=True)) for values in zip(*figure["rewards"], strict=True)]
    group = [outcome(sum(each.values()), 3, 0.0, each) for each in parts]
    for algorithm in (make_gdpo(), make_gdpo(weights=dict(zip("ab", figure["weights"], strict=True)))):
        np.testing.assert_allclose(over_step(algorithm, [group]), figure["advantage"], atol=1e-9)


def test_the_overlong_penalty_counts_tokens() -> None:
    figure = FIGURES["overlong_penalty"]
    limits = (figure["max_tokens"], figure["buffer"], figure["factor"])
    np.testing.assert_allclose(overlong_penalty(np.array(figure["lengths"]), *limits), figure["value"], atol=1e-12)
    group = [outcome(1.0, length, 0.0) for length in figure["lengths"]]
    shaped = make_dapo(max_tokens=100, buffer=20).scores
    assert shaped is not None
    np.testing.assert_allclose(shaped(group), 1.0 + np.array(figure["value"]), atol=1e-12)


def test_micro_batches_add_up_to_the_mean_over_all_tokens() -> None:
    """Of sums, not a mean of the micro-batches' means."""
    figure = FIGURES["accumulation"]
    terms = []
    for losses in figure["microbatch_losses"]:
        mask = jnp.ones((1, len(losses)))
        terms.append(make_sft().loss(-jnp.asarray([losses], jnp.float32), {"mask": mask}))
    found = sum(t.numerator for t in terms) / sum(t.denominator for t in terms)
    assert float(found) == pytest.approx(figure["value"]) != figure["wrong"]
