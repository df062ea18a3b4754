"""Causal decoders in Flax NNX, checkpoints, tokenizers, chat formats and tool-call formats.

Gives a `contracts.Policy`. Does not know requests, batches or training.
"""

from tunix_core.contracts import Policy
from tunix_core.models.chat import ChatTokens, TurnChat
from tunix_core.models.checkpoint import open_policy, save_policy
from tunix_core.models.config import DecoderConfig
from tunix_core.models.decoder import DecoderModel
from tunix_core.models.tokenizer import FastTokenizer
from tunix_core.models.tool_calls import read_call, split_calls, write_call

__all__ = [
    "ChatTokens",
    "DecoderConfig",
    "DecoderModel",
    "FastTokenizer",
    "Policy",
    "TurnChat",
    "open_policy",
    "read_call",
    "save_policy",
    "split_calls",
    "write_call",
]
