"""The permutation is one, for every length, and a function of its arguments alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunix_core.tasks import permuted


@given(length=st.integers(1, 300), seed=st.integers(0, 2**63), epoch=st.integers(0, 1000))
def test_every_number_comes_exactly_once(length: int, seed: int, epoch: int) -> None:
    order = [permuted(i, length, seed=seed, epoch=epoch) for i in range(length)]
    assert sorted(order) == list(range(length))


def test_the_order_is_fixed_for_ever() -> None:
    # Made by this function when it was written; a change would change every resumed run.
    assert [permuted(i, 8, seed=3) for i in range(8)] == [1, 7, 3, 4, 5, 2, 6, 0]


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = {tuple(permuted(i, 50, seed=s, epoch=e) for i in range(50)) for s in range(5) for e in range(5)}
    assert len(orders) == 25


@pytest.mark.parametrize("length", [2, 3, 5, 10])
def test_no_place_is_favoured(length: int) -> None:
    draws = 2000
    for place in (0, length - 1):
        found = [permuted(place, length, seed=7, epoch=e) for e in range(draws)]
        for number in range(length):
            expected = draws / length
            assert abs(found.count(number) - expected) < 5 * expected**0.5


def test_a_huge_source_costs_nothing() -> None:
    assert len({permuted(i, 10**15, seed=1) for i in range(100)}) == 100


def test_a_place_outside_is_refused() -> None:
    with pytest.raises(ValueError, match=r"place 4 is outside of range\(4\)"):
        permuted(4, 4, seed=0)
