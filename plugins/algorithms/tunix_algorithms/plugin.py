"""Announces the algorithms; nothing behind a target is imported here."""

from __future__ import annotations

from collections.abc import Callable

from tunix_core import AlgorithmSpec, Option, hookimpl

EPS_LOW = Option(0.2, "how far below 1 the ratio may pull")
EPS_HIGH = Option(0.2, "how far above 1 the ratio may push")
CLIP = {"eps_low": EPS_LOW, "eps_high": EPS_HIGH}
AGGREGATE = Option("token", '"token": mean over tokens; "sequence": mean over samples of their token means')
NORMALISE = Option("group", 'what the deviation of scores is taken over: "group", "batch", "suite" or "none"')
SCOPE = Option("batch", 'what advantages are whitened over: "batch" or "suite"')
SHARED = {
    "corrections": Option({}, "weights for tokens of another policy, by name, each with its options"),
    "kl": Option("k3_corrected", "estimates the KL to the reference: k1, k2, k3, k1_corrected or k3_corrected"),
    "kl_weight": Option(0.0, "how much the KL to the reference counts"),
    "kl_in": Option("loss", '"loss"; or "reward": a cost on the score'),
    "kl_target": Option(None, "the KL of a token that kl_weight adapts to; none: kl_weight stays as it is"),
    "entropy_weight": Option(0.0, "how much entropy is worth"),
    "dual_clip": Option(None, "where A < 0 a token loses at most -A times this; none: no bound"),
}


def _policy_gradient(name: str, target: str, summary: str, own: dict[str, Option]) -> AlgorithmSpec:
    return AlgorithmSpec(f"algorithms/{name}", f"tunix_algorithms.{target}", summary, {**own, **SHARED})


ALGORITHMS = (
    _policy_gradient(
        "grpo",
        "grpo:make_grpo",
        "Group-relative advantages with the clipped ratio",
        {**CLIP, "aggregate": AGGREGATE, "normalise": NORMALISE},
    ),
    _policy_gradient(
        "dr-grpo",
        "dr_grpo:make_dr_grpo",
        "GRPO without the division by deviation and by length",
        {
            **CLIP,
            "length": Option(64.0, "the constant in the place of a sample's length, in tokens"),
            "normalise": Option("none", NORMALISE.help),
        },
    ),
    _policy_gradient(
        "dapo",
        "dapo:make_dapo",
        "GRPO that clips higher above than below, with a penalty for length",
        {
            "eps_low": EPS_LOW,
            "eps_high": Option(0.28, EPS_HIGH.help),
            "max_tokens": Option(None, "the longest a sample should be, in tokens; none: no penalty"),
            "buffer": Option(16, "over how many tokens before max_tokens the penalty grows"),
            "factor": Option(1.0, "the most of the penalty"),
            "normalise": NORMALISE,
        },
    ),
    _policy_gradient(
        "gspo",
        "gspo:make_gspo",
        "The ratio and the clip of the whole sequence",
        {"eps_low": Option(3e-4, EPS_LOW.help), "eps_high": Option(4e-4, EPS_HIGH.help), "normalise": NORMALISE},
    ),
    _policy_gradient(
        "cispo",
        "cispo:make_cispo",
        "The weight of a token's gradient is clipped around 1, never the token",
        {**CLIP, "aggregate": AGGREGATE, "normalise": NORMALISE},
    ),
    _policy_gradient(
        "cispo-cap",
        "cispo:make_cispo_cap",
        "The weight of a token's gradient is capped, never the token",
        {"cap": Option(5.0, "the largest weight"), "aggregate": AGGREGATE, "normalise": NORMALISE},
    ),
    _policy_gradient(
        "sapo",
        "sapo:make_sapo",
        "A gate that closes smoothly in the place of a clip",
        {
            "tau_positive": Option(1.0, "how fast the gate closes where the advantage is above 0"),
            "tau_negative": Option(1.05, "how fast it closes elsewhere"),
            "aggregate": Option("sequence", AGGREGATE.help),
            "normalise": NORMALISE,
        },
    ),
    _policy_gradient(
        "dppo-tv",
        "dppo:make_dppo_tv",
        "A token is held by how far its probability moved",
        {
            "delta": Option(0.2, "how far the probability of a token may move"),
            "pull": Option(1e-3, "what draws every token back to its behaviour"),
            "aggregate": AGGREGATE,
            "normalise": NORMALISE,
        },
    ),
    _policy_gradient(
        "rloo",
        "rloo:make_rloo",
        "REINFORCE with the others of the group as baseline",
        {"aggregate": AGGREGATE, "normalise": Option("none", NORMALISE.help)},
    ),
    _policy_gradient(
        "reinforce-pp",
        "reinforce_pp:make_reinforce_pp",
        "Scores whitened over the step, with the clipped ratio",
        {**CLIP, "aggregate": AGGREGATE, "normalise": SCOPE},
    ),
    _policy_gradient(
        "reinforce-pp-baseline",
        "reinforce_pp:make_reinforce_pp_baseline",
        "Scores less their group's mean, whitened over the step",
        {**CLIP, "aggregate": AGGREGATE, "normalise": SCOPE},
    ),
    _policy_gradient(
        "max-rl",
        "max_rl:make_max_rl",
        "Advantages relative to the group's mean; scores must be at least 0",
        {**CLIP, "aggregate": AGGREGATE},
    ),
    _policy_gradient(
        "gdpo",
        "gdpo:make_gdpo",
        "Several rewards, each normalised apart",
        {
            "weights": Option(None, "of the score's parts, by name; none: each of them once"),
            **CLIP,
            "aggregate": AGGREGATE,
        },
    ),
    _policy_gradient(
        "ppo",
        "ppo:make_ppo",
        "The clipped ratio, with advantages from a critic",
        {
            **CLIP,
            "gamma": Option(1.0, "the discount of a token"),
            "lam": Option(0.95, "how far the estimate trusts rewards over values"),
            "value_clip": Option(0.2, "how far a value may move in a step and still be pulled"),
            "value_learning_rate": Option(None, "the critic's; none: the policy's"),
            "whiten": Option(True, "advantages of the step have mean 0 and variance 1"),
            "aggregate": AGGREGATE,
        },
    ),
    _policy_gradient(
        "distillation",
        "distillation:make_distillation",
        "A teacher's log-probabilities judge each sampled token; scores don't matter",
        {"aggregate": AGGREGATE},
    ),
    AlgorithmSpec(
        "algorithms/dpo",
        "tunix_algorithms.dpo:make_dpo",
        "The best sample of each group preferred to the worst",
        {"beta": Option(0.1, "how much the margin counts")},
    ),
    AlgorithmSpec(
        "algorithms/sft",
        "tunix_algorithms.sft:make_sft",
        "Supervised: the mean negative log-probability of the trained tokens",
    ),
)


@hookimpl
def tunix_register_algorithms(register: Callable[[AlgorithmSpec], None]) -> None:
    for spec in ALGORITHMS:
        register(spec)
