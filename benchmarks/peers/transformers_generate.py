"""transformers beside us: run in a virtual environment that has it, with a Hugging Face directory as its argument.

Answers each line of its input, "BATCH PROMPT NEW", with one line of JSON: seconds that `generate` takes for one
further token of a whole batch, in each of the forms that were tried. Sampled at temperature 1, float32.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch.utils import mkldnn


def forms(folder: str) -> dict[str, Any]:
    """The model as it comes, and with its linear layers' weights packed once for the CPU's matrix product."""
    transformers.logging.set_verbosity_error()
    made = {}
    for name, prepare in (("plain", lambda model: model), ("packed", packed)):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        made[name] = prepare(model)
    return made


def packed(model: Any) -> Any:
    """Linear layers replaced by oneDNN's, which keep their weights reordered."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, Packed(child))
    return model


class Packed(torch.nn.Module):
    """A linear layer whose weight lies in oneDNN's own order."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight  # some models look at it
        self._inner = mkldnn.to_mkldnn(linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._inner(x)


def seconds_per_token(model: Any, batch: int, prompt: int, new: int) -> float:
    """By how much `new` further tokens lengthen a call, per token."""
    torch.manual_seed(batch)
    ids = torch.randint(1000, 40000, (batch, prompt))

    def generate(count: int) -> None:
        how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "use_cache": True, "pad_token_id": 0}
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=count, max_new_tokens=count, **how)

    return (timed(generate, 1 + new) - timed(generate, 1)) / new


def timed(call: Callable[[int], None], count: int) -> float:
    started = time.perf_counter()
    call(count)
    return time.perf_counter() - started


def main() -> None:
    models = forms(sys.argv[1])
    for model in models.values():
        seconds_per_token(model, 1, 8, 2)
    print(json.dumps({"versions": {"torch": torch.__version__, "transformers": transformers.__version__}}), flush=True)
    for line in sys.stdin:
        batch, prompt, new = map(int, line.split())
        print(json.dumps({name: seconds_per_token(m, batch, prompt, new) for name, m in models.items()}), flush=True)


if __name__ == "__main__":
    main()
