"""A fifth of the episodes fail, in every way and at every place: nothing is left behind, the cost is bounded."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from pathlib import Path

import pytest
from small_run import TROUBLE

from tunix_core.config import RewardConfig, SchedulerConfig, load_config
from tunix_core.contracts import Sampling
from tunix_core.envs import make_opener
from tunix_core.plugins import Hub
from tunix_core.rewards import make_scorer
from tunix_core.rollout import Suite
from tunix_core.run import train
from tunix_core.run.pipeline import Pipeline
from tunix_core.scheduler import Mixture, SuitePlan
from tunix_core.specs import Timeouts, load_target
from tunix_core.tasks import TaskStream
from tunix_core.testing.chat import FakeChatFormat
from tunix_core.testing.clock import run
from tunix_core.testing.engine import FakeEngine, FixedWeights
from tunix_core.types import Trajectory

FAULTS = Path(__file__).parents[2] / "benchmarks" / "pipeline_env.py"
KINDS = {"env_raised", "env_timeout", "reward_nan", "env_contract", "sandbox_failed"}


class Useful:
    """The pipeline over the environments that fail, in virtual time, with a trainer that costs nothing."""

    def __init__(self, faulty: float) -> None:
        hub = Hub.load(files=[FAULTS])
        self.seen: list[Trajectory] = []
        self.spec = hub.find("envs", "pipeline_env/latency")
        self.reward = hub.load_object("rewards", "pipeline_env/sometimes_nan")
        self.hooks, self.options = hub.hooks, {"mean_s": 1.0, "shape": "lognormal", "faulty": faulty}

    async def group_s(self, steps: int = 12, groups: int = 8) -> float:
        """Seconds from one trained group to the next."""
        timeouts, source = Timeouts(step_s=20.0, reset_s=60.0), FixedWeights()
        opener = make_opener(self.spec, load_target, timeouts=timeouts, options=self.options, max_steps=3)
        scorer = make_scorer(
            [RewardConfig("pipeline_env/sometimes_nan")],
            lambda _: self.reward,
            range_of_env=(0.0, 1.0),
            timeouts=timeouts,
        )
        engine = FakeEngine(lambda request: b"abc", version_source=source)
        suite = Suite("s", self.spec.id, opener, scorer, engine, FakeChatFormat(), self.hooks, timeouts)
        tasks = TaskStream(load_target(self.spec.tasks)("train", 0), seed=0)
        plan = SuitePlan(suite, tasks, Sampling(), 3, group_size=8, min_group=2)
        config = SchedulerConfig(max_episodes=64, failure_window=100_000)
        pipeline = Pipeline({"s": plan}, Mixture({"s": 1.0}, groups), config, seed=0, observe=self.seen.append)
        pipeline.start()
        for version in range(steps):
            await pipeline.collect(self._take)
            source.version = version + 1
            pipeline.scheduler.advance(version + 1)
        took = asyncio.get_running_loop().time() / (steps * groups)
        await pipeline.aclose()
        await opener.aclose()
        await scorer.aclose()
        statistics = opener.statistics()
        assert statistics["opened"] == statistics["closed"] and not statistics["open"]
        assert not statistics["uncancelled_calls"] and not statistics["abandoned_threads"]
        return took

    async def _take(self, group: object) -> None: ...

    def work(self) -> float:
        """Turns of all attempts, over turns of those that got a score."""
        return sum(t.turns for t in self.seen) / sum(t.turns for t in self.seen if t.usable)


def test_the_time_of_a_useful_group_grows_with_the_work_that_was_lost_and_the_hangs_limits_alone():
    sound, faulty = Useful(0.0), Useful(0.2)
    sound_s, faulty_s = run(sound.group_s(), timeout_s=1e6), run(faulty.group_s(), timeout_s=1e6)
    found = Counter(t.failure.kind for t in faulty.seen if t.failure)
    assert set(found) == KINDS and 0.12 < found.total() / len(faulty.seen) < 0.28
    # Per useful episode, as `work` is: a hang holds its place for step_s = 20 s, where an episode takes 4 s.
    useful = sum(t.usable for t in faulty.seen)
    held = sum(20.0 for t in faulty.seen if t.failure and t.failure.kind == "env_timeout") / (4.0 * useful)
    # Real threads run beside the virtual clock, so the cost varies: 1.04 to 1.27 times this over twenty runs.
    assert faulty_s / sound_s < 1.4 * (faulty.work() + held)


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
