"""Whole runs of what the scheduler does by option: evaluation during training, curricula, refill, over-sampling."""

from __future__ import annotations

import json

import pytest
from test_train import params, rows, same

from tunix_core.errors import UsageError

ON_POLICY = '[scheduler]\nmode = "on_policy"\n[checkpoint]\nevery_steps = 1\nkeep = 9\n'


def suite(**keys):
    lines = "\n".join(f"{name} = {value}" for name, value in keys.items())
    text = f'\n[[suite]]\nenv = "trouble/env"\ngroup_size = 4\nsampling = {{ max_tokens = 6 }}\n{lines}\n'
    return text.replace("{", "{{").replace("}", "}}")


@pytest.mark.parametrize("mode", ["beside", pytest.param("turns", marks=pytest.mark.slow)])
def test_evaluation_during_training_is_in_the_metrics_and_changes_nothing(launch, mode):
    plain = launch(rest=ON_POLICY, steps=3, name="plain")
    rest = f'{ON_POLICY}[eval]\nn = 3\nevery_steps = 1\nmode = "{mode}"\nslots = 8\n'
    run = launch(rest=rest, steps=3, name=mode)
    assert same(params(plain.run_dir, 3), params(run.run_dir, 3)), "training isn't touched by it"
    told = [row for row in rows(run.run_dir) if "eval/version" in row]
    during = run.summary["evaluated"]["during"]
    assert told and len(told) <= len(during) <= 2
    assert told[-1]["eval/version"] == during[-1]["version"] <= 2
    assert told[-1]["eval/trouble/env/n"] == 3
    assert told[-1]["eval/trouble/env/mean"] == during[-1]["suites"]["trouble/env"]["mean"]


def choosing(latency_s):
    return suite(
        curriculum='{ id = "trouble/by-score", options = { stride = 2 } }',
        zero_variance='"refill"',
        refill_limit=3,
        options=f"{{ latency_s = {latency_s} }}",
    )


def test_a_curriculum_with_refill_goes_on_where_it_stood(launch):
    whole = launch(rest=ON_POLICY, steps=2, name="whole", suite=choosing(0.0))
    launch(rest=ON_POLICY, steps=1, name="parts", suite=choosing(0.0))
    parts = launch(rest=ON_POLICY, steps=2, name="parts", suite=choosing(0.0), resume=True)
    assert same(params(whole.run_dir, 2), params(parts.run_dir, 2))
    extra = json.loads((parts.run_dir / "checkpoints" / "step-00000002" / "extra.json").read_text())
    assert extra["tasks"]["trouble/env"]["curriculum"]["best_score"] > 0


@pytest.mark.slow
def test_a_curriculum_with_refill_is_a_function_of_the_seed_whatever_the_latencies(launch):
    quick = launch(rest=ON_POLICY, steps=4, name="quick", suite=choosing(0.0))
    late = launch(rest=ON_POLICY, steps=4, name="late", suite=choosing(0.05))
    assert same(params(quick.run_dir, 4), params(late.run_dir, 4))


def test_a_curriculum_that_cant_be_made_is_told_before_the_run_begins(launch):
    with pytest.raises(UsageError, match=r"no option 'strid'.*stride"):
        launch(suite=suite(curriculum='{ id = "trouble/by-score", options = { strid = 2 } }'))
    with pytest.raises(UsageError, match=r"curricula has no 'trouble/by-scroe'.*by-score"):
        launch(suite=suite(curriculum='"trouble/by-scroe"'))


def test_refilled_and_aborted_samples_are_counted(launch):
    options = suite(zero_variance='"refill"', refill_limit=2, oversample=2, rewards='[{ id = "env", weight = 0.0 }]')
    result = launch(steps=2, suite=options, rest="[scheduler]\nno_signal_steps = 9\n")
    last = rows(result.run_dir)[-1]
    assert last["suite/trouble/env/refilled"] == last["suite/trouble/env/spent_places"] == 8
    assert last["suite/trouble/env/consumed"] == 8 and last["suite/trouble/env/aborted"] >= 32
    assert last["suite/trouble/env/signal_share"] == 0.0
