"""The laws, for every algorithm, and for each with everything it can be composed with."""

from __future__ import annotations

from typing import Any

import pytest
from tunix_algorithms import plugin

from tunix_core.algorithms import CORRECTIONS, SHARED
from tunix_core.errors import UsageError
from tunix_core.specs import load_target
from tunix_core.testing.algorithms import check_algorithm

SPECS = {spec.id.removeprefix("algorithms/"): spec for spec in plugin.ALGORITHMS}
POLICY = [name for name, spec in SPECS.items() if set(SHARED) <= set(spec.options)]
BY_GROUP = {"grpo", "dapo", "gspo", "cispo", "cispo-cap", "sapo", "dppo-tv", "dpo"}
SHIFT = BY_GROUP | {"dr-grpo", "rloo", "reinforce-pp-baseline"}
SCALE = BY_GROUP | {"max-rl"}
OTHER_GRADIENT = {"sft", "dpo", "distillation"}
COMPOSED: dict[str, dict[str, Any]] = {
    "KL": {"kl_weight": 0.1},
    "adaptive KL": {"kl_weight": 0.1, "kl_target": 0.1, "kl": "k3"},
    "KL in the reward": {"kl_weight": 0.1, "kl_in": "reward"},
    "entropy": {"entropy_weight": 0.01},
    "dual clip": {"dual_clip": 3.0},
    **{name: {"corrections": {name: {}}} for name in CORRECTIONS},
}


def make(name: str, **options: Any) -> Any:
    return load_target(SPECS[name].target)(**options)


def score_range(name: str) -> tuple[float, float]:
    return (0.0, 1.0) if name == "max-rl" else (-3.0, 3.0)


@pytest.mark.parametrize("name", SPECS)
def test_the_laws(name: str) -> None:
    options = {"length": 1.0} if name == "dr-grpo" else {}
    check_algorithm(
        make(name, **options),
        score_range=score_range(name),
        shift_invariant=name in SHIFT,
        scale_invariant=name in SCALE,
        policy_gradient=name not in OTHER_GRADIENT,
    )


@pytest.mark.parametrize("composed", COMPOSED)
def test_the_laws_of_what_it_is_composed_with(composed: str) -> None:
    """Each composition with another algorithm."""
    name = POLICY[list(COMPOSED).index(composed) % len(POLICY)]
    check_algorithm(make(name, **COMPOSED[composed]), score_range=score_range(name), seed=1)


@pytest.mark.parametrize("scope", ["batch", "suite", "none"])
def test_the_laws_of_each_scale(scope: str) -> None:
    check_algorithm(make("grpo", normalise=scope), shift_invariant=True, policy_gradient=True)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("grpo", {"normalise": "groups"}, "normalise = 'groups', expected one of group, batch, suite, none"),
        ("reinforce-pp", {"normalise": "group"}, "normalise = 'group', expected one of batch, suite"),
        ("grpo", {"aggregate": "tokens"}, "aggregate = 'tokens', expected one of token, sequence"),
        ("grpo", {"kl": "k4"}, "kl = 'k4', expected one of k1, k2, k3, k1_corrected, k3_corrected"),
        ("grpo", {"kl_in": "score"}, "kl_in = 'score', expected \"loss\" or \"reward\""),
        ("grpo", {"kl_target": 0.1}, "kl_target adapts kl_weight"),
        ("grpo", {"dual_clip": 1.0}, "dual_clip = 1.0, expected more than 1"),
        ("grpo", {"corrections": {"icepop!": {}}}, "no correction 'icepop!'. Did you mean 'icepop'"),
        ("grpo", {"corrections": {"icepop": {"cap": 1.0}}}, "'icepop' takes no 'cap'. It takes: low, high"),
        ("grpo", {"corrections": {"decoupled": {"cap": 1.0}}}, "'decoupled' takes no 'cap'. It takes: nothing"),
        ("grpo", {"kl_weigth": 0.1}, "algorithms/grpo takes no option 'kl_weigth'. Did you mean 'kl_weight'"),
        ("dapo", {"max_tokens": 8}, "buffer = 16, expected tokens from 1 to max_tokens"),
    ],
)  # fmt: skip
def test_an_option_that_is_not_is_refused(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as refused:
        make(name, **options)
    assert says in str(refused.value)


def test_what_needs_more_than_the_behaviours_logp_says_so() -> None:
    assert not make("grpo").needs_proximal and not make("grpo", corrections={"opsm": {}}).needs_proximal
    assert make("grpo", corrections={"opsm": {}, "token_tis": {}}).needs_proximal
    assert not make("grpo", corrections={"a3po": {}}).needs_proximal
    assert make("grpo").idle_at_zero and not make("grpo", kl_weight=0.1).idle_at_zero
    assert make("grpo", kl_weight=0.1).needs_reference and make("grpo", entropy_weight=0.1).needs_entropy
