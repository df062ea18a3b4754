"""A fifth of the episodes fail, in every way and at every place: nothing is left behind, the cost is bounded."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from small_run import TROUBLE

from tunix_core.config import RewardConfig, SchedulerConfig, load_config
from tunix_core.contracts import Sampling
from tunix_core.envs import make_opener
from tunix_core.plugins import Hub
from tunix_core.rewards import make_scorer, reward
from tunix_core.rollout import Suite
from tunix_core.run import train
from tunix_core.run.pipeline import Pipeline
from tunix_core.scheduler import Mixture, SuitePlan
from tunix_core.specs import Timeouts, load_target
from tunix_core.tasks import TaskStream
from tunix_core.testing.chat import FakeChatFormat
from tunix_core.testing.clock import run
from tunix_core.testing.engine import FakeEngine, FixedWeights
from tunix_core.tools.threads import settle
from tunix_core.types import Trajectory

FAULTS = Path(__file__).parents[2] / "benchmarks" / "pipeline_env.py"
KINDS = {"env_raised", "env_timeout", "reward_nan", "env_contract", "sandbox_failed"}


class InlineLane:
    """Runs what it is given at once: a thread of its own would run beside the virtual clock."""

    def __init__(self, name: str) -> None: ...

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        settle(future, call)
        return future

    def end(self) -> None: ...
    def join(self, timeout_s: float) -> None: ...


class EngineBound:
    """The pipeline in virtual time, over environments that fail: the engine is busy, and the trainer costs nothing."""

    GROUPS, STEPS, STEP_S = 8, 12, 8.0

    def __init__(self, faulty: float, seed: int) -> None:
        hub = Hub.load(files=[FAULTS])
        self.seen: list[Trajectory] = []
        self.spec, self.hooks = hub.find("envs", "pipeline_env/latency"), hub.hooks
        self.options = {"mean_s": 0.5, "shape": "lognormal", "faulty": faulty, "salt": seed}
        threaded: Any = hub.load_object("rewards", "pipeline_env/sometimes_nan")

        @reward(range=(0.0, 1.0))
        async def sometimes_nan(episode: Any) -> float:
            return threaded(episode)

        self.reward = sometimes_nan

    async def group_s(self) -> float:
        """Seconds from one trained group to the next, once the first step is over."""
        timeouts, source, loop = Timeouts(step_s=self.STEP_S), FixedWeights(), asyncio.get_running_loop()
        opener = make_opener(self.spec, load_target, timeouts=timeouts, options=self.options, max_steps=3)
        parts = [RewardConfig("pipeline_env/sometimes_nan")]
        scorer = make_scorer(parts, lambda _: self.reward, range_of_env=(0.0, 1.0), timeouts=timeouts)
        engine = FakeEngine(lambda request: b"a", version_source=source, slots=8, tokens_per_s=2.5)
        suite = Suite("s", self.spec.id, opener, scorer, engine, FakeChatFormat(), self.hooks, timeouts)
        tasks = TaskStream(load_target(self.spec.tasks)("train", 0), seed=0)
        plan = SuitePlan(suite, tasks, Sampling(), 3, group_size=8, min_group=2)
        config = SchedulerConfig(max_episodes=64, failure_window=100_000)
        pipeline = Pipeline({"s": plan}, Mixture({"s": 1.0}, self.GROUPS), config, seed=0, observe=self.seen.append)
        pipeline.start()
        ends = []
        for version in range(self.STEPS):
            await pipeline.collect(self._take)
            ends.append(loop.time())
            source.version = version + 1
            pipeline.scheduler.advance(version + 1)
        await pipeline.aclose()
        await opener.aclose()
        await scorer.aclose()
        statistics = opener.statistics()
        assert statistics["opened"] == statistics["closed"] and not statistics["open"]
        assert not statistics["uncancelled_calls"] and not statistics["abandoned_threads"]
        return (ends[-1] - ends[0]) / (self.GROUPS * (self.STEPS - 1))

    async def _take(self, group: object) -> None: ...

    def work(self) -> float:
        """Turns of all attempts, over turns of those that got a score."""
        return sum(t.turns for t in self.seen) / sum(t.turns for t in self.seen if t.usable)


@pytest.mark.parametrize("seed", range(2))
def test_the_time_of_a_useful_group_grows_with_the_work_that_was_lost_alone(seed, monkeypatch):
    monkeypatch.setattr("tunix_core.envs.local.Lane", InlineLane)
    sound = EngineBound(0.0, seed)
    sound_s = run(sound.group_s(), timeout_s=1e6)
    faulty = EngineBound(0.2, seed)
    faulty_s = run(faulty.group_s(), timeout_s=1e6)
    found = Counter(t.failure.kind for t in faulty.seen if t.failure)
    assert set(found) == KINDS and 0.12 < found.total() / len(faulty.seen) < 0.28
    assert faulty_s / sound_s <= 1.1 * faulty.work()


CONFIG = """
run_dir = "{run_dir}"
model_options = {{ random = 1 }}
steps = 4
[trainer]
groups_per_step = 10
rows = 4
row_tokens = 256
[scheduler]
failure_window = 100000
no_signal_steps = 1000
[engine]
slots = 16
max_context = 256
prefill_chunk = 32
decode_steps = 4
[[suite]]
env = "pipeline_env/latency"
weight = 4
rewards = ["pipeline_env/sometimes_nan"]
sampling = {{ max_tokens = 4 }}
timeouts = {{ step_s = 2.0 }}
options = {{ mean_s = 0.005, faulty = 0.2 }}
[[suite]]
env = "trouble/blocking"
isolation = "process"
group_size = 4
sampling = {{ max_tokens = 4 }}
timeouts = {{ step_s = 2.0 }}
options = {{ hanging = 0.2 }}
"""


def held() -> dict[str, int]:
    tasks = list(Path("/proc/self/task").iterdir())
    children = sum(len((task / "children").read_text().split()) for task in tasks)
    ours = sum(thread.name.startswith("tunix") for thread in threading.enumerate())
    return {"threads": ours, "children": children, "descriptors": len(os.listdir("/proc/self/fd"))}


@pytest.mark.slow
def test_hundreds_of_failing_episodes_leave_no_thread_process_or_descriptor_behind(tmp_path):
    counted: list[dict[str, int]] = []
    for name in ("first", "second"):  # what the process keeps for itself is there after the first
        text = CONFIG.format(run_dir=tmp_path / name)
        result = train(load_config(None, text=text), hub=Hub.load(files=[FAULTS, TROUBLE]))
        gc.collect()
        counted.append(held())
    episodes = len((tmp_path / "second" / "trajectories.jsonl").read_text().splitlines())
    failures = {suite: sum(kinds.values()) for suite, kinds in result.summary["failures"].items()}
    assert episodes >= 280 and failures["pipeline_env/latency"] >= 25 and failures["trouble/blocking"] >= 2
    assert set(result.summary["failures"]["pipeline_env/latency"]) >= KINDS - {"reward_nan"}
    assert result.summary["steps"] == 4 and result.summary["mix_error"] == 0
    assert counted[1] == counted[0]
    assert not counted[1]["threads"] and not counted[1]["children"]
