from __future__ import annotations

import runpy
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunix_models import nano, plugin

from tunix_core.models import Policy
from tunix_core.specs import load_target
from tunix_core.types import Message, ToolCall

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "make_tokenizer.py"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return nano.load()


def pieces(policy: Policy, text: str) -> list[str]:
    """What each id of `text` reads as."""
    return [policy.tokenizer.decode([int(id)]) for id in policy.tokenizer.encode(text)]


def logits(policy: Policy) -> np.ndarray:
    ids = policy.chat.open([Message.of("user", "What is 2 + 3?")])[None]
    hidden = jax.jit(policy.model.forward)(policy.params, ids, np.arange(ids.shape[1])[None], np.ones_like(ids))
    return np.asarray(policy.model.logits(policy.params, hidden))


def test_what_is_registered_loads(policy: Policy) -> None:
    registered = []
    plugin.tunix_register_models(registered.append)
    spec = next(spec for spec in registered if spec.id == "models/nano")
    loaded = load_target(spec.target)(**{name: option.default for name, option in spec.options.items()})
    assert loaded.id == spec.id == "models/nano"
    np.testing.assert_array_equal(logits(loaded), logits(policy))


def test_it_is_small(policy: Policy) -> None:
    assert 1e6 < sum(leaf.size for leaf in jax.tree.leaves(policy.params)) < 2e6
    assert sum(file.stat().st_size for file in nano.DATA.iterdir()) < 4e6


def test_it_knows_no_token_that_its_tokenizer_lacks(policy: Policy) -> None:
    assert policy.model.vocab_size == policy.tokenizer.vocab_size


def test_a_zero_output_layer_is_the_uniform_policy(policy: Policy) -> None:
    assert not logits(nano.load(zero_output=True)).any()
    assert logits(policy).any()


def test_random_weights_are_those_of_the_seed() -> None:
    first, again, other = (logits(nano.load(random=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_the_script_makes_the_tokenizer_that_is_shipped(policy: Policy) -> None:
    assert runpy.run_path(str(SCRIPT))["make_tokenizer"]().to_json() == policy.tokenizer.to_json()


@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.text("0123456789 {}\"',:.\nname"))
def test_any_text_comes_back(policy: Policy, text: str) -> None:
    assert policy.tokenizer.decode(policy.tokenizer.encode(text)) == text


@given(number=st.integers(0), before=st.sampled_from(["", " ", "a", '"', "+", " -", "\n"]))
def test_a_digit_is_always_a_token_of_its_own(policy: Policy, number: int, before: str) -> None:
    ids = policy.tokenizer.encode(f"{before}{number}")
    digits = np.concatenate([policy.tokenizer.encode(digit) for digit in str(number)])
    np.testing.assert_array_equal(ids[len(ids) - len(digits) :], digits)


def test_a_grid_is_one_token_a_cell(policy: Policy) -> None:
    grid = "P . . O\n. . G .\nO . . ."
    assert pieces(policy, grid) == ["P", " .", " .", " O", "\n", ".", " .", " G", " .", "\n", "O", " .", " .", " ."]


@pytest.mark.parametrize("word", ["up", "down", "left", "right", " up", " down", " left", " right"])
def test_a_direction_is_one_token(policy: Policy, word: str) -> None:
    assert pieces(policy, word) == [word]


def test_a_call_is_few_tokens_and_its_operands_those_of_the_question(policy: Policy) -> None:
    call = policy.chat.say(Message("assistant", tool_calls=(ToolCall("calculator", {"expression": "37 * 84"}),)))
    assert len(call) == 14
    question = policy.tokenizer.encode("Use the calculator: 37 * 84")
    np.testing.assert_array_equal(call[6:12], question[-6:])
    assert len(policy.chat.say(Message("assistant", tool_calls=(ToolCall("finish", {"answer": "3108"}),)))) == 12


def test_typed_special_tokens_are_ordinary_text(policy: Policy) -> None:
    for name, id in policy.tokenizer.special.items():
        assert id not in policy.tokenizer.encode(f"a{name}b")
