import math

import pytest

from cosep.config import RecoverConfig
from cosep.errors import ConfigError
from cosep.recovery import rate, updates_per_group


def test_a_constant_rate_without_warm_up_is_the_peak_everywhere():
    config = RecoverConfig(lr=0.01, warmup=0.0, decay="constant")
    assert {rate(u, 50, config) for u in range(50)} == {0.01}


def test_the_cosine_falls_from_the_peak_through_half_of_it_to_nearly_zero():
    config = RecoverConfig(lr=0.2, warmup=0.0, decay="cosine")
    assert rate(0, 100, config) == pytest.approx(0.2)
    assert rate(50, 100, config) == pytest.approx(0.1)
    assert rate(99, 100, config) == pytest.approx(0.2 * (1 + math.cos(math.pi * 0.99)) / 2)


def test_the_warm_up_rises_in_equal_steps_and_the_peak_comes_right_after_it():
    config = RecoverConfig(lr=1.0, warmup=0.1, decay="constant")
    rates = [rate(u, 30, config) for u in range(4)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_the_budget_is_the_papers_two_epochs_on_a_quarter_of_the_batches():
    # 50,000 images in batches of 128 are 390 full batches; a quarter of them is 97.
    assert updates_per_group(390, RecoverConfig(epochs=2, share=0.25)) == 194


def test_a_share_that_gives_no_full_batch_is_refused():
    with pytest.raises(ConfigError, match=r"share is 0.25, which of 3 training batches gives no full batch"):
        updates_per_group(3, RecoverConfig(share=0.25))
