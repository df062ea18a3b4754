"""Rewards that fit many suites. Each takes an Episode and gives a number between 0 and 1."""

from __future__ import annotations

from tunix_core.rewards import Episode, GoldError, reward


@reward(range=(0.0, 1.0))
def exact_match(episode: Episode, ignore_case: bool = False) -> float:
    """1 if the policy's last message, without surrounding space, is the task's gold.

    Raises:
        GoldError: the task has no gold.
    """
    said, gold = episode.final_text.strip(), _gold(episode).strip()
    return float(_case(said, ignore_case) == _case(gold, ignore_case))


@reward(range=(0.0, 1.0))
def contains(episode: Episode, text: str = "", ignore_case: bool = False) -> float:
    """1 if the policy's last message contains `text` (default: the task's gold).

    Raises:
        GoldError: no text is given, and the task has no gold.
    """
    wanted = text or _gold(episode)
    return float(_case(wanted, ignore_case) in _case(episode.final_text, ignore_case))


@reward(range=(0.0, 1.0))
def concise(episode: Episode, target_tokens: int = 64) -> float:
    """1 up to `target_tokens` sampled tokens in the episode, then falling evenly to 0 at twice as many.

    Raises:
        ValueError: `target_tokens` is less than 1.
    """
    if target_tokens < 1:
        raise ValueError(f"target_tokens={target_tokens}: expected a budget of at least 1 token")
    return min(1.0, max(0.0, 2.0 - episode.sampled_tokens / target_tokens))


@reward(range=(0.0, 1.0))
def finished(episode: Episode) -> float:
    """1 if the episode reached its natural end; 0 if it ran out of turns, tokens or time."""
    return float(episode.status == "terminated")


def _gold(episode: Episode) -> str:
    gold = episode.task.gold
    if gold is None or not str(gold).strip():
        raise GoldError(f"task {episode.task.id!r} has no gold; give it one, or use another reward")
    return str(gold)


def _case(text: str, ignore: bool) -> str:
    return text.casefold() if ignore else text
