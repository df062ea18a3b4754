"""Causal decoders in Flax NNX, checkpoints, tokenizers, chat formats and tool-call formats.

Gives a `contracts.Policy`. Does not know requests, batches or training.
"""
