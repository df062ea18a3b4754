"""Makes the figures that tests/unit/models and tests/golden compare with, by `transformers`.

In an environment of its own: pip install torch transformers safetensors, and gguf for the whole models. Then

    python tests/golden/make_model_figures.py                  logits of the tiny checkpoints
    python tests/golden/make_model_figures.py smollm2 FILE     log-probabilities and continuations
    python tests/golden/make_model_figures.py gemma3 FILE      perplexity
    python tests/golden/make_model_figures.py check DIR        logits of the tiny checkpoints that were opened and
                                                               saved to DIR/NAME, against the kept ones
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from texts import CONTINUED, PROMPTS, TEXTS
from tiny_checkpoints import CONFIGS, SHOWN, tokens, write_checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

HERE = Path(__file__).parent
LOGITS = HERE / "tiny_logits.npz"


def logits_of(directory: Path) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor(tokens())).logits[0, list(SHOWN)].numpy()


def make_tiny() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in CONFIGS:
            write_checkpoint(name, Path(folder) / name)
        np.savez(LOGITS, **{name: logits_of(Path(folder) / name) for name in CONFIGS})


def check(folder: Path) -> None:
    kept = np.load(LOGITS)
    for name in CONFIGS:
        print(name, np.abs(logits_of(folder / name) - kept[name]).max())


def opened(file: Path) -> tuple[Any, Any]:
    """The model in float32, and its tokenizer. In steps, since the one call for it takes a further package."""
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    tensors = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model, AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


def scored(model: Any, ids: list[int]) -> np.ndarray:
    """Log-probability of each id but the first."""
    with torch.no_grad():
        shares = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], -1)
    return shares.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def make_smollm2(file: Path) -> None:
    model, tokenizer = opened(file)
    texts = [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]
    prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in PROMPTS]
    figures = {
        "texts": [{"ids": ids, "logprobs": [round(float(x), 6) for x in scored(model, ids)]} for ids in texts],
        "prompts": [{"ids": ids, "next": greedy(model, ids)} for ids in prompts],
    }
    (HERE / "smollm2.json").write_text(json.dumps(figures) + "\n")


def greedy(model: Any, ids: list[int]) -> list[int]:
    row = torch.tensor([ids])
    with torch.no_grad():  # the mask is said, or else every token that pads, <|im_end|> here, would be hidden
        out = model.generate(
            row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=CONTINUED, eos_token_id=None
        )
    return out[0, len(ids) :].tolist()


def make_gemma3(file: Path) -> None:
    model, tokenizer = opened(file)
    ids = [tokenizer.bos_token_id, *tokenizer(" ".join(TEXTS), add_special_tokens=False).input_ids]
    figures = {"ids": ids, "perplexity": float(np.exp(-scored(model, ids).mean()))}
    (HERE / "gemma3.json").write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            make_tiny()
        case ["smollm2", file]:
            make_smollm2(Path(file))
        case ["gemma3", file]:
            make_gemma3(Path(file))
        case ["check", folder]:
            check(Path(folder))
        case _:
            sys.exit(__doc__)
