"""Which plugins there are, without importing any: installed distributions, and files."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from importlib.metadata import Distribution, EntryPoint, distributions
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tunix_core import __version__
from tunix_core.hookspecs import PROJECT
from tunix_core.plugins.records import Phase, PluginRecord, PluginStatus

CORE = "tunix-core"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin that was found and not yet imported. Either `entries` or `path` is set."""

    record: PluginRecord
    entries: tuple[EntryPoint, ...] = ()
    requires: tuple[str, ...] = ()
    path: Path | None = None

    def open(self) -> list[Any]:
        """Imports it. Gives its plugin objects (modules, mostly), each once. Raises what its code raises."""
        if self.path is not None:
            return [_import_file(self.path)]
        objects = {id(plugin): plugin for plugin in (entry.load() for entry in self.entries)}
        return list(objects.values())

    def refused(self, status: PluginStatus, phase: Phase, error: str) -> Candidate:
        return replace(self, record=replace(self.record, status=status, phase=phase, error=error))


def find_candidates(files: Sequence[str | Path], disabled: Collection[str]) -> list[Candidate]:
    """Installed plugins sorted by distribution, then files as given; each screened, none imported."""
    found = [*_installed(), *(_given(Path(file)) for file in dict.fromkeys(files))]
    blocked: set[str] = {canonicalize_name(name) for name in disabled}
    return _refuse_conflicts([_screen(candidate, blocked) for candidate in found])


def _installed() -> list[Candidate]:
    found: dict[str, Candidate] = {}
    for distribution in distributions():  # in the order of sys.path: the first of a name is the one imports find
        candidate = _from_distribution(distribution)
        if candidate is not None:
            found.setdefault(canonicalize_name(candidate.record.name), candidate)
    return [found[name] for name in sorted(found)]


def _from_distribution(dist: Distribution) -> Candidate | None:
    """None when it announces no plugin. One distribution's unreadable metadata must not hide the others."""
    text = ""
    try:
        text = dist.read_text("entry_points.txt") or ""
        entries = tuple(entry for entry in dist.entry_points if entry.group == PROJECT)
        if not entries:
            return None
        record = PluginRecord(
            name=dist.name,
            distribution=dist.name,
            version=dist.version,
            source=", ".join(dict.fromkeys(entry.value for entry in entries)),
            namespaces=tuple(dict.fromkeys(entry.name for entry in entries)),
        )
        return Candidate(record, entries, tuple(dist.requires or ()))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a stranger's metadata
        return _unreadable(dist, error) if f"[{PROJECT}]" in text else None


def _unreadable(dist: Distribution, error: Exception) -> Candidate:
    name = f"unreadable distribution in {dist.locate_file('')}"
    record = PluginRecord(name=name, distribution=name, source="entry_points.txt", namespaces=())
    problem = f"its metadata can't be read: {type(error).__name__}: {error}; reinstall it"
    return Candidate(record).refused("failed", "find", problem)


def _given(path: Path) -> Candidate:
    record = PluginRecord(name=path.stem, source=str(path), namespaces=(path.stem,))
    candidate = Candidate(record, path=path.resolve())
    if not path.is_file():
        return candidate.refused("failed", "find", f"there is no file {str(path)!r}; give the path of a .py file")
    if path.suffix != ".py" or "." in path.stem:
        return candidate.refused("failed", "find", f"a plugin file is named NAME.py, not {path.name!r}; rename it")
    return candidate


def _screen(candidate: Candidate, blocked: Set[str]) -> Candidate:
    record = candidate.record
    if blocked & {canonicalize_name(name) for name in (record.name, *record.namespaces)}:
        return candidate.refused(
            "blocked", "", "it was disabled by -p no:NAME, plugins.disabled or TUNIX_DISABLE_PLUGINS"
        )
    try:
        wanted = _core_specifiers(candidate.requires)
    except InvalidRequirement as error:
        return candidate.refused("failed", "version", f"its metadata has a requirement that cannot be read: {error}")
    for specifier in wanted:
        if not Requirement(f"{CORE}{specifier}").specifier.contains(__version__, prereleases=True):
            problem = f"it needs {CORE}{specifier}, and {CORE} {__version__} is installed"
            return candidate.refused("incompatible", "version", f"{problem}; try: pip install -U {record.name} {CORE}")
    return candidate


def _core_specifiers(requires: Iterable[str]) -> list[str]:
    wanted = [Requirement(text) for text in requires]
    return [
        str(r.specifier)
        for r in wanted
        if canonicalize_name(r.name) == CORE and (r.marker is None or r.marker.evaluate({"extra": ""}))
    ]


def _refuse_conflicts(candidates: Sequence[Candidate]) -> list[Candidate]:
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for candidate in candidates:
        if candidate.record.status == "ok":
            for namespace in candidate.record.namespaces:
                owners[namespace].append(candidate.record.title)
    shared = {namespace: titles for namespace, titles in owners.items() if len(titles) > 1}
    return [_refuse_shared(candidate, shared) for candidate in candidates]


def _refuse_shared(candidate: Candidate, shared: dict[str, list[str]]) -> Candidate:
    taken = [namespace for namespace in candidate.record.namespaces if namespace in shared]
    if candidate.record.status != "ok" or not taken:
        return candidate
    owners = " and ".join(shared[taken[0]])
    error = f"namespace {taken[0]!r} belongs to both {owners}; uninstall one, or leave it out with -p no:NAME"
    return candidate.refused("failed", "namespace", error)


class _PluginFileLoader(SourceFileLoader):
    """Marks the modules that came from files, which a later load may replace."""

    def path_stats(self, path: str) -> NoReturn:
        """Keeps compiled code out of it: its time stamp can't tell two edits within a second apart."""
        raise OSError(path)


def _import_file(path: Path) -> ModuleType:
    """The file as a module under its stem, so that a target "stem:attr" means this very file."""
    _check_name_free(path)
    spec = spec_from_file_location(path.stem, path, loader=_PluginFileLoader(path.stem, str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, so it shadows nothing: worker processes import the stem from here
    return module


def _check_name_free(path: Path) -> None:
    taken = find_spec(path.stem)
    if taken is None or taken.origin is None or isinstance(taken.loader, _PluginFileLoader):
        return
    if Path(taken.origin).resolve() != path:
        raise ImportError(f"the name {path.stem!r} belongs to the module {taken.origin}; rename the file")
