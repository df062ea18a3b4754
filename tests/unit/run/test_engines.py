"""An engine is chosen by its id, ours and a stranger's by the same door."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunix_core.config import EngineConfig, load_config
from tunix_core.errors import ConfigError, UnknownIdError, UsageError
from tunix_core.plugins import Hub
from tunix_core.run import evaluate
from tunix_core.run.engines import open_engine
from tunix_core.run.start import train
from tunix_core.testing.engine import FixedWeights

PLUGIN = """
from tunix_core import EngineSpec, Option, hookimpl
from tunix_core.testing.engine import FakeEngine

class Mute(FakeEngine):
    gives_logprobs = False

def say(policy, weights, token=9):
    return FakeEngine(lambda request: [token] * 3, version_source=weights)

def mute(policy, weights, config, deterministic):
    return Mute(lambda request: [9] * 3, slots=config.slots, version_source=weights)

@hookimpl
def tunix_register_engines(register):
    register(EngineSpec("say", "parrot:say", options={"token": Option(9, "what it says")}))
    register(EngineSpec("mute", "parrot:mute"))
"""
RUN = """
model = "models/nano"
steps = 1
[engine]
id = "parrot/mute"
[[suite]]
env = "math/arithmetic"
"""
POLICY: Any = SimpleNamespace(model=SimpleNamespace(max_positions=64))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "parrot.py").write_text(PLUGIN)
    yield Hub.load([tmp_path / "parrot.py"])
    sys.modules.pop("parrot", None)


def opened(hub: Hub, config: EngineConfig, *, training: bool = False) -> Any:
    return open_engine(config, POLICY, FixedWeights(), hub, deterministic=True, training=training)


def test_a_strangers_engine_gets_its_options_and_what_of_ours_it_names(hub: Hub) -> None:
    said = opened(hub, EngineConfig(id="parrot/say", options={"token": 4}), training=True)
    assert said._reply(None) == [4, 4, 4]
    assert opened(hub, EngineConfig(id="parrot/mute", slots=5))._room._value == 5


def test_the_built_in_comes_in_by_the_same_door_with_its_context_cut_to_the_models(hub: Hub) -> None:
    spec = hub.find("engines", "engines/slots")
    assert spec.target == "tunix_core.engine:make_engine"
    assert hub.record_of("engines", spec.id).name == "tunix-engines"
    assert opened(hub, EngineConfig(max_context=4096)).max_context == 64


def test_an_engine_without_log_probabilities_is_refused_for_training_with_the_reason(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'parrot/mute' gives no log-probabilities .* `tunix eval`"):
        opened(hub, EngineConfig(id="parrot/mute"), training=True)
    config = load_config(None, text=RUN, overrides=[f"run_dir={tmp_path / 'run'}"])
    with pytest.raises(UsageError, match="gives no log-probabilities"):
        train(config, hub=hub)


def test_an_engine_without_log_probabilities_evaluates(hub: Hub) -> None:
    found = evaluate("math/arithmetic", hub=hub, n=4, engine=EngineConfig(id="parrot/mute"))
    assert (found["n"], found["none"]) == (4, 0)


def test_what_is_unknown_is_said(hub: Hub) -> None:
    with pytest.raises(UnknownIdError, match="parrot/say"):
        opened(hub, EngineConfig(id="parrot/sey"))
    with pytest.raises(UsageError, match=r"no option 'tokn'. Did you mean 'token'\? It takes: token"):
        opened(hub, EngineConfig(id="parrot/say", options={"tokn": 1}))
    with pytest.raises(ConfigError, match="weight_update"):
        load_config(None, text=RUN.replace('id = "parrot/mute"', 'weight_update = "drop"'))
