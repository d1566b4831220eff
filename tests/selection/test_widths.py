import pytest
import torch

from cosep.config import SelectConfig, preset
from cosep.errors import ConfigError
from cosep.profiles import separability_space
from cosep.records import Selection
from cosep.selection import balance, round_up, select, with_width
from tests.selection.test_selection import real_like_layer

SCORES = torch.tensor([5.0, 4, 3, 2, 1, 0, 9, 8])
# Cluster 0 lost 1, 2, 3; cluster 1 lost 5; cluster 2 lost 7.
CHOSEN = Selection(8, (0, 4, 6), "knee", 3, clusters=(0, 0, 0, 0, 1, 1, 2, 2), medoids=(1, 4, 6))


@pytest.fixture(scope="module")
def space():
    return separability_space(real_like_layer())


def test_another_width_is_another_point_on_the_same_curve(space):
    weights = torch.arange(32.0)
    found = select(space, weights=weights, config=preset("paper").select)
    for width in (1, 2, 9, 31, 32):
        changed = with_width(found, space, width, weights=weights)
        assert len(changed.kept) == changed.k == width
        assert changed.reason == "width given"
        assert changed.notes == (f"width set to {width}, 16 before (knee)",)
        assert (changed.scores, changed.losses) == (found.scores, found.losses)
    same = with_width(found, space, found.k, weights=weights)
    assert (same.kept, same.clusters, same.medoids) == (found.kept, found.clusters, found.medoids)
    by_medoid = with_width(found, space, 5, config=SelectConfig(representative="medoid"))
    assert by_medoid.kept == by_medoid.medoids


def test_widths_outside_the_layer_are_refused(space):
    found = select(space, weights=torch.ones(32))
    with pytest.raises(ConfigError, match="width 33 was asked for; the layer has 32 channels"):
        with_width(found, space, 33, weights=torch.ones(32))
    with pytest.raises(ConfigError, match="ask for 1 to 32"):
        with_width(found, space, 0, weights=torch.ones(32))
    with pytest.raises(ConfigError, match="selection is of 8 channels and the distances are of 32"):
        with_width(CHOSEN, space, 2, weights=SCORES)


def test_rounding_up_adds_the_next_best_of_the_largest_clusters():
    rounded = round_up(CHOSEN, 5, SCORES)
    assert rounded.kept == (0, 1, 2, 4, 6)  # cluster 0 has lost most, twice in a row
    assert rounded.notes == ("rounded up from 3 to 5 channels, a multiple of 5",)
    assert round_up(CHOSEN, 6, SCORES).kept == (0, 1, 2, 3, 4, 6)  # then all have lost one: the lowest cluster


def test_rounding_never_goes_beyond_the_layer():
    assert round_up(CHOSEN, 16, SCORES).kept == tuple(range(8))
    assert round_up(CHOSEN, 16, SCORES).notes == ("rounded up from 3 to 8 channels",)


def test_a_width_that_fits_is_left_alone():
    assert round_up(CHOSEN, 3, SCORES) is CHOSEN
    assert round_up(CHOSEN, 1, SCORES) is CHOSEN


def test_a_selection_without_clusters_grows_by_the_best_of_all():
    assert round_up(Selection(8, (0,), "norm"), 3, SCORES).kept == (0, 6, 7)


def test_blocks_are_balanced_by_the_best_of_each():
    balanced = balance(CHOSEN, 4, SCORES)  # blocks (0, 1), (2, 3), (4, 5), (6, 7): one each
    assert balanced.kept == (0, 2, 4, 6)
    assert balanced.notes == ("balanced to 1 channels in each of 4 blocks: 1 added, 0 dropped",)
    uneven = balance(Selection(8, (0, 1, 2, 6), "knee"), 2, SCORES)
    assert uneven.kept == (0, 1, 6, 7)
    assert uneven.notes == ("balanced to 2 channels in each of 2 blocks: 1 added, 1 dropped",)


def test_balanced_blocks_are_left_alone():
    chosen = Selection(8, (0, 2, 5, 7), "knee")
    assert balance(chosen, 4, SCORES) is chosen
    assert balance(CHOSEN, 1, SCORES) is CHOSEN


def test_bad_requests_are_refused():
    with pytest.raises(ConfigError, match="multiple is 0; it must be at least 1"):
        round_up(CHOSEN, 0, SCORES)
    with pytest.raises(ConfigError, match="8 channels cannot be split into 3 equal blocks"):
        balance(CHOSEN, 3, SCORES)
    with pytest.raises(ConfigError, match=r"scores has shape \(2,\); it must be \(8,\)"):
        round_up(CHOSEN, 2, torch.ones(2))
