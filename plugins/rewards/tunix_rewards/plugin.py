"""What this package registers."""

from __future__ import annotations

from typing import Any

from tunix_core import Option, RewardSpec, hookimpl


@hookimpl
def tunix_register_rewards(register: Any) -> None:
    for spec in SPECS:
        register(spec)


IGNORE_CASE = Option(False, "take upper and lower case for the same")

SPECS = (
    RewardSpec(
        "rewards/exact-match",
        "tunix_rewards.rewards:exact_match",
        "1 if the final text, stripped, is the task's gold, else 0",
        {"ignore_case": IGNORE_CASE},
    ),
    RewardSpec(
        "rewards/contains",
        "tunix_rewards.rewards:contains",
        "1 if the final text contains a text, else 0",
        {"text": Option("", "the text; default: the task's gold"), "ignore_case": IGNORE_CASE},
    ),
    RewardSpec(
        "rewards/concise",
        "tunix_rewards.rewards:concise",
        "1 within a budget of sampled tokens, falling to 0 at twice the budget",
        {"target_tokens": Option(64, "the budget, in sampled tokens of the whole episode")},
    ),
    RewardSpec(
        "rewards/finished",
        "tunix_rewards.rewards:finished",
        "1 if the episode reached its natural end, 0 if it was cut",
    ),
)
