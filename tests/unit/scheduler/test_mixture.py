from hypothesis import given
from hypothesis import strategies as st

from tunix_core.scheduler import Mixture

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.05, 20.0), min_size=1)


@given(WEIGHTS, st.integers(1, 64), st.integers(1, 40))
def test_every_step_is_full_and_no_suite_strays_from_its_share(weights, groups, steps):
    mixture = Mixture(weights, groups)
    totals = dict.fromkeys(weights, 0)
    for step in range(steps):
        quota = mixture.quota(step)
        assert sum(quota.values()) == groups
        assert min(quota.values()) >= 0
        for name, count in quota.items():
            totals[name] += count
            assert totals[name] == mixture.total(name, step + 1)
            assert abs(totals[name] - mixture.shares[name] * (step + 1) * groups) <= 1 + 1e-6


def test_weights_three_two_one_over_six_groups():
    assert Mixture({"a": 3, "b": 2, "c": 1}, 6).quota(0) == {"a": 3, "b": 2, "c": 1}


def test_quotas_that_do_not_divide_are_carried_over():
    mixture = Mixture({"a": 1, "b": 1, "c": 1}, 4)
    assert {name: mixture.total(name, 3) for name in "abc"} == {"a": 4, "b": 4, "c": 4}


def test_mix_error_is_the_largest_distance_from_a_share():
    mixture = Mixture({"a": 1, "b": 1}, 2)
    assert mixture.error({}) == 0.0
    assert mixture.error({"a": 3, "b": 1}) == 0.25
