from __future__ import annotations

from pathlib import Path

import pytest
from tunix_models import plugin

from tunix_core.errors import UsageError
from tunix_core.specs import load_target


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_until_it_is_fetched_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TUNIX_MODELS", str(tmp_path))
    registered = []
    plugin.tunix_register_models(registered.append)
    spec = next(spec for spec in registered if spec.id == f"models/{name}")
    with pytest.raises(UsageError, match=f"run: tunix model fetch {name}"):
        load_target(spec.target)(**{option: value.default for option, value in spec.options.items()})
