"""What is measured with parameters but not trained: log-probabilities, a reference's among them."""

from __future__ import annotations

from collections.abc import Callable

import jax

from tunix_core.contracts import Adapters, Model, Params
from tunix_core.errors import UsageError
from tunix_core.trainer.lanes import Arrays, Measure
from tunix_core.trainer.logprobs import token_logprobs
from tunix_core.trainer.parts import Parts, make_parts
from tunix_core.trainer.placing import Placing
from tunix_core.trainer.steps import forward_arrays


def shown(parts: Parts, adapters: Adapters | None, placing: Placing) -> Callable[[Params], Params]:
    """From what is trained to what `weights` gives: nothing is copied where the model computes with just that."""
    if adapters is not None or parts.all_as_computed:
        return placing.gathered
    cast = placing.jit(lambda trained: parts.having(trained).whole, lambda _: placing.shardings(parts.trained))
    return lambda trained: placing.gathered(cast(trained))


def logprobs(model: Model, placing: Placing) -> Callable[[Parts, Arrays], jax.Array]:
    """(parameters, a batch's arrays) -> log-probabilities [R, T]. Jitted; compiled when first used."""
    measure = placing.jit(lambda parts, batch: token_logprobs(model, parts.whole, batch)[0], lambda whole: whole)
    return lambda parts, arrays: measure(parts, placing.batch(forward_arrays(arrays)))


def checked_reference(model: Model, reference: tuple[Model, Params] | None) -> tuple[Model, Params] | None:
    """`reference` itself. Raises UsageError where it has another vocabulary than the policy."""
    if reference and reference[0].vocab_size != model.vocab_size:
        raise UsageError(
            f"the reference has a vocabulary of {reference[0].vocab_size} tokens, the policy of {model.vocab_size}: "
            "trainer.reference must name a model with the policy's tokenizer"
        )
    return reference


def reference_measure(model: Model, params: Params, placing: Placing) -> Measure:
    """A batch's arrays -> the reference's log-probabilities [R, T], on the reference's devices."""
    measure, frozen = logprobs(model, placing), make_parts(placing.params(params), "model")
    return lambda arrays: measure(frozen, arrays)
