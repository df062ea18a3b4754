"""The failure vocabulary, and the one place where a failure is attributed.

TunixError
├── UsageError            the user can fix it: wrong id, wrong option, wrong file
│   ├── ConfigError       a config file or an override; carries the line
│   ├── UnknownIdError    an id nobody registered; carries what is near it
│   ├── PluginError       a plugin that cannot be used, and which phase failed
│   ├── CheckpointError   a run or checkpoint that cannot be opened or resumed
│   └── OutOfMemory       a device has too little memory for what the config asks
├── EpisodeError          one episode's data; the run goes on
│   ├── EnvError          env_raised, env_timeout, env_died, env_contract
│   ├── ToolError         shown to the policy as an observation
│   ├── RewardError       reward_raised, reward_timeout, reward_nan, reward_range, reward_type
│   ├── GraderError       grader_lost
│   ├── GoldError         bad_gold
│   ├── SandboxError      sandbox_failed
│   └── ModelError        model_failed, model_timeout
├── EngineError           the engine cannot go on; ends the run
└── RunEnded              the run stops on purpose and says why
    ├── TooManyFailures   ├── NoSignal   ├── SuiteStarved   ├── Stalled
    └── NotFinite         └── Disagreement
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from sysconfig import get_path
from traceback import walk_tb
from types import TracebackType

from tunix_core.types import Failure

_OURS = os.path.dirname(__file__) + os.sep
_PYTHONS = get_path("stdlib") + os.sep
_PACKAGES = tuple({get_path("purelib") + os.sep, get_path("platlib") + os.sep})


class TunixError(Exception):
    """Everything this package raises on purpose."""


class UsageError(TunixError):
    """Something the user gave; the message says what was given, what was expected, what to do."""


class ConfigError(UsageError):
    """A config file or an override is wrong.

    Args:
        message: what is wrong and what to do.
        source: the file's name or "-o key=value".
        line: 1-based, when known.
    """

    def __init__(self, message: str, *, source: str = "", line: int | None = None) -> None:
        where = f"{source}:{line}: " if source and line else f"{source}: " if source else ""
        super().__init__(where + message)
        self.source, self.line = source, line


class UnknownIdError(UsageError):
    """An id that nothing registered."""


class PluginError(UsageError):
    """A plugin that cannot be used."""


class CheckpointError(UsageError):
    """A run directory or checkpoint that cannot be opened, or does not fit."""


class OutOfMemory(UsageError):
    """A device has too little memory for what the config asks; the message says what to lower."""


class EpisodeError(TunixError):
    """One episode's failure.

    Attributes:
        kind: the word under which it is counted.
        retry: whether a fresh attempt may go better.
        where: the boundary it is attributed to; "" until one has seen it.
    """

    kind = "failed"
    retry = True
    where = ""

    def __init__(self, message: str, *, kind: str | None = None, retry: bool | None = None) -> None:
        super().__init__(message)
        self.kind = kind or self.kind
        self.retry = self.retry if retry is None else retry


class EnvError(EpisodeError):
    """The environment raised, timed out, died, or broke its contract."""

    kind = "env_raised"


class ToolError(EpisodeError):
    """Raise it in a tool to tell the policy what went wrong; the episode goes on."""

    kind = "tool_error"


class RewardError(EpisodeError):
    """A reward raised, timed out, or gave something that is not a score."""

    kind = "reward_raised"
    retry = False


class GraderError(EpisodeError):
    """The grader's worker was lost, or a judge did not answer."""

    kind = "grader_lost"


class GoldError(EpisodeError):
    """The reference answer itself cannot be read."""

    kind = "bad_gold"
    retry = False


class SandboxError(EpisodeError):
    """A sandbox could not be opened, or was lost."""

    kind = "sandbox_failed"


class ModelError(EpisodeError):
    """A request to the engine failed for this episode alone."""

    kind = "model_failed"


class EngineError(TunixError):
    """The engine cannot go on; every waiting request fails with this, and the run ends."""


class RunEnded(TunixError):
    """The run stops on purpose."""


class TooManyFailures(RunEnded):
    """More than the allowed share of a suite's episodes failed."""


class NoSignal(RunEnded):
    """No suite gave a group with differing scores for too many steps."""


class SuiteStarved(RunEnded):
    """A suite delivered nothing for longer than its debt allows."""


class Stalled(RunEnded):
    """Nothing moved for `stall_timeout_s`; the message lists every room's state."""


class NotFinite(RunEnded):
    """The gradient of several steps in a row was not finite."""


class Disagreement(RunEnded):
    """Trainer and engine give the same tokens other log-probabilities, beyond the bound."""


class boundary:
    """Attributes whatever is raised inside to `where`, as an `error`.

    It keeps nothing of what happens inside: one may be kept, and entered by many at once.

    The message says what was raised, and in which line of a plugin's code. A TimeoutError becomes kind
    "<family>_timeout" ("env_timeout"). What is an EpisodeError already
    keeps its kind; EngineError and RunEnded pass through, since they are not one episode's data.

    Raises:
        EpisodeError: with `where` in `boundary` for `failure_of`.
    """

    __slots__ = ("_error", "_where")

    def __init__(self, where: str, error: type[EpisodeError]) -> None:
        self._where, self._error = where, error

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, caught: BaseException | None, trace: TracebackType | None
    ) -> None:
        if caught is None:
            return
        if not isinstance(caught, Exception) or isinstance(caught, EngineError | RunEnded):
            return
        if isinstance(caught, EpisodeError):
            caught.where = caught.where or self._where  # the innermost boundary is the true one
            return
        text, place = words(caught), raised_at(trace) or _raised_in_worker(caught)
        if isinstance(caught, TimeoutError):
            family, text = self._error.kind.split("_")[0], str(caught) or "timed out"
            raise _attributed(self._error(text + place, kind=f"{family}_timeout"), self._where) from caught
        raise _attributed(self._error(text + place), self._where) from caught


def words(error: BaseException) -> str:
    """ "KeyError: 'answer'", cut to 400 characters; its type alone where it can't say more."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"[:400]
    except Exception:  # noqa: BLE001 - an exception of theirs, which may do anything
        return name


def raised_at(trace: TracebackType | None) -> str:
    """ " (rewards.py:12)": the innermost line of whose code it is, or "" where that is ours or Python's alone."""
    places = [(frame.f_code.co_filename, line) for frame, line in walk_tb(trace)]
    theirs = [(Path(file), line) for file, line in places if _is_theirs(file)]
    if not theirs:
        return ""
    home = theirs[0][0].parent  # a library that their code calls lives elsewhere
    file, line = next(place for place in reversed(theirs) if place[0].parent == home)
    return f" ({file.name}:{line})"


def _raised_in_worker(error: BaseException) -> str:
    """The same, as the worker process says it that the error comes from."""
    try:
        place = error.in_worker  # type: ignore[attr-defined] - set there, as a note is
    except Exception:  # noqa: BLE001 - an exception of theirs, which may do anything
        return ""
    return place if isinstance(place, str) else ""


def _is_theirs(file: str) -> bool:
    if file.startswith(("<", _OURS)):
        return False
    return not file.startswith(_PYTHONS) or file.startswith(_PACKAGES)


def _attributed(error: EpisodeError, where: str) -> EpisodeError:
    error.where = where
    return error


def failure_of(error: EpisodeError) -> Failure:
    """The failure as data, for the trajectory that carries it."""
    line = " ".join(str(error).split())[:500]
    return Failure(kind=error.kind, boundary=error.where or "unknown", message=line, retry=error.retry)


def check_number(what: str, value: object, default: object) -> None:
    """Raises UsageError where the default is a number or a truth value, and the value is a text."""
    if isinstance(value, str) and isinstance(default, bool | int | float):
        kind = "true or false" if isinstance(default, bool) else "a number"
        raise UsageError(f"{what} is the text {value!r}; expected {kind}, like its default {default!r}.")


def did_you_mean(given: str, known: Sequence[str]) -> str:
    """ " Did you mean 'x'?" or, when nothing is near, ""."""
    near = get_close_matches(given, known, n=3, cutoff=0.6)
    near = near or [name for name in known if len(given) > 2 and given in name][:3]  # "lake" of "frozen-lake"
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
