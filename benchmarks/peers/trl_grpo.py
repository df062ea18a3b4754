"""A whole GRPO step of trl's trainer on the CPU: run in a virtual environment that has trl, with a number of layers.

64 samples, 8 a prompt; prompts of 64 tokens, completions of 32. The model has SmolLM2-135M's shape and random weights,
in float32. Prints a line of JSON once a second step is over, and after each that follows: the seconds of each step so
far, the first one with what only it does.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import tempfile
import time
from itertools import pairwise
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

VOCABULARY, SAMPLES, GROUP, PROMPT, COMPLETION, STEPS = 49_152, 64, 8, 64, 32, 4


class Clock(TrainerCallback):
    """Tells the seconds of each step, from its begin to the next one's."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    def on_step_begin(self, *given: Any, **named: Any) -> None:
        self.begun.append(time.perf_counter())
        seconds = [after - before for before, after in pairwise(self.begun)]
        if len(seconds) > 1:
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(json.dumps({"seconds": seconds, "samples": SAMPLES, "peak_mb": peak_mb}), flush=True)

    def on_train_end(self, *given: Any, **named: Any) -> None:
        self.on_step_begin()


def make_model(layers: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=layers,
            num_attention_heads=9,
            num_key_value_heads=3,
            rope_theta=1e5,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
        )
    ).float()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Every word is a token."""
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def main(layers: int) -> None:
    rng, clock = random.Random(0), Clock()
    prompts = [" ".join(f"w{rng.randrange(2, VOCABULARY)}" for _ in range(PROMPT)) for _ in range(64)]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=SAMPLES,
        num_generations=GROUP,
        max_completion_length=COMPLETION,
        generation_kwargs={"min_new_tokens": COMPLETION},
        max_steps=STEPS,
        learning_rate=1e-6,
        beta=0.0,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=make_model(layers),
        reward_funcs=lambda completions, **_: [rng.random() for _ in completions],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=make_tokenizer(),
        callbacks=[clock],
    )
    trainer.train()


if __name__ == "__main__":
    main(int(sys.argv[1]))
