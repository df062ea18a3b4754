"""One episode from `reset` to its score. What goes wrong in it is data; it never ends the run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from tunix_core.contracts import (
    ChatFormat,
    Completion,
    Context,
    Engine,
    EnvHandle,
    EnvOpener,
    Episode,
    GenerateRequest,
    Hooks,
    RolloutRequest,
    Scorer,
)
from tunix_core.errors import EnvError, EpisodeError, ModelError, ToolError, boundary, failure_of
from tunix_core.profiling import span
from tunix_core.rollout.conversation import Conversation
from tunix_core.rollout.limits import Limit, Timer
from tunix_core.specs import Timeouts
from tunix_core.types import Failure, Message, Score, StepResult, Trajectory, derive_seed

OPENING, RESETTING, STEPPING = (boundary(f"env.{name}", EnvError) for name in ("open", "reset", "step"))
GENERATING = boundary("engine.generate", ModelError)
CHAT_OPEN, CHAT_EXTEND = boundary("chat.open", ModelError), boundary("chat.extend", ModelError)
REVIEWING = boundary("tunix_review_tool_call", ToolError)


@dataclass(frozen=True, slots=True)
class Suite:
    """What an episode of one suite needs, connected by the run."""

    name: str
    env: str
    opener: EnvOpener
    scorer: Scorer
    engine: Engine
    chat: ChatFormat
    hooks: Hooks
    timeouts: Timeouts = Timeouts()
    stop_texts: tuple[str, ...] = ()
    run_dir: Path | None = None  # what the hooks are told


@dataclass(slots=True)
class _State:
    """What an episode has come to so far; turned into a Trajectory once."""

    timer: Timer = field(default_factory=Timer)
    conversation: Conversation | None = None
    branch: int = -1
    seed: int = 0  # of the branch
    rewards: list[float] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    status: str = "truncated"
    stop_reason: str = "max_turns"
    failure: Failure | None = None
    timing: dict[str, float] = field(default_factory=lambda: {"env": 0.0, "engine": 0.0, "reward": 0.0})


async def run_episode(request: RolloutRequest, suite: Suite) -> Trajectory:
    """Runs one episode and scores it while its environment is open.

    Gives a Trajectory whatever happens inside: a failure is in its `failure`, and its score is
    then None. Raises only EngineError, RunEnded and cancellation, which concern the whole run.
    """
    name = request.id
    with span("episode", suite=suite.name, group=name.group, sample=name.sample, attempt=name.attempt):
        return await _run(request, suite)


async def _run(request: RolloutRequest, suite: Suite) -> Trajectory:
    context = Context(run_dir=suite.run_dir, suite=suite.name, sample=request.id, env=suite.env)
    state, started, env = _State(), perf_counter(), None
    suite.hooks.notify("tunix_episode_start", ctx=context, task=request.task)
    try:
        with span("env.open"), OPENING:
            env = await suite.opener.open(request.task)
        await _play_until_deadline(request, suite, env, state, context)
        score = await _score(request, suite, state, env)
    except EpisodeError as error:
        state.status, state.failure = "failed", failure_of(error)
        state.stop_reason = state.failure.kind
        score = Score(None, failure=state.failure)
    finally:
        state.timer.close()
        if env is not None:
            with span("env.close"):
                await env.close()
    state.timing["total"] = perf_counter() - started
    trajectory = _audited(_trajectory(request, suite, state, score), suite.hooks, context)
    score = trajectory.score
    suite.hooks.notify("tunix_trajectory_scored", ctx=context, trajectory=trajectory, score=score)
    suite.hooks.notify("tunix_episode_end", ctx=context, trajectory=trajectory)
    return trajectory


async def _play_until_deadline(
    request: RolloutRequest, suite: Suite, env: EnvHandle, state: _State, context: Context
) -> None:
    try:
        with state.timer.limit(suite.timeouts.episode_s):
            await _play(request, suite, env, state, context)
    except TimeoutError:
        if state.conversation is None or not state.conversation.sampled_tokens:
            message = f"the episode's {suite.timeouts.episode_s} s were over before the policy spoke"
            raise EnvError(message, kind="env_timeout") from None
        state.status, state.stop_reason = "truncated", "deadline"


async def _play(request: RolloutRequest, suite: Suite, env: EnvHandle, state: _State, context: Context) -> None:
    started = perf_counter()
    try:
        with span("env.reset"), RESETTING:
            opening = await env.reset(request.seed)
    finally:
        state.timing["env"] += perf_counter() - started
    state.info.update(opening.info)
    with CHAT_OPEN:
        talk = state.conversation = Conversation(suite.chat, opening.messages, opening.tools)
    limit = state.timer.limit(suite.timeouts.model_s)
    while talk.turn < request.max_turns:
        if len(talk.tokens) >= suite.engine.max_context:
            state.stop_reason = _out_of_room(talk, suite.engine.max_context)
            return
        with span("engine.generate", turn=talk.turn), GENERATING:
            completion = await _generated(request, suite, talk, state, limit)
            action = talk.hear(completion)
        if action.tool_calls:
            with REVIEWING:
                action = _reviewed(action, suite.hooks, context)
        result = await _step(suite, env, state, action, talk.turn, context)
        if result.done:
            _end(state, result)
            return
        cut = _cut(request, completion, talk)
        if cut:
            state.stop_reason = cut
            return
        with CHAT_EXTEND:
            talk.say(result.observation)


async def _generated(
    request: RolloutRequest, suite: Suite, talk: Conversation, state: _State, limit: Limit
) -> Completion:
    if state.branch != talk.branch:
        name, state.branch = request.id, talk.branch
        state.seed = derive_seed(request.run_seed, name.suite, name.group, name.sample, name.attempt, talk.branch)
    wanted = GenerateRequest(
        prompt=talk.tokens,
        sampling=request.sampling,
        seed=state.seed,
        max_tokens=_budget(request, talk),
        stop_tokens=suite.chat.stop_tokens,
        stop_texts=suite.stop_texts,
    )
    started = perf_counter()
    try:
        with limit:
            return await suite.engine.generate(wanted)
    finally:
        state.timing["engine"] += perf_counter() - started


async def _step(
    suite: Suite, env: EnvHandle, state: _State, action: Message, turn: int, context: Context
) -> StepResult:
    started = perf_counter()
    try:
        with span("env.step", turn=turn), STEPPING:
            result = await env.step(action)
    finally:
        state.timing["env"] += perf_counter() - started
    state.rewards.append(float(result.reward))
    state.info.update(result.info)
    suite.hooks.notify("tunix_step", ctx=context, action=action, result=result)
    return result


def _reviewed(action: Message, hooks: Hooks, context: Context) -> Message:
    """The action with every call refused that a plugin gives a reason against; the policy is told the reason."""
    answers = [hooks.decide("tunix_review_tool_call", ctx=context, call=call) for call in action.tool_calls]
    calls = [
        replace(call, error=call.error or f"refused: {answer}") if isinstance(answer, str) else call
        for call, answer in zip(action.tool_calls, answers, strict=True)
    ]
    return replace(action, tool_calls=tuple(calls))


def _budget(request: RolloutRequest, talk: Conversation) -> int:
    """How many tokens this turn may have; the episode's own budget bounds the turn's."""
    sampling = request.sampling
    if sampling.max_episode_tokens is None:
        return sampling.max_tokens
    return min(sampling.max_tokens, sampling.max_episode_tokens - talk.sampled_tokens)


def _out_of_room(talk: Conversation, max_context: int) -> str:
    """Why a conversation of `max_context` tokens ends. Raises ModelError where the policy never spoke in it."""
    if talk.turn == 0:
        with boundary("chat.open", ModelError):
            raise ModelError(
                f"the opening has {len(talk.tokens)} tokens, and engine.max_context is {max_context}. Raise it and "
                "trainer.row_tokens (`tunix eval --max-context`), or let the environment say less.",
                retry=False,
            )
    return "context"


def _cut(request: RolloutRequest, completion: Completion, talk: Conversation) -> str | None:
    """Why the conversation cannot go on after a step that did not end it, or None."""
    bound = request.sampling.max_episode_tokens
    if completion.finish_reason == "context":
        return "context"
    return "max_tokens" if bound is not None and talk.sampled_tokens >= bound else None


def _end(state: _State, result: StepResult) -> None:
    if result.terminated:
        state.status, state.stop_reason = "terminated", "finished"
    else:
        state.stop_reason = str(result.info.get("truncated_by", "environment"))


async def _score(request: RolloutRequest, suite: Suite, state: _State, env: EnvHandle) -> Score:
    started = perf_counter()
    with span("reward"):
        score = await suite.scorer.score(_episode(request, state, env))
    state.timing["reward"] = perf_counter() - started
    state.failure = score.failure
    return score


def _episode(request: RolloutRequest, state: _State, env: EnvHandle) -> Episode:
    talk = state.conversation
    assert talk is not None  # scored only after `_play`
    sampled = talk.sampled_tokens
    return Episode(
        task=request.task,
        messages=tuple(talk.messages),
        step_rewards=tuple(state.rewards),
        info=dict(state.info),
        status=state.status,  # type: ignore[arg-type]
        stop_reason=state.stop_reason,
        prompt_tokens=sum([span.tokens.size for span in talk.spans]) - sampled,
        sampled_tokens=sampled,
        turns=talk.turn,
        sandbox=env.sandbox,
    )


def _trajectory(request: RolloutRequest, suite: Suite, state: _State, score: Score) -> Trajectory:
    talk = state.conversation
    return Trajectory(
        id=request.id,
        env=suite.env,
        task=request.task,
        seed=request.seed,
        spans=tuple(talk.spans) if talk else (),
        messages=tuple(talk.messages) if talk else (),
        step_rewards=tuple(state.rewards),
        turns=talk.turn if talk else 0,
        status=state.status,  # type: ignore[arg-type]
        stop_reason=state.stop_reason,
        failure=state.failure,
        score=score,
        info=state.info,
        timing=state.timing,
    )


def _audited(trajectory: Trajectory, hooks: Hooks, context: Context) -> Trajectory:
    """The trajectory with what auditors flag added to its score's flags."""
    answers = hooks.collect("tunix_audit_reward", ctx=context, trajectory=trajectory)
    flags = tuple(str(flag) for _, found in answers for flag in found)
    if not flags or trajectory.score is None:
        return trajectory
    return trajectory.scored(replace(trajectory.score, flags=(*trajectory.score.flags, *flags)))


def as_episode(trajectory: Trajectory) -> Episode:
    """A finished trajectory as rewards read it (its sandbox is closed)."""
    sampled = trajectory.sampled_tokens
    return Episode(
        task=trajectory.task,
        messages=trajectory.messages,
        step_rewards=trajectory.step_rewards,
        info=trajectory.info,
        status=trajectory.status,
        stop_reason=trajectory.stop_reason,
        prompt_tokens=sum([span.tokens.size for span in trajectory.spans]) - sampled,
        sampled_tokens=sampled,
        turns=trajectory.turns,
    )
