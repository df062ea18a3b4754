"""Observers are isolated, decisions go to the first that answers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tunix_core.plugins import Hub

HEAD = "from tunix_core import hookimpl\nheard = []\n"
HEARS = "@hookimpl\ndef tunix_weights_published(version): heard.append(version)\n"
RAISES = "@hookimpl\ndef tunix_weights_published(ctx, version): raise RuntimeError('deaf')\n"


def load_files(folder: Path, **codes: str) -> Hub:
    paths = [folder / f"{stem}.py" for stem in codes]
    for path in paths:
        path.write_text(HEAD + codes[path.stem])
    hub = Hub.load(paths)
    hub.check_files()
    return hub


def test_an_observer_that_raises_is_reported_once_and_counted_and_the_others_hear(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import sys

    hub = load_files(tmp_path, first=HEARS, second=RAISES, third=HEARS)
    with caplog.at_level(logging.WARNING):
        for version in (1, 2, 3):
            hub.hooks.notify("tunix_weights_published", ctx=None, version=version)
    assert sys.modules["first"].heard == sys.modules["third"].heard == [1, 2, 3]
    assert hub.hooks.failures() == {("second", "tunix_weights_published"): 3}
    (reported,) = caplog.records
    assert "plugin second: tunix_weights_published failed" in reported.message
    assert "RuntimeError: deaf (at" in reported.message


PANICS = "class Panic(BaseException): ...\n"


@pytest.mark.parametrize("error", ["SystemExit(0)", "Panic('as in Rust')"])
def test_neither_an_observer_nor_a_decision_ends_the_program(tmp_path: Path, error: str) -> None:
    raises = f"@hookimpl\ndef tunix_weights_published(): raise {error}\n"
    decides = f"@hookimpl\ndef tunix_resolve_image(): raise {error}\n"
    hooks = load_files(tmp_path, wild=PANICS + raises + decides).hooks
    hooks.notify("tunix_weights_published", ctx=None, version=1)
    assert hooks.failures() == {("wild", "tunix_weights_published"): 1}
    with pytest.raises(RuntimeError, match=rf"{error.partition('(')[0]}: .*wild.py"):
        hooks.decide("tunix_resolve_image", image="x", platform="y")


def test_a_hook_nobody_implements_is_silent(tmp_path: Path) -> None:
    hooks = load_files(tmp_path, first=HEARS).hooks
    hooks.notify("tunix_checkpoint_saved", ctx=None, path=None)
    assert hooks.decide("tunix_resolve_image", image="x", platform="y") is None


def test_an_unknown_hook_is_a_fault_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        load_files(tmp_path, first=HEARS).hooks.notify("tunix_nothing")


def test_an_argument_left_out_is_a_fault_of_the_caller_not_of_the_observer(tmp_path: Path) -> None:
    hooks = load_files(tmp_path, first=HEARS).hooks
    with pytest.raises(TypeError, match="tunix_weights_published is called without version"):
        hooks.notify("tunix_weights_published", ctx=None)


def test_the_first_answer_decides(tmp_path: Path) -> None:
    def answering(answer: str, options: str = "") -> str:
        return f"@hookimpl{options}\ndef tunix_resolve_image(image): return {answer}\n"

    hooks = load_files(
        tmp_path,
        a=answering("image + '-late'", "(trylast=True)"),
        b=answering("image + '-b'"),
        c=answering("None", "(tryfirst=True)"),
    ).hooks
    assert hooks.decide("tunix_resolve_image", image="img", platform="p") == "img-b"


def test_what_a_decision_raises_goes_to_the_caller(tmp_path: Path) -> None:
    hooks = load_files(tmp_path, a="@hookimpl\ndef tunix_make_env(spec, task): raise RuntimeError('no')\n").hooks
    with pytest.raises(RuntimeError, match="no"):
        hooks.decide("tunix_make_env", spec=None, task=None)


def test_answers_of_observers_are_collected_by_plugin(tmp_path: Path) -> None:
    audit = "@hookimpl\ndef tunix_audit_reward(trajectory): return [trajectory]\n"
    hooks = load_files(tmp_path, a=audit, b=audit.replace("[trajectory]", "None")).hooks
    assert hooks.collect("tunix_audit_reward", ctx=None, trajectory="odd") == [("a", ["odd"])]
