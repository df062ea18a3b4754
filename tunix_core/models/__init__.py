"""Causal decoders in Flax NNX, checkpoints, tokenizers, chat formats and tool-call formats.

Gives a `contracts.Policy`. Does not know requests, batches or training.
"""

from tunix_core.contracts import Policy
from tunix_core.models.adapters import make_adapters
from tunix_core.models.cache import cache_dir, fetched
from tunix_core.models.chat import ChatTokens, TurnChat
from tunix_core.models.checkpoint import open_policy, save_policy
from tunix_core.models.config import DecoderConfig
from tunix_core.models.decoder import DecoderModel
from tunix_core.models.huggingface import save_huggingface
from tunix_core.models.placement import AXES_OF_MESH, RULES, MeshLayout, logical_axes, place, sharding
from tunix_core.models.template import TemplateChat
from tunix_core.models.tokenizer import FastTokenizer
from tunix_core.models.tool_calls import read_call, split_calls, write_call
from tunix_core.models.weights import heads_together, lay_policy

__all__ = [
    "AXES_OF_MESH",
    "RULES",
    "ChatTokens",
    "DecoderConfig",
    "DecoderModel",
    "FastTokenizer",
    "MeshLayout",
    "Policy",
    "TemplateChat",
    "TurnChat",
    "cache_dir",
    "fetched",
    "heads_together",
    "lay_policy",
    "logical_axes",
    "make_adapters",
    "open_policy",
    "place",
    "read_call",
    "save_huggingface",
    "save_policy",
    "sharding",
    "split_calls",
    "write_call",
]
