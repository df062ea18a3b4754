"""Imports and checks plugins one by one; whatever one does wrong stays its own."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from pathlib import Path
from time import perf_counter
from typing import Any

import pluggy

from tunix_core import hookspecs
from tunix_core.errors import PluginError, did_you_mean
from tunix_core.plugins.discovery import Candidate
from tunix_core.plugins.records import KINDS, Phase, PluginRecord, Spec, describe_spec
from tunix_core.specs import EnvSpec

ID = re.compile(r"[^\s/*]+/([^\s*]+|([^\s*]+/)?\*)")
HOOKS = tuple(sorted(name for name in vars(hookspecs) if name.startswith("tunix_")))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin after loading. Without its objects and specs when it is not usable.

    Attributes:
        objects: what its entry points name; their hooks are called.
        specs: kind -> id -> spec.
    """

    record: PluginRecord
    objects: tuple[Any, ...] = ()
    specs: Mapping[str, Mapping[str, Spec]] = field(default_factory=dict)


def new_manager() -> pluggy.PluginManager:
    """A pluggy manager that knows every hook and no plugin."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def load(candidate: Candidate) -> Loaded:
    """Imports, validates and registers one candidate. Never raises; the record tells."""
    if candidate.record.status != "ok":
        return Loaded(candidate.record)
    phase: Phase = "import"
    started = perf_counter()
    record = candidate.record
    try:
        with redirect_stdout(sys.stderr):  # what a plugin prints must not end up in our JSON
            objects = candidate.open()
            record = replace(record, import_ms=_ms_since(started))
            phase = "validate"
            manager = _check_hooks(objects)
            phase = "register"
            specs = _Registration(record).run(manager)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a stranger's code: whatever it raises is its record's
        elapsed = record.import_ms or _ms_since(started)
        return Loaded(replace(record, status="failed", phase=phase, error=explain(error), import_ms=elapsed))
    return Loaded(record, tuple(objects), specs)


def call(impl: pluggy.HookImpl, arguments: Mapping[str, Any]) -> Any:
    """Calls one implementation with those of the arguments that it takes."""
    return impl.function(*(arguments[name] for name in impl.argnames))


def explain(error: BaseException) -> str:
    """An error of a plugin in one line, with the place where its own code raised it."""
    line = " ".join(str(error).split())
    if isinstance(error, PluginError | pluggy.PluginValidationError):
        return line
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_machinery(f.filename)]
    place = frames[-1] if frames else None
    at = f" (at {place.filename}:{place.lineno})" if place else ""
    return f"{type(error).__name__}: {line}{at}"


def _is_machinery(filename: str) -> bool:
    """True for the frames between this module and the plugin's code."""
    path = Path(filename)
    return filename.startswith("<frozen") or path.parent.name == "importlib" or path.parent == Path(__file__).parent


def _ms_since(started: float) -> float:
    return round((perf_counter() - started) * 1000, 2)


def _check_hooks(objects: Sequence[Any]) -> pluggy.PluginManager:
    manager = new_manager()
    for plugin in objects:
        names = [name for name in dir(plugin) if manager.parse_hookimpl_opts(plugin, name) is not None]
        if not names:
            raise PluginError(_no_hooks(plugin))
        for name in names:
            _check_hook(manager, plugin, name)
        manager.register(plugin)
    return manager


def _no_hooks(plugin: Any) -> str:
    bare = [name for name in HOOKS if name in vars(plugin)]
    if bare:
        return f"{bare[0]} is not decorated; write @hookimpl above it (from tunix_core import hookimpl)"
    return (
        "no hook is implemented here; decorate a function with @hookimpl (from tunix_core import hookimpl), e.g. "
        "def tunix_register_rewards(register)"
    )


def _check_hook(manager: pluggy.PluginManager, plugin: Any, name: str) -> None:
    options = manager.parse_hookimpl_opts(plugin, name)
    assert options is not None
    hook = options.get("specname") or name
    if hook not in HOOKS:
        raise PluginError(f"unknown hook {hook!r}.{did_you_mean(hook, HOOKS)} The hooks are listed in hookspecs.py")
    if options.get("wrapper") or options.get("hookwrapper"):
        raise PluginError(f"{hook}: hook wrappers are not supported; implement the hook as a plain function")
    if iscoroutinefunction(getattr(plugin, name)):
        raise PluginError(f"{hook}: a hook is a plain function, and this one is async; remove `async`")


class _Registration:
    """Collects what one plugin registers, and checks each spec."""

    def __init__(self, record: PluginRecord) -> None:
        self._record = record
        self._specs: dict[str, dict[str, Spec]] = {kind: {} for kind in KINDS}

    def run(self, manager: pluggy.PluginManager) -> Mapping[str, Mapping[str, Spec]]:
        for kind in KINDS:
            for impl in getattr(manager.hook, f"tunix_register_{kind}").get_hookimpls():
                call(impl, {"register": lambda spec, kind=kind: self._add(kind, spec)})
        return self._specs

    def _add(self, kind: str, spec: Any) -> None:
        if type(spec) is not KINDS[kind]:
            wanted = KINDS[kind].__name__
            raise PluginError(f"tunix_register_{kind} takes {wanted}(...), and was given {type(spec).__name__}")
        if "/" not in spec.id and len(self._record.namespaces) == 1:  # one file serves as a file and in a package
            spec = replace(spec, id=f"{self._record.namespaces[0]}/{spec.id}")
        self._check_id(kind, spec.id)
        _check_content(spec)
        self._specs[kind][spec.id] = spec

    def _check_id(self, kind: str, id: str) -> None:
        namespace = id.partition("/")[0]
        own = self._record.namespaces
        if namespace not in own:
            places = " or ".join(f"'{space}/...'" for space in own)
            how = "" if self._record.is_file else " (a distribution's namespaces are the names of its entry points)"
            raise PluginError(f"id {id!r} is outside this plugin's namespaces; name it {places}{how}")
        if not ID.fullmatch(id):
            raise PluginError(f"id {id!r} must be 'namespace/name', or 'namespace/*' for a family")
        if id in self._specs[kind]:
            raise PluginError(f"id {id!r} is registered twice in {kind}")


def _check_content(spec: Spec) -> None:
    targets = {"target": spec.target}
    if isinstance(spec, EnvSpec):
        optional = {"members": spec.members, "solutions": spec.solutions}
        targets |= {"tasks": spec.tasks} | {name: target for name, target in optional.items() if target}
    for name, target in targets.items():
        module, colon, attr = target.partition(":")
        if not (module and colon and attr):
            raise PluginError(f"{spec.id}: {name} must look like 'module:attr', and is {target!r}")
    try:
        json.dumps(describe_spec(spec))
    except TypeError as error:
        raise PluginError(f"{spec.id}: the defaults of options must survive JSON: {error}") from error
