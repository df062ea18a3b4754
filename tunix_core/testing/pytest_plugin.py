"""What pytest finds when tunix-core is installed: fixtures that load nothing until a test asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def check_env() -> Callable[..., None]:
    """`tunix_core.testing.envs.check_env`."""
    from tunix_core.testing.envs import check_env as check

    return check
