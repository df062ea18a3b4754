"""One episode: tokens keep what they were born with, and whatever breaks is data."""

from __future__ import annotations

import asyncio
import gc
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunix_core.contracts import Episode, Rendering, RolloutRequest, Sampling
from tunix_core.errors import EngineError, EnvError, ModelError
from tunix_core.rollout import Conversation, Suite, run_episode
from tunix_core.specs import Timeouts
from tunix_core.testing.chat import END, FakeChatFormat
from tunix_core.testing.clock import run
from tunix_core.testing.engine import FakeEngine, FixedWeights
from tunix_core.types import Failure, Message, Opening, SampleId, Score, StepResult, Task


class Env:
    """Scripted: gives the results it was told to; an exception in the script is raised, a float is slept."""

    sandbox = None

    def __init__(self, *results: Any, opening: Any = None) -> None:
        self.results, self.closed, self.actions = list(results), 0, []
        self.opening = opening or Opening((Message.of("user", "hello"),), info={"map": 1})

    async def open(self, task: Task) -> Env:
        return self

    async def reset(self, seed: int) -> Opening:
        self.seed = seed
        return await self._give(self.opening)

    async def step(self, action: Message) -> StepResult:
        self.actions.append(action)
        return await self._give(self.results.pop(0))

    async def close(self) -> None:
        self.closed += 1

    async def _give(self, what: Any) -> Any:
        if isinstance(what, float):
            await asyncio.sleep(what)
        if isinstance(what, BaseException):
            raise what
        return what


class Scorer:
    def __init__(self, env: Env, failure: Failure | None = None) -> None:
        self.env, self.failure, self.seen = env, failure, None

    async def score(self, episode: Episode) -> Score:
        self.seen = episode
        assert self.env.closed == 0, "scored while the environment is open"
        return Score(None, failure=self.failure) if self.failure else Score(sum(episode.step_rewards))


class Hooks:
    def __init__(self) -> None:
        self.called: list[str] = []

    def notify(self, hook: str, **arguments: Any) -> None:
        self.called.append(hook)

    def collect(self, hook: str, **arguments: Any) -> Any:
        return ()

    def decide(self, hook: str, **arguments: Any) -> Any:
        return None


def say(text: str, reward: float = 0.0, **flags: Any) -> StepResult:
    return StepResult((Message.of("user", text),), reward, **flags)


def play(env: Env, *, reply=b"ok", sampling=None, max_turns=5, engine=None, **fields: Any):
    engine = engine or FakeEngine(lambda request: reply, version_source=fields.pop("weights", FixedWeights(3)))
    suite = Suite(
        "s", "fake/env", env, fields.pop("scorer", Scorer(env)), engine, FakeChatFormat(), fields.pop("hooks", Hooks()),
        **fields,
    )  # fmt: skip
    request = RolloutRequest(SampleId("s", 1, 2), Task("t"), 11, 5, sampling or Sampling(), max_turns)
    return run(run_episode(request, suite), timeout_s=1e5)


def test_every_token_keeps_its_mask_logprob_and_version():
    env = Env(say("and?"), say("", 1.0, terminated=True))
    trajectory = play(env)
    (row,) = trajectory.rows()
    sampled = [i for i, m in enumerate(row.mask) if m]
    assert bytes(row.tokens[sampled][:2].astype(np.uint8)) == b"ok"
    assert [t for t in row.tokens[sampled]].count(END) == 2  # the stop token was sampled, so it is trained
    assert (row.versions[sampled] == 3).all() and (row.logprobs[sampled] < 0).all()
    forced = [i for i, m in enumerate(row.mask) if not m]
    assert (row.versions[forced] == -1).all() and (row.logprobs[forced] == 0).all()
    assert trajectory.status == "terminated" and trajectory.score.value == 1.0 and trajectory.turns == 2
    assert env.closed == 1 and env.seed == 11


def test_members_and_turns_draw_from_different_positions_of_different_seeds():
    engine = FakeEngine(lambda request: seeds.append(request.seed) or b"x")
    seeds: list[int] = []
    for sample in range(3):
        env = Env(say("", terminated=True))
        suite = Suite("s", "e", env, Scorer(env), engine, FakeChatFormat(), Hooks())
        run(run_episode(RolloutRequest(SampleId("s", 0, sample), Task("t"), 1, 5, Sampling(), 1), suite))
    assert len(set(seeds)) == 3


def test_running_out_of_turns_is_truncated_and_says_so():
    trajectory = play(Env(say("1"), say("2"), say("3")), max_turns=2)
    assert (trajectory.status, trajectory.stop_reason, trajectory.turns) == ("truncated", "max_turns", 2)


def test_the_turn_that_uses_up_the_token_budget_still_reaches_step():
    env = Env(say("more", 0.5))
    trajectory = play(env, reply=b"abcdef", sampling=Sampling(max_tokens=10, max_episode_tokens=4))
    assert len(env.actions) == 1 and trajectory.step_rewards == (0.5,)
    assert (trajectory.status, trajectory.stop_reason) == ("truncated", "max_tokens")
    assert trajectory.sampled_tokens == 4 and trajectory.score.value == 0.5


def test_a_turn_cut_by_length_is_closed_by_a_forced_token_when_the_talk_goes_on():
    trajectory = play(Env(say("more"), say("", terminated=True)), reply=b"abcdef", sampling=Sampling(max_tokens=3))
    (row,) = trajectory.rows()
    end = [i for i, t in enumerate(row.tokens) if t == END and i > 10]
    assert row.mask[end[0]] == 0


def test_a_full_context_ends_the_episode_as_truncated():
    env = Env(say("x" * 50), say("never"))
    trajectory = play(env, engine=FakeEngine(lambda r: b"ok", max_context=30))
    assert (trajectory.status, trajectory.stop_reason) == ("truncated", "context")


def test_an_opening_that_fills_the_context_is_a_failure_and_says_what_to_do():
    env = Env(opening=Opening((Message.of("user", "x" * 50),)))
    trajectory = play(env, engine=FakeEngine(lambda r: b"ok", max_context=30))
    failure = trajectory.failure
    assert (failure.kind, failure.boundary, failure.retry) == ("model_failed", "chat.open", False)
    assert "tokens, and engine.max_context is 30. Raise it" in failure.message
    assert trajectory.score.value is None and env.closed == 1


@pytest.mark.parametrize(
    ("env", "kind", "where"),
    [
        (Env(ValueError("boom")), "env_raised", "env.step"),
        (Env(EnvError("died", kind="env_died")), "env_died", "env.step"),
        (Env(TimeoutError("slow")), "env_timeout", "env.step"),
        (Env(opening=KeyError("x")), "env_raised", "env.reset"),
    ],
)
def test_a_broken_environment_is_one_episodes_data_and_is_closed(env, kind, where):
    trajectory = play(env)
    assert trajectory.status == "failed" and trajectory.score.value is None
    assert (trajectory.failure.kind, trajectory.failure.boundary, trajectory.failure.retry) == (kind, where, True)
    assert env.closed == 1


def test_a_reward_sees_every_turn():
    env = Env(say("and?", 0.25), say("so?", 0.5), say("", 1.0, terminated=True))
    scorer = Scorer(env)
    (row,) = play(env, scorer=scorer).rows()
    seen = scorer.seen
    assert [(m.role, m.text) for m in seen.messages] == [
        ("user", "hello"), ("assistant", "ok"), ("user", "and?"), ("assistant", "ok"), ("user", "so?"),
        ("assistant", "ok"),
    ]  # fmt: skip
    assert (seen.step_rewards, seen.turns, seen.status, seen.info["map"]) == ((0.25, 0.5, 1.0), 3, "terminated", 1)
    assert (seen.sampled_tokens, seen.prompt_tokens) == (9, len(row.tokens) - 9)


def test_a_failing_reward_leaves_the_status_and_takes_the_score():
    env = Env(say("", terminated=True))
    failure = Failure("reward_nan", "rewards/x", "NaN")
    trajectory = play(env, scorer=Scorer(env, failure))
    assert trajectory.status == "terminated" and trajectory.score.value is None
    assert trajectory.failure == failure and not trajectory.usable


def test_a_deadline_truncates_and_keeps_what_was_earned():
    env = Env(say("go on", 0.25), 1e4, opening=None)
    trajectory = play(env, timeouts=Timeouts(episode_s=100.0))
    assert (trajectory.status, trajectory.stop_reason) == ("truncated", "deadline")
    assert trajectory.score.value == 0.25 and env.closed == 1


def test_a_model_call_that_hangs_is_a_timeout_of_the_model():
    trajectory = play(Env(), engine=FakeEngine(lambda r: b"abc", tokens_per_s=0.001), timeouts=Timeouts(model_s=5.0))
    assert trajectory.failure.kind == "model_timeout"


def test_a_request_that_does_not_fit_fails_its_episode_alone():
    def refuse(request):
        raise ModelError("does not fit", retry=False)

    trajectory = play(Env(), engine=FakeEngine(refuse))
    assert trajectory.failure.kind == "model_failed" and not trajectory.failure.retry


def test_whatever_a_model_call_raises_is_one_episodes_data():
    def broken(request):
        raise ValueError("no such shape")

    env = Env()
    failure = (trajectory := play(env, engine=FakeEngine(broken))).failure
    assert (failure.kind, failure.boundary) == ("model_failed", "engine.generate")
    assert re.fullmatch(r"ValueError: no such shape \(test_episode\.py:\d+\)", failure.message)
    assert trajectory.score.value is None and env.closed == 1


def test_a_lost_engine_ends_the_run():
    def lost(request):
        raise EngineError("gone")

    env = Env()
    with pytest.raises(EngineError):
        play(env, engine=FakeEngine(lost))
    assert env.closed == 1


def test_cancellation_closes_the_environment():
    env = Env(1e6)

    async def main():
        engine = FakeEngine(lambda r: b"x")
        suite = Suite("s", "e", env, Scorer(env), engine, FakeChatFormat(), Hooks())
        request = RolloutRequest(SampleId("s", 0, 0), Task("t"), 1, 5, Sampling(), 1)
        episode = asyncio.create_task(run_episode(request, suite))
        await asyncio.sleep(10)
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode

    run(main())
    assert env.closed == 1


def test_observers_hear_of_start_steps_score_and_end():
    hooks = Hooks()
    play(Env(say("1"), say("", terminated=True)), hooks=hooks)
    assert hooks.called == [
        "tunix_episode_start", "tunix_step", "tunix_step", "tunix_trajectory_scored", "tunix_episode_end",
    ]  # fmt: skip


class Strict(Hooks):
    """Refuses every call of "rm", and flags every trajectory."""

    def collect(self, hook: str, **arguments: Any) -> Any:
        return [("strict", ["looked at"])] if hook == "tunix_audit_reward" else []

    def decide(self, hook: str, **arguments: Any) -> Any:
        return "no deleting" if hook == "tunix_review_tool_call" and arguments["call"].name == "rm" else None


def test_a_refused_call_reaches_the_environment_with_its_reason_and_flags_reach_the_score():
    env = Env(say("", terminated=True))
    call = (
        b'<tool_call>{"name": "rm", "arguments": {}}</tool_call><tool_call>{"name": "ls", "arguments": {}}</tool_call>'
    )
    trajectory = play(env, reply=call, sampling=Sampling(max_tokens=200), hooks=Strict())
    refused, allowed = env.actions[0].tool_calls
    assert refused.error == "refused: no deleting" and allowed.error is None
    assert trajectory.messages[1].tool_calls[0].error is None  # what was said stays as it was said
    assert trajectory.score.flags == ("looked at",)


class Rewriting(FakeChatFormat):
    """Drops everything but the first three tokens at each extension."""

    def extend(self, history, messages, past):
        self.past = past
        return Rendering(super().extend(history, messages, past).tokens, 3)


def test_a_rewritten_history_forks_and_trains_each_sampled_token_once():
    chat = Rewriting()
    talk = Conversation(chat, [Message.of("user", "hi")], [{"name": "look"}])
    engine = FakeEngine(lambda r: b"one")

    async def turn():
        from tunix_core.contracts import GenerateRequest

        talk.hear(await engine.generate(GenerateRequest(talk.tokens, Sampling(), 1, 9, (END,))))

    run(turn())
    before = talk.tokens
    talk.say([Message.of("user", "again")])
    assert talk.branch == 1 and (talk.tokens[:3] == before[:3]).all()
    assert [m.role for m in chat.past.messages] == ["user", "assistant"] and chat.past.tools == ({"name": "look"},)
    assert chat.past.marks == ((1, len(before) - 4),)  # three letters and the end
    prompt = len(talk.tokens)
    run(turn())
    talk.say([Message.of("user", "and again")])
    assert chat.past.marks == ((3, prompt),), "what was rewritten has no mark any more"
    run(turn())
    from tunix_core.types import Trajectory

    rows = list(Trajectory(SampleId("s", 0, 0), "e", Task("t"), 0, tuple(talk.spans)).rows())
    assert len(rows) == 3
    assert sum(int(row.mask.sum()) for row in rows) == talk.sampled_tokens == 12


def test_a_frozen_suite_can_be_given_other_hooks():
    suite = Suite("s", "e", Env(), None, None, None, Hooks())
    assert replace(suite, hooks=None).hooks is None


@pytest.mark.parametrize(
    "script",
    [(say("and?"), say("", 1.0, terminated=True)), (RuntimeError("broken"),), (9.0, say("too late"))],
    ids=["ends", "raises", "deadline"],
)
def test_an_episode_leaves_nothing_to_the_garbage_collector(script: tuple[Any, ...]):
    """Among ten thousand of them, to look for it costs more than all else."""
    engine = FakeEngine(lambda request: b"ok")

    async def episode() -> None:
        env = Env(*script)
        suite = Suite("s", "e", env, Scorer(env), engine, FakeChatFormat(), Hooks(), timeouts=Timeouts(episode_s=5.0))
        await run_episode(RolloutRequest(SampleId("s", 0, 0), Task("t"), 1, 5, Sampling(), 3), suite)

    async def main() -> int:
        await asyncio.ensure_future(episode())  # what is made once
        gc.collect()
        gc.disable()
        for _ in range(5):
            await asyncio.ensure_future(episode())
        return gc.collect()

    try:
        assert run(main()) == 0
    finally:
        gc.enable()
