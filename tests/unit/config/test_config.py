"""A config file becomes one frozen tree, or one clear error with its place."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunix_core.config import (
    CurriculumConfig,
    PluginsConfig,
    RewardConfig,
    RunConfig,
    SuiteConfig,
    TimeoutsConfig,
    TrainerConfig,
    dump_config,
    load_config,
    parse_value,
)
from tunix_core.contracts import Sampling
from tunix_core.errors import ConfigError

WHOLE = """\
seed = 3
model_options = { width = 8 }

[trainer]
learning_rate = 1e-3
groups_per_step = 6

[[suite]]
env = "games/frozen-lake"
weight = 2
rewards = ["env", { id = "mine/brief", weight = 0.5, options = { limit = 3 } }]
[suite.sampling]
temperature = 0.7
[suite.options]
slippery = true

[[suite]]
env = "math/arithmetic"
name = "sums"
group_size = 4
"""


def test_a_file_becomes_the_tree() -> None:
    config = load_config(None, text=WHOLE)
    lake, sums = config.suites
    assert (config.seed, config.steps, config.model_options) == (3, 100, {"width": 8})
    assert config.trainer == TrainerConfig(learning_rate=1e-3, groups_per_step=6)
    assert (lake.name, lake.weight, lake.sampling, lake.options) == (
        "games/frozen-lake",
        2.0,
        Sampling(temperature=0.7),
        {"slippery": True},
    )
    assert lake.rewards == (RewardConfig("env"), RewardConfig("mine/brief", 0.5, {"limit": 3}))
    assert (sums.name, sums.group_size, sums.timeouts) == ("sums", 4, TimeoutsConfig())
    assert type(lake.weight) is float


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("trainer.learning_rate=1e-2", "trainer.learning_rate", 0.01),
        ("seed=7", "seed", 7),
        ("run_dir=runs/x", "run_dir", "runs/x"),
        ("run_dir = 'a=b'", "run_dir", "a=b"),
        ("run_dir=", "run_dir", ""),
        ("plugins.strict=true", "plugins.strict", True),
        ("trainer.options={ eps = 0.1 }", "trainer.options", {"eps": 0.1}),
        ("trainer.options.eps=0.1", "trainer.options", {"eps": 0.1}),
        ("suite.games/frozen-lake.weight=3", "suites.0.weight", 3.0),
        ("suite.games/frozen-lake.sampling.max_tokens=8", "suites.0.sampling", Sampling(temperature=0.7, max_tokens=8)),
        ("suite.games/frozen-lake.options.level=2", "suites.0.options", {"slippery": True, "level": 2}),
        ("suite.sums.options.level=hard", "suites.1.options", {"level": "hard"}),
        ('suite.sums.rewards=["mine/x"]', "suites.1.rewards", (RewardConfig("mine/x"),)),
        ("suite.sums.name=v1.5", "suites.1.name", "v1.5"),
        ("suite.sums.curriculum=curricula/frontier", "suites.1.curriculum", CurriculumConfig("curricula/frontier")),
    ],
)
def test_an_override_reaches_its_key(override: str, path: str, value: object) -> None:
    found: Any = load_config(None, [override], WHOLE)
    for part in path.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    assert found == value


def test_overrides_reach_a_suite_whose_name_has_dots() -> None:
    text = WHOLE.replace('"sums"', '"sums v1.5"')
    assert load_config(None, ["suite.sums v1.5.weight=4"], text).suites[1].weight == 4.0


@pytest.mark.parametrize(
    ("added", "culprit", "says"),
    [
        ("wieght = 1", "wieght = 1", r"unknown key 'wieght' in suite\[1\]. Did you mean 'weight'\?"),
        ("[trianer]", "[trianer]", r"unknown key 'trianer'. Did you mean 'trainer'"),
        ("[engine]\nslots = 0", "slots = 0", r"engine.slots must be at least 1, and is 0"),
        ("[engine]\nslots = true", "slots = true", r"engine.slots must be a whole number, and is true"),
        ("[engine]\nslots = 4.0", "slots = 4.0", r"engine.slots must be a whole number, and is the number 4.0"),
        ("[engine]\nworkers = 5", "workers = 5", r"engine.slots \(32\) must be a multiple of engine.workers \(5\)"),
        (
            "[engine]\nworkers = 2\n[mesh.engine]\ntensor = 2",
            "workers = 2",
            r"workers is 2, and mesh.engine has 2 devices",
        ),
        ("[scheduler]\n# why\nmode = 'inflight'", "mode = 'inflight'", r"one of 'in_flight', .*mean 'in_flight'"),
        ("[scheduler]\nmax_failure_share = 2", "max_failure_share = 2", r"must be in \(0, 1\], and is 2.0"),
        ("weight = false", "weight = false", r"weight must be a number, and is false"),
        ("weight = nan", "weight = nan", r"must be finite"),
        ("weight = 0", "weight = 0", r"suite 'sums': weight must be above 0"),
        ("split = 1", "split = 1", r"one of 'train', 'eval', and is the number 1"),
        ("options = 3", "options = 3", r"options must be a table, and is the number 3"),
        ("sampling = []", "sampling = []", r"sampling must be a table, and is a list"),
        ("rewards = 'env'", "rewards = 'env'", r"must be a list, and is the string 'env'"),
        (
            "rewards = [\n{ id = 'a/b', wait = 2 },\n]",
            "{ id = 'a/b', wait = 2 },",
            r"'wait' in suite\[1\].rewards\[0\]",
        ),
        ("rewards = ['env',\n'env']", "'env']", r"reward 'env' is listed twice"),
        ("rewards = ['']", "rewards = ['']", r"a reward needs an id"),
        ("rewards = []", "rewards = []", r"must list at least one part"),
        ("min_group = 5", "min_group = 5", r"between 1 and group_size \(4\), and is 5"),
        ("max_turns = 0", "max_turns = 0", r"max_turns must be at least 1"),
        ("oversample = -1", "oversample = -1", r"oversample must be at least 0, and is -1"),
        ("oversample = 1\n[scheduler]\nmode = 'on_policy'", "oversample = 1", r"keeps the samples that end first"),
        ("refill_limit = 0", "refill_limit = 0", r"refill_limit must be at least 1, and is 0"),
        (
            "zero_variance = 'drop'",
            "zero_variance = 'drop'",
            r"one of 'keep', 'refill', and is the string 'drop'",
        ),
        ("curriculum = ''", "curriculum = ''", r"a curriculum needs an id"),
        ("[scheduler]\nsuite_patience_s = 0", "suite_patience_s = 0", r"suite_patience_s must be above 0"),
        ("[scheduler]\nmax_debt_steps = -1", "max_debt_steps = -1", r"max_debt_steps must be at least 0"),
        ("[scheduler]\non_starved = 'stop'", "on_starved = 'stop'", r"must be one of 'end', 'drop'"),
        ("[eval]\nevery_steps = 5", "every_steps = 5", r"eval.every_steps needs eval.n"),
        ("max_abandoned = -1", "max_abandoned = -1", r"max_abandoned must be at least 0"),
        ("learning_weight = -1", "learning_weight = -1", r"learning_weight must be at least 0, and is -1"),
        ("credit.discount = 1.5", "credit.discount = 1.5", r"credit.discount must be in \[0, 1\], and is 1.5"),
        ("credit = { per = 'step' }", "credit = { per = 'step' }", r"one of 'trajectory', 'turn'"),
        ("timeouts.step_s = 0", "timeouts.step_s = 0", r"timeouts.step_s must be above 0 seconds"),
        (
            "sampling = { temperature = 0 }",
            "sampling = { temperature = 0 }",
            r"greedy samples of one task are all equal",
        ),
        ("sampling.temperature = -1", "sampling.temperature = -1", r"temperature must be above 0"),
        ("sampling.top_p = 0.9", "sampling.top_p = 0.9", r"top_p cuts .* set allow_truncated_sampling = true"),
        ("sampling.top_k = 5", "sampling.top_k = 5", r"top_k cuts"),
        ("sampling.top_k = -5", "sampling.top_k = -5", r"top_k must be at least 0"),
        ("sampling.min_p = 0.1", "sampling.min_p = 0.1", r"min_p cuts"),
        ("sampling.min_p = 1", "sampling.min_p = 1", r"min_p must be in \[0, 1\)"),
        ("sampling.top_p = 1.5", "sampling.top_p = 1.5", r"top_p must be in \(0, 1\]"),
        ("sampling.max_tokens = 0", "sampling.max_tokens = 0", r"max_tokens must be at least 1"),
        ("sampling.max_tokens = 512", "sampling.max_tokens = 512", r"must be below engine.max_context \(512\)"),
        (
            "sampling.max_episode_tokens = 0",
            "sampling.max_episode_tokens = 0",
            r"max_episode_tokens must be at least 1",
        ),
        ("[engine]\nmax_context = 1024", "[trainer]", r"row_tokens \(512\) must be at least engine.max_context"),
        ("[[suite]]\nname = 'x'", "[[suite]]", r"suite\[2\].env is missing; it has no default"),
        ("[[suite]]\nenv = ''", "env = ''", r"env must be an environment's id"),
        ("[[suite]]\nenv = 'sums'", 'name = "sums"', r"2 suites are named 'sums'"),
        ("[checkpoint]\nevery_steps = -1", "every_steps = -1", r"every_steps must be at least 1"),
        ("[plugins]\nrequired = [\n'a',\n2]", "2]", r"plugins.required\[1\] must be a string"),
        ("weight = 1 = 2", "weight = 1 = 2", r"not TOML"),
    ],
)
def test_a_mistake_is_an_error_with_its_line(added: str, culprit: str, says: str) -> None:
    text = WHOLE + added + "\n"
    with pytest.raises(ConfigError, match=says) as caught:
        load_config(Path("run.toml"), text=text)
    assert str(caught.value).startswith(f"run.toml:{caught.value.line}: ")
    assert text.splitlines()[(caught.value.line or 0) - 1] == culprit


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("trainer.lerning_rate=1", r"unknown key 'lerning_rate' in trainer. Did you mean 'learning_rate'"),
        (
            "suite.summs.weight=1",
            r"no suite has the name in 'summs.weight'. Did you mean 'sums'\? Suites: games/frozen",
        ),
        ("suite.sums.weight=heavy", r"weight must be a number, and is the string 'heavy'"),
        ("steps=1\nseed = 2", r"steps must be a whole number, and is the string"),
        ("seed.x=1", r"'seed' is not a table, so it has no 'x'"),
        ("seed", r"looks like key=value"),
        ("=1", r"looks like key=value"),
        ("suite=3", r"suite must be a list, and is the number 3 \(write \[\[suite\]\], with two brackets\)"),
        ("suite=[]", r"a run needs at least one suite"),
        ("trainer=[]", r"trainer must be a table, and is a list"),
    ],
)
def test_a_mistake_in_an_override_names_the_override(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load_config(Path("run.toml"), [override], WHOLE)
    assert caught.value.source in (f"-o {override}", "run.toml") and caught.value.line is None


def test_truncated_sampling_may_be_allowed() -> None:
    config = load_config(None, ["suite.sums.sampling.top_p=0.9", "suite.sums.allow_truncated_sampling=true"], WHOLE)
    assert config.suites[1].sampling.truncates


def test_a_run_without_a_suite_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"config: a run needs at least one suite; add \[\[suite\]\]"):
        load_config(None)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.toml: this config file can't be read: No such file"):
        load_config(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b"run_dir = '\xe9'")
    with pytest.raises(ConfigError, match=r"it is not UTF-8 text"):
        load_config(tmp_path / "latin.toml")


@pytest.mark.parametrize("plugins", ['plugins = ["./mine.py"]', 'plugins.files = ["mine.py"]'])
def test_plugin_files_are_relative_to_the_config_file(tmp_path: Path, plugins: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"{plugins}\n{WHOLE}")
    assert load_config(path).plugins == PluginsConfig(files=(str(tmp_path / "mine.py"),))
    assert load_config(path, ['plugins=["other.py"]']).plugins.files == ("other.py",)


def test_the_interpreter_of_a_suite_is_relative_to_the_config_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[[suite]]\nenv = "a/b"\nisolation = "venv"\npython = "envs/bin/python"\n')
    assert load_config(path).suites[0].python == str(tmp_path / "envs/bin/python")
    assert load_config(path, ["suite.a/b.python=other/python"]).suites[0].python == "other/python"


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("1e-3", 1e-3), ("true", True), ("[1]", [1]), ("a b", "a b")])
def test_a_value_of_the_command_line_is_toml_or_itself(text: str, value: object) -> None:
    assert parse_value(text) == value


# ---- what is written is read back ----
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts | st.dates() | st.times(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
options = st.dictionaries(texts, plain, max_size=3)
ids = st.from_regex(r"[a-z]{1,5}/[A-Za-z0-9_-]{1,8}", fullmatch=True)
suites = st.builds(
    SuiteConfig,
    env=ids,
    name=texts.filter(bool),
    weight=st.floats(1e-9, 1e9),
    group_size=st.integers(2, 64),
    max_turns=st.none() | st.integers(1, 9),
    sampling=st.builds(Sampling, temperature=st.floats(0.01, 10), max_tokens=st.integers(1, 511)),
    rewards=st.lists(
        st.builds(RewardConfig, ids, st.floats(-9, 9), options), min_size=1, max_size=3, unique_by=lambda r: r.id
    ).map(tuple),
    timeouts=st.builds(TimeoutsConfig, step_s=st.none() | st.floats(1e-3, 1e6)),
    options=options,
)
configs = st.builds(
    RunConfig,
    suites=st.lists(suites, min_size=1, max_size=3, unique_by=lambda suite: suite.name).map(tuple),
    seed=st.integers(0, 2**62),
    run_dir=texts,
    model_options=options,
    trainer=st.builds(TrainerConfig, learning_rate=st.floats(0, 1), options=options),
    plugins=st.builds(PluginsConfig, required=st.lists(texts, max_size=2).map(tuple)),
)


@settings(max_examples=40)
@given(configs)
def test_a_dumped_config_is_read_back_equal(config: RunConfig) -> None:
    assert load_config(None, text=dump_config(config)) == config


def test_a_dumped_config_holds_the_defaults_too() -> None:
    table = tomllib.loads(dump_config(load_config(None, text=WHOLE)))

    def given(kind: type) -> set[str]:
        return {field.name for field in fields(kind) if field.default is not None}

    assert set(table) == given(RunConfig) - {"suites"} | {"suite"}
    assert set(table["suite"][0]) == given(SuiteConfig)
    assert set(table["trainer"]) == given(TrainerConfig)


def test_an_option_without_a_toml_form_is_refused() -> None:
    config = RunConfig(suites=(SuiteConfig("a/b", "a/b", options={"x": object()}),))
    with pytest.raises(ConfigError, match=r"has no TOML form; use numbers, strings"):
        dump_config(config)


def test_a_wrong_choice_lists_the_choices_where_a_key_may_be_absent(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[[suite]]\nenv = "a/b"\nisolation = "proces"\n')
    with pytest.raises(ConfigError, match=r"must be one of 'in-process'.*Did you mean 'process'"):
        load_config(file)
