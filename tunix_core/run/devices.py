"""Which devices compute what: meshes for the trainer, the engine and the reference, as the config shares them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tunix_core.config import AxesConfig, MeshConfig, RunConfig
from tunix_core.contracts import Adapters, Layout, Model, Params, Policy
from tunix_core.errors import ConfigError
from tunix_core.plugins import Hub
from tunix_core.run.policies import open_model


class Meshes(NamedTuple):
    """Meshes of JAX with the axes data, fsdp and tensor. None is the default device.

    Attributes:
        loading: onto which weights are read; on several hosts each reads all of them first, for itself.
        leads: whether this process has the engine.
    """

    trainer: Any
    engine: Any
    reference: Any
    loading: Any = None
    leads: bool = True


def make_meshes(config: MeshConfig) -> Meshes:
    """The meshes a config asks for.

    On several hosts the trainer's spans all of them, and the engine is on the devices of the first.

    Raises:
        ConfigError: more devices are asked for than there are; both numbers are told.
    """
    import jax

    everywhere, here = jax.devices(), [d for d in jax.devices() if d.process_index == 0]
    if config == MeshConfig() and len(here) == len(everywhere):
        return Meshes(None, None, None)
    used = config.trainer.devices if config.disjoint else 0
    trainer = _mesh("mesh.trainer", config.trainer, everywhere, 0)
    if idle := {d.process_index for d in everywhere} - {d.process_index for d in trainer.devices.flat}:
        raise ConfigError(
            f"mesh.trainer has {config.trainer.devices} of {len(everywhere)} devices, so that the processes "
            f"{', '.join(map(str, sorted(idle)))} would have nothing to do. Raise an axis until all have a part."
        )
    engine = _mesh("mesh.engine", config.engine, here, used)
    one = len(here) == len(everywhere)
    reference = trainer
    if config.reference is not None:
        after = used + config.engine.devices if config.disjoint else 0
        reference = _mesh("mesh.reference", config.reference, everywhere, after)
    return Meshes(trainer, engine, reference, trainer if one else None, jax.process_index() == 0)


def _mesh(name: str, axes: AxesConfig, devices: Sequence[Any], first: int) -> Any:
    import numpy as np
    from jax.sharding import Mesh

    from tunix_core.models import AXES_OF_MESH

    if first + axes.devices > len(devices):
        after = f", after the {first} that others have (mesh.disjoint)," if first else ""
        raise ConfigError(
            f"{name} asks for {axes.devices} devices (data {axes.data} × fsdp {axes.fsdp} × tensor {axes.tensor})"
            f"{after} and there are {len(devices)} to be had. Lower an axis, or start on more devices."
        )
    chosen = np.asarray(devices[first : first + axes.devices], object)
    return Mesh(chosen.reshape(axes.data, axes.fsdp, axes.tensor), AXES_OF_MESH)


def layout_of(mesh: Any, model: Model) -> Layout | None:
    """How the model's parameters lie on a mesh; None without one."""
    from tunix_core.models import DecoderModel, MeshLayout, heads_together

    if mesh is None:
        return None
    return MeshLayout(mesh, together=heads_together(model) if isinstance(model, DecoderModel) else None)


def adapters_of(config: RunConfig, model: Model) -> Adapters | None:
    """The adapters that the config wants trained, as they begin; None where all weights are trained.

    Raises:
        UsageError: the model can't have them.
    """
    from tunix_core.models import make_adapters

    lora = config.trainer.lora
    if lora is None:
        return None
    how = {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets, "base": lora.base}
    return make_adapters(model, seed=config.seed, **how)


def reference_of(config: RunConfig, hub: Hub, meshes: Meshes) -> tuple[Model, Params] | None:
    """The model that `trainer.reference` names, with its weights; None where it names none."""
    if not config.trainer.reference:
        return None
    policy = open_model(config.trainer.reference, hub, {}, mesh=meshes.loading and meshes.reference)
    return policy.model, policy.params


def arranged(policy: Policy, adapters: Adapters | None, engine: Layout | None) -> Callable[[Params], Params]:
    """From what the trainer publishes to what the engine computes with, on its devices."""
    from tunix_core.weights import as_it_is, laid, merged

    if adapters is not None:
        return merged(adapters, policy.params, engine)
    return as_it_is if engine is None else laid(engine)
