"""Everything that is installed, by kind and id."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, overload

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tunix_core import __version__
from tunix_core.errors import PluginError, UnknownIdError, UsageError, did_you_mean
from tunix_core.plugins.discovery import CORE, find_candidates
from tunix_core.plugins.hooks import PluginHooks
from tunix_core.plugins.loader import Loaded, explain, load
from tunix_core.plugins.records import KINDS, PluginRecord, Spec, hash_spec
from tunix_core.specs import EnvSpec, Option, load_target

DISABLE_VARIABLE = "TUNIX_DISABLE_PLUGINS"
TRAIN_MODULES = {"jax", "jaxlib", "flax", "optax", "orbax", "tokenizers", "safetensors", "jinja2"}


class Hub:
    """What the loaded plugins registered, and why others are missing. Build it with `Hub.load`."""

    def __init__(self, plugins: Sequence[Loaded]) -> None:
        self.records: tuple[PluginRecord, ...] = tuple(plugin.record for plugin in plugins)
        self.hooks = PluginHooks(plugins)
        self._specs: dict[str, dict[str, Spec]] = {kind: {} for kind in KINDS}
        self._owners: dict[tuple[str, str], PluginRecord] = {}
        for plugin in plugins:
            for kind, specs in plugin.specs.items():
                self._specs[kind].update(specs)
                self._owners.update({(kind, id): plugin.record for id in specs})

    @classmethod
    def load(
        cls,
        files: Sequence[str | Path] = (),
        disabled: Sequence[str] = (),
        required: Sequence[str] = (),
        strict: bool = False,
    ) -> Self:
        """Finds and loads what is installed, and the given files.

        Args:
            files: Python files with hooks; their ids are "file-stem/name".
            disabled: names of distributions, namespaces or file stems never to be imported; those in
                the environment variable TUNIX_DISABLE_PLUGINS (separated by commas) are added.
            required: requirements such as "tunix-env-math>=0.2,<1".
            strict: any failed or incompatible plugin is an error.

        Raises:
            PluginError: a requirement is not met, or `strict` and a plugin is broken. Never otherwise.
        """
        variable = (name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(","))
        blocked = [*disabled, *(name for name in variable if name)]
        hub = cls([load(candidate) for candidate in find_candidates(files, blocked)])
        for requirement in required:
            hub._check_required(requirement)
        if strict:
            hub._check_none_broken(hub.records)
        return hub

    def list(self, kind: str) -> list[Spec]:
        """The specs of a kind, sorted by id; families as "namespace/*"."""
        _check_kind(kind)
        return [self._specs[kind][id] for id in sorted(self._specs[kind])]

    @overload
    def find(self, kind: Literal["envs"], id: str) -> EnvSpec: ...
    @overload
    def find(self, kind: str, id: str) -> Spec: ...
    def find(self, kind: str, id: str) -> Spec:
        """The spec of a whole id. A member of a family gets its own id, and the option `name`.

        Raises:
            PluginError: the id's plugin is broken or disabled.
            UnknownIdError: nobody registered it; the message says what is near or what to install.
        """
        key = self._key(kind, id)
        spec = self._specs[kind].get(key)
        if spec is None:
            raise self._unknown(kind, id)
        if spec.id == id:
            return spec
        name = id.removeprefix(spec.id.removesuffix("*"))
        return replace(spec, id=id, options={**spec.options, "name": Option(name)})

    def resolve(self, kind: str, name: str) -> Spec:
        """Like `find`; a bare name will do while only one id ends in it. For the command line."""
        if "/" in name:
            return self.find(kind, name)
        matches = self._ending_in(kind, name)
        if len(matches) > 1:
            raise UnknownIdError(f"{name!r} may be any of {', '.join(matches)}; write the whole id")
        return self.find(kind, matches[0] if matches else name)

    def load_object(self, kind: str, id: str, what: Literal["target", "tasks", "solutions"] = "target") -> Any:
        """Imports what the spec of `id` points to; "tasks" and "solutions" only for environments.

        Raises:
            PluginError: it can't be imported; names the plugin, and what to install when that helps.
        """
        return _import_target(id, getattr(self.find(kind, id), what), self.record_of(kind, id))

    def members(self, kind: str, family: str) -> Sequence[str]:
        """Whole ids of the members of a family ("namespace/*"); empty when it lists none.

        Raises:
            PluginError: its list can't be made.
        """
        spec, record = self._specs[kind][family], self._owners[kind, family]
        if not isinstance(spec, EnvSpec) or not spec.members:
            return ()
        make = _import_target(family, spec.members, record)
        try:
            return [f"{family.removesuffix('*')}{name}" for name in make()]
        except Exception as error:
            raise PluginError(f"{family}: {record.title} can't list its members: {explain(error)}") from error

    def record_of(self, kind: str, id: str) -> PluginRecord:
        """The plugin that registered an id, or the family it belongs to. Raises like `find`."""
        self.find(kind, id)
        return self._owners[kind, self._key(kind, id)]

    def owner_of(self, kind: str, spec: Spec) -> PluginRecord:
        """The plugin of a spec that `list` gave, families included."""
        return self._owners[kind, spec.id] if (kind, spec.id) in self._owners else self.record_of(kind, spec.id)

    def content_hash(self, spec: Spec) -> str:
        """sha256 of the spec's content, for the lock of a run."""
        return hash_spec(spec)

    def lock(self) -> dict[str, str]:
        """Version by distribution of the core and every loaded plugin; "file:STEM" -> sha256 for files."""
        usable = [record for record in self.records if record.status == "ok"]
        files = {f"file:{r.name}": hashlib.sha256(Path(r.source).read_bytes()).hexdigest() for r in usable if r.is_file}
        return {CORE: __version__} | {r.name: r.version for r in usable if not r.is_file} | files

    def check_files(self) -> None:
        """Raises PluginError when a file the user named can't be used: naming it was asking for it."""
        self._check_none_broken([record for record in self.records if record.is_file])

    def _key(self, kind: str, id: str) -> str:
        """The id under which `id` is registered: its own or that of the closest family."""
        _check_kind(kind)
        if id in self._specs[kind]:
            return "" if id.endswith("/*") else id
        families = [
            key for key in self._specs[kind] if key.endswith("/*") and id.startswith(key[:-1]) and id != key[:-1]
        ]
        return max(families, key=len, default="")

    def _ending_in(self, kind: str, name: str) -> Sequence[str]:
        _check_kind(kind)
        return sorted(id for id in self._specs[kind] if id.partition("/")[2] == name)

    def _unknown(self, kind: str, id: str) -> UsageError:
        namespace, slash, _ = id.partition("/")
        if not slash:
            return UnknownIdError(self._not_whole(kind, id))
        if id in self._specs[kind]:
            return UnknownIdError(f"{id!r} is a family; write one of its members, as {namespace}/NAME")
        broken = [r.complaint for r in self.records if namespace in r.namespaces and r.status != "ok"]
        if broken:
            return PluginError(f"{id!r} can't be used, since {'; '.join(broken)}")
        return UnknownIdError(self._nobody_has(kind, id, namespace))

    def _not_whole(self, kind: str, id: str) -> str:
        matches = self._ending_in(kind, id)
        if matches:
            return f"{id!r} is not a whole id; write {' or '.join(repr(match) for match in matches)}"
        names = {known.partition("/")[2]: known for known in self._specs[kind]}
        near = did_you_mean(id, list(names))
        return (
            f"{kind} has no {id!r}; ids look like 'namespace/name'.{near} `tunix hub list {kind}` shows what there is"
        )

    def _nobody_has(self, kind: str, id: str, namespace: str) -> str:
        other = [known for known in KINDS if known != kind and self._key(known, id)]
        if other:
            return f"{id!r} is in {other[0]}, not in {kind}"
        near = did_you_mean(id, list(self._specs[kind]))
        owners = [r.title for r in self.records if namespace in r.namespaces]
        if owners:
            return f"{kind} has no {id!r}; {owners[0]} registers no such id.{near} `tunix hub list {kind}` shows all"
        package = f"tunix-env-{namespace}" if kind == "envs" else f"tunix-{namespace}"
        advice = near or f" Try: pip install {package}, if that is the package you mean; a file is given with -p FILE"
        return f"{kind} has no {id!r}: no installed package has namespace {namespace!r}.{advice}"

    def _check_required(self, text: str) -> None:
        try:
            wanted = Requirement(text)
        except InvalidRequirement as error:
            raise PluginError(
                f"required plugin {text!r} is not a requirement such as 'tunix-env-x>=0.1': {error}"
            ) from error
        found = [r for r in self.records if canonicalize_name(r.distribution) == canonicalize_name(wanted.name)]
        remedy = f"Try: pip install '{text}'"
        if not found:
            raise PluginError(f"plugin {wanted.name} is required ({text}) and not installed. {remedy}")
        if not wanted.specifier.contains(found[0].version, prereleases=True):
            raise PluginError(f"plugin {wanted.name} {found[0].version} is installed, and {text} is required. {remedy}")
        if found[0].status != "ok":
            raise PluginError(f"plugin {wanted.name} is required, and {found[0].complaint}")

    def _check_none_broken(self, records: Sequence[PluginRecord]) -> None:
        broken = [record.complaint for record in records if record.status in ("failed", "incompatible")]
        if broken:
            raise PluginError("; ".join(broken))


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UsageError(f"there is no kind {kind!r}.{did_you_mean(kind, list(KINDS))} Kinds: {', '.join(KINDS)}")


def _import_target(id: str, target: str, record: PluginRecord) -> Any:
    try:
        return load_target(target)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(_import_failure(id, target, record, error)) from error


def _import_failure(id: str, target: str, record: PluginRecord, error: BaseException) -> str:
    problem = f"{id}: {target!r} of {record.title} can't be imported: {explain(error)}"
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return problem
    missing = error.name.partition(".")[0]
    if missing == target.partition(":")[0].partition(".")[0]:
        return f"{problem}. The target names a module that is not there; it is a fault of {record.title}"
    package = f"'{CORE}[train]'" if missing in TRAIN_MODULES else missing
    return f"{problem}. Try: pip install {package}"
