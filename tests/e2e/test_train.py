"""Whole runs: what breaks in an episode is counted, and the run ends as it should."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_run import SUITE

from tunix_core.config import RunConfig
from tunix_core.errors import CheckpointError, NoSignal, PluginError, TooManyFailures, UsageError
from tunix_core.profiling import read_spans
from tunix_core.reporting import write_trace
from tunix_core.run.barriers import by_kind, shares


def rows(run_dir, name="metrics.jsonl"):
    return [json.loads(line) for line in (run_dir / name).read_text().splitlines()]


def params(run_dir, step):
    from jax import tree

    from tunix_core.plugins import Hub
    from tunix_core.run.policies import open_model

    return tree.leaves(open_model(f"{run_dir}@{step}", Hub.load()).params)


def same(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def assert_the_stored_spans_say_what_the_metrics_say(run_dir):
    spans = by_kind(read_spans(run_dir / "spans"))
    for row in rows(run_dir):
        until_ns = int(row["until_s"] * 1e9)
        found = shares(spans, until_ns - int(row["window_s"] * 1e9), until_ns)
        assert found == pytest.approx({name: row[name] for name in found}, rel=0.01, abs=0.001)
        assert 0 <= row["busy/engine"] <= 1 and 0 < row["busy/trainer"] <= 1  # the last steps have all they need


def test_a_run_leaves_everything_in_its_directory(launch, capsys):
    result = launch(steps=3, rest="[eval]\nn = 5\n")
    told = capsys.readouterr().out.splitlines()
    first = told.index("Done. Go on with:") + 1
    assert [line.split()[:3] for line in told[first:]] == [
        ["tunix", "eval", "trouble/env"],
        ["tunix", "export", str(result.run_dir)],
        ["tunix", "trace", str(result.run_dir)],
    ]
    found = {path.name for path in result.run_dir.iterdir()}
    assert {"config.toml", "lock.json", "metrics.jsonl", "trajectories.jsonl", "checkpoints", "summary.json"} <= found
    assert [row["step"] for row in rows(result.run_dir)] == [0, 1, 2]
    assert rows(result.run_dir, "tracked.jsonl") == [{"logged_at": row["step"], **row} for row in rows(result.run_dir)]
    assert rows(result.run_dir)[-1]["agreement_max"] < 1e-4
    assert_the_stored_spans_say_what_the_metrics_say(result.run_dir)
    assert result.summary["pipeline"]["bound_by"] and write_trace(result.run_dir, result.run_dir / "trace") > 100
    episode = json.loads((result.run_dir / "trajectories.jsonl").read_text().splitlines()[0])
    assert episode["messages"][0]["text"].startswith("say") and episode["score"] is not None
    assert set(result.summary["suites"]) == {"trouble/env"}
    assert result.summary["suites"]["trouble/env"]["before"] is not None and result.summary["steps"] == 3


def test_an_environment_that_raises_in_a_fifth_of_its_steps_ends_normally(launch):
    result = launch("failing = 0.2", steps=3)
    assert result.exit_code == 0 and len(rows(result.run_dir)) == 3
    assert result.summary["failures"]["trouble/env"]["env_raised"] > 0


def test_an_environment_that_hangs_is_timed_out_and_counted(launch):
    result = launch("hanging = 0.15", steps=2)
    assert result.summary["failures"]["trouble/env"]["env_timeout"] > 0


def test_an_environment_that_mostly_fails_ends_the_run_by_name(launch):
    with pytest.raises(TooManyFailures, match=r"trouble/env.*env_raised"):
        launch("failing = 1.0", rest="[scheduler]\nfailure_window = 20\n")


@pytest.mark.parametrize(
    ("reward", "kind"), [("nan", "reward_nan"), ("outside", "reward_range"), ("raising", "reward_raised")]
)
def test_a_bad_reward_takes_its_samples_score_and_is_counted(launch, reward, kind):
    suite = f"""
[[suite]]
env = "trouble/env"
group_size = 4
sampling = {{ max_tokens = 6 }}
rewards = ["env", "trouble/{reward}"]
"""
    result = launch(steps=2, suite=suite.replace("{", "{{").replace("}", "}}"))
    assert result.summary["failures"]["trouble/env"][kind] > 0
    assert 0 < rows(result.run_dir)[0]["suite/trouble/env/none_share"] < 1


def test_on_policy_is_a_function_of_the_seed_whatever_the_latencies(launch):
    rest = '[scheduler]\nmode = "on_policy"\n[checkpoint]\nevery_steps = 1\n'
    quick = launch("latency_s = 0.0", rest, name="quick")
    slow = launch("latency_s = 0.05", rest, name="slow")
    assert same(params(quick.run_dir, 2), params(slow.run_dir, 2))
    assert not same(params(quick.run_dir, 1), params(quick.run_dir, 2))


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(launch):
    rest = '[scheduler]\nmode = "on_policy"\n[checkpoint]\nevery_steps = 1\nkeep = 9\n'
    whole = launch(rest=rest, steps=4, name="whole")
    launch(rest=rest, steps=2, name="parts")
    parts = launch(rest=rest, steps=4, name="parts", resume=True)
    assert same(params(whole.run_dir, 4), params(parts.run_dir, 4))
    for name, step in (("metrics.jsonl", "step"), ("tracked.jsonl", "logged_at")):
        assert [row[step] for row in rows(parts.run_dir, name)] == [0, 1, 2, 3]


def test_a_run_is_not_overwritten_and_not_resumed_as_something_else(launch):
    first = launch()
    with pytest.raises(UsageError, match="--resume"):
        launch()
    with pytest.raises(CheckpointError, match="failing"):
        launch("failing = 0.1", resume=True, steps=3)
    with pytest.raises(CheckpointError, match="nothing to resume"):
        launch(resume=True, name="nowhere")
    assert launch(overwrite=True).run_dir == first.run_dir


def test_what_was_to_be_replaced_is_kept_where_nothing_could_begin(launch, tmp_path):
    before = launch(steps=1).run_dir
    kept = {path.relative_to(before): path.read_bytes() for path in before.rglob("*") if path.is_file()}
    missing = SUITE.replace("[[suite]]", '[[suite]]\nrewards = [{{ id = "trouble/gone" }}]')
    with pytest.raises(PluginError, match="trouble/gone"):
        launch(overwrite=True, suite=missing)
    assert {path.relative_to(before): path.read_bytes() for path in before.rglob("*") if path.is_file()} == kept
    assert not (tmp_path / "run.replaced").exists()


def test_resume_asks_which_run(tmp_path, monkeypatch):
    from tunix_core.plugins import Hub
    from tunix_core.run import train

    monkeypatch.chdir(tmp_path)
    config = RunConfig(())
    with pytest.raises(UsageError, match=r"run_dir=PATH\.$"):
        train(config, hub=Hub.load(), resume=True)
    (tmp_path / "runs" / "mine-1").mkdir(parents=True)
    (tmp_path / "runs" / "mine-1" / "lock.json").touch()
    with pytest.raises(UsageError, match=r"run_dir=PATH\. The newest is runs/mine-1\."):
        train(config, hub=Hub.load(), resume=True)


def test_a_run_in_which_nothing_can_be_learned_says_so(launch):
    suite = """
[[suite]]
env = "trouble/env"
group_size = 2
sampling = { max_tokens = 6 }
rewards = [{ id = "env", weight = 0.0 }]
""".replace("{", "{{").replace("}", "}}")
    given = {"suite": suite, "rest": "[scheduler]\nno_signal_steps = 2\n", "steps": 5}
    with pytest.raises(NoSignal, match=r"trajectories\.jsonl"):
        launch(**given)
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        launch(**given, resume=True)


def test_modes_in_flight_and_drain_train_too(launch):
    for mode in ("in_flight", "drain"):
        result = launch("latency_s = 0.01", f'[scheduler]\nmode = "{mode}"\nmax_staleness = 2\n', steps=3, name=mode)
        assert max(row["staleness_max"] for row in rows(result.run_dir)) <= 2


def test_an_exported_policy_is_the_runs(launch, tmp_path):
    from jax import tree

    from tunix_core.plugins import Hub
    from tunix_core.run import export
    from tunix_core.run.policies import open_model

    run_dir = launch().run_dir
    target = export(str(run_dir), str(tmp_path / "out"), hub=Hub.load())
    assert same(tree.leaves(open_model(str(target), Hub.load()).params), params(run_dir, 2))
    with pytest.raises(UsageError, match="not an empty directory"):
        export(str(run_dir), str(target), hub=Hub.load())
