"""Widths from damage: the best ones under a limit, nested, and steady."""

import itertools
from dataclasses import replace

import pytest
import torch

from cosep.errors import ConfigError
from cosep.selection.candidates import ranked
from cosep.selection.rules import Target
from cosep.selection.rules.damage import DamageRule


class Costs:
    """A probe for groups whose costs add up."""

    def __init__(self, prices, harm):
        self.prices, self.harm = prices, harm

    def macs(self, widths):
        return sum(price * widths.get(name, 0) for name, price in self.prices.items())

    parameters = milliseconds = macs

    def damage(self, widths):
        return {name: self.harm[name] for name in widths}


def candidates(widths):
    return [ranked(name, torch.rand(w, generator=torch.Generator().manual_seed(w))) for name, w in widths.items()]


def decided(widths, prices, harm, limit, **given):
    rule = DamageRule()
    found = rule(candidates(widths), Target(macs=limit, given=given), Costs(prices, harm))
    return {name: width.k for name, width in found.widths.items()}, found.notes


def loss(ks, widths, harm):
    return sum(harm[name] * (widths[name] / k - 1) for name, k in ks.items())


def test_no_other_widths_within_the_limit_promise_less_damage():
    widths, prices = {"a": 12, "b": 16, "c": 10}, {"a": 3.0, "b": 1.0, "c": 2.0}
    harm = {"a": 0.3, "b": 0.1, "c": 1.5}
    limit = 0.5 * sum(prices[n] * widths[n] for n in widths)
    found, _ = decided(widths, prices, harm, limit)
    grids = [range(max(1, w // 8), w + 1) for w in widths.values()]
    best = min(
        (
            ks
            for k in itertools.product(*grids)
            if sum(p * x for p, x in zip(prices.values(), k, strict=True)) <= limit
            for ks in [dict(zip(widths, k, strict=True))]
        ),
        key=lambda ks: loss(ks, widths, harm),
    )
    assert sum(prices[n] * k for n, k in found.items()) <= limit
    assert loss(found, widths, harm) <= 1.1 * loss(best, widths, harm)  # whole numbers leave a little


def test_harm_and_price_decide_by_the_square_root():
    widths, prices = {"a": 400, "b": 400}, {"a": 1.0, "b": 1.0}
    found, _ = decided(widths, prices, {"a": 4.0, "b": 1.0}, 300)
    assert found["a"] / found["b"] == pytest.approx(2, rel=0.03)
    found, _ = decided(widths, {"a": 1.0, "b": 4.0}, {"a": 1.0, "b": 1.0}, 600)
    assert found["a"] / found["b"] == pytest.approx(2, rel=0.03)


def test_the_family_is_nested():
    widths, prices, harm = {"a": 64, "b": 32, "c": 16}, {"a": 1.0, "b": 5.0, "c": 2.0}, {"a": 1.0, "b": 0.2, "c": 0.01}
    sizes = [decided(widths, prices, harm, share * 256)[0] for share in (0.3, 0.4, 0.5, 0.7, 0.9)]
    for small, large in itertools.pairwise(sizes):
        assert all(small[name] <= large[name] for name in widths)


@pytest.mark.parametrize("seed", range(5))
def test_widths_hardly_move_with_the_statistics(seed):
    generator = torch.Generator().manual_seed(seed)
    widths = {str(i): 64 for i in range(8)}
    prices = {name: 1 + float(torch.rand(1, generator=generator)) for name in widths}
    harm = {name: float(torch.rand(1, generator=generator)) + 0.05 for name in widths}
    limit = 0.5 * sum(64 * p for p in prices.values())
    base, _ = decided(widths, prices, harm, limit)

    def moved(size):
        """How far the widest step is where every damage moves by itself; all alike would leave the widths alone."""
        noisy = {n: h * (1 + size * float(torch.randn(1, generator=generator))) for n, h in harm.items()}
        found, _ = decided(widths, prices, noisy, limit)
        return max(abs(base[n] - found[n]) for n in widths)

    assert moved(1e-6) <= 1
    assert moved(0.05) <= 6  # what a bootstrap sample of images does; tests/pipeline/test_steady.py draws real ones


def test_a_limit_that_cannot_be_met_is_said_and_no_group_goes_below_an_eighth():
    found, notes = decided({"a": 64}, {"a": 1.0}, {"a": 1.0}, 3)
    assert found == {"a": 8}
    assert "cannot be brought to" in notes[0]


def test_given_widths_are_kept_and_the_others_make_up_for_them():
    widths, prices, harm = {"a": 32, "b": 32}, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}
    found, _ = decided(widths, prices, harm, 40, a=30)
    assert found["a"] == 30
    assert found["b"] <= 10


def test_without_a_limit_it_asks_for_one():
    with pytest.raises(ConfigError, match="Give a limit"):
        DamageRule()(candidates({"a": 8}), Target(), Costs({"a": 1.0}, {"a": 1.0}))


def test_channels_that_can_go_for_nothing_go_first_and_do_not_count():
    known = candidates({"a": 64, "b": 64})
    known[0] = replace(known[0], spare=24)
    asked = {}

    class Asked(Costs):
        def damage(self, widths):
            asked.update(widths)
            return super().damage(widths)

    probe = Asked({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0})
    mild = DamageRule()(known, Target(macs=120), probe)
    assert asked == {"a": 20, "b": 32}  # half of what is needed
    assert {name: width.k for name, width in mild.widths.items()} == {"a": 40, "b": 64}
    assert "at half of the 40 channels that are needed" in mild.widths["a"].reason
    assert mild.widths["b"].reason.endswith("at half its width")
    # Beyond them 40 and 64 channels are weighed as in groups that have no others: by the square root.
    strong = {name: width.k for name, width in DamageRule()(known, Target(macs=60), probe).widths.items()}
    assert strong == decided({"a": 40, "b": 64}, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, 60)[0]
    assert strong["b"] / strong["a"] == pytest.approx((64 / 40) ** 0.5, rel=0.05)


def test_a_group_that_hardly_needs_any_channel_goes_below_an_eighth_and_no_further():
    known = candidates({"a": 64, "b": 64})
    known[0] = replace(known[0], spare=62)
    found = DamageRule()(known, Target(macs=3), Costs({"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 1.0}))
    assert {name: width.k for name, width in found.widths.items()} == {"a": 2, "b": 8}


def test_groups_that_do_no_harm_are_cut_first():
    found, _ = decided({"a": 64, "b": 64}, {"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 1.0}, 60)
    assert found == {"a": 8, "b": 52}


def test_a_limit_on_the_time_measures_few_networks():
    timed = []

    class Timed(Costs):
        def milliseconds(self, widths):
            timed.append(dict(widths))
            return super().macs(widths) / 100

    widths, prices = {"a": 64, "b": 64}, {"a": 1.0, "b": 2.0}
    probe = Timed(prices, {"a": 1.0, "b": 1.0})
    found = DamageRule()(candidates(widths), Target(milliseconds=0.96), probe)
    assert 0.9 < sum(prices[n] * w.k for n, w in found.widths.items()) / 100 <= 0.96
    assert len(timed) <= 15


class InBlocks(Costs):
    """Channels are computed eight at a time, and a block that is not full takes longer than a full one."""

    def milliseconds(self, widths):
        return sum(-(-width // 8) + (4 if width % 8 else 0) for width in widths.values())


def test_widths_under_a_time_follow_the_steps_in_which_the_clock_goes():
    widths, harm = {"a": 64, "b": 48}, {"a": 1.0, "b": 1.0}
    probe = InBlocks({"a": 1.0, "b": 1.0}, harm)
    uncut = probe.milliseconds(widths)
    found = DamageRule()(candidates(widths), Target(milliseconds=uncut - 3), probe)
    ks = {name: width.k for name, width in found.widths.items()}
    assert found.met
    assert probe.milliseconds(ks) <= uncut - 3
    assert all(k % 8 == 0 for k in ks.values()), ks
    assert sum(ks.values()) >= 8 * (uncut - 3) - 8, ks  # nearly all the time that there is
    assert "multiples of 8" in found.notes[0]


def test_widths_stay_as_they_are_where_the_clock_has_no_steps():
    widths, harm = {"a": 64, "b": 48}, {"a": 1.0, "b": 1.0}
    found = DamageRule()(candidates(widths), Target(milliseconds=53), Costs({"a": 1.0, "b": 1.0}, harm))
    assert 51 <= sum(width.k for width in found.widths.values()) <= 53
    assert "multiples" not in found.notes[0]
