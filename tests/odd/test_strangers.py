"""Models as strangers write them, cut to half, against masked copies that know nothing of cosep.

Every fourth of them here; `benchmarks/strangers.py` goes through all.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import cosep
from cosep.errors import ModelError
from tests.odd import oracle
from tests.odd.strangers import STRANGERS, Base, C


@pytest.mark.parametrize("name", list(STRANGERS)[::4])
def test_what_is_cut_computes_what_the_masked_copy_does_in_both_modes(name):
    row = oracle.examine(STRANGERS[name])
    assert row["outcome"] != "wrong", row


@pytest.mark.parametrize("layer", ["b", "fc"])
def test_the_oracle_notices_a_wrong_cut(layer, monkeypatch):
    real = oracle.halved

    def wrongly(*given):
        model, result = real(*given)
        weight = result.model.get_submodule(layer).weight.data
        weight.copy_(weight.roll(1, 1))
        return model, result

    monkeypatch.setattr(oracle, "halved", wrongly)
    assert oracle.examine(STRANGERS["NormFirst"])["outcome"] == "wrong"


# Each of these ended in a foreign error once: scores among other things in training, a weight that is computed, and
# widths that code repeats or splits.
@pytest.mark.parametrize(
    "name",
    ["AuxiliaryBranch", "NamedOutput", "TwoHeads", "WeightNormed", "ShuffleModule", "SplitInTwo", "AssertsShape"],
)
def test_the_default_chain_ends_with_a_smaller_network_that_can_be_trained(name):
    assert oracle.chained(STRANGERS[name])["outcome"] == "right"


def test_what_training_returns_beside_the_scores_is_said_in_the_report():
    found = {}
    for name in ("AuxiliaryHead", "Counter"):
        stranger = STRANGERS[name]
        config = oracle.settings(recover={"schedule": "final", "share": 1.0, "epochs": 1.0}, limits={"max_macs": "70%"})
        found[name] = cosep.prune(oracle.built(stranger), oracle.batches(stranger.shape), config=config).report
    note = "in training the model returns a tuple: it was trained by the scores in it, its first tensor"
    assert note in found["AuxiliaryHead"].notes
    assert found["AuxiliaryHead"].recovery.updates > 0
    assert not any("in training" in said for said in found["Counter"].notes)


@pytest.mark.parametrize(
    "training", [lambda logits, hidden: (hidden, logits), lambda logits, hidden: SimpleNamespace(loss=logits.sum())]
)
def test_a_model_without_scores_in_training_is_refused_before_anything_is_cut(training):
    class Odd(Base):
        def forward(self, x):
            hidden = torch.relu(self.b(self.between(self.a(x)))).mean((2, 3))
            logits = self.fc(hidden)
            return training(logits, hidden) if self.training else logits

    model, loader = Odd().eval(), oracle.batches((3, 8, 8))
    with pytest.raises(ModelError, match=rf"in training the model returns a \w+ whose first tensor .* \(batch, {C}\)"):
        cosep.prune(model, loader, config=oracle.settings(recover={"schedule": "final"}))
    cosep.prune(model, loader, config=oracle.settings(limits={"max_macs": "70%"}))


def test_a_group_whose_width_the_code_repeats_is_not_prunable_and_says_so():
    class Folding(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Linear(6, C)

        def forward(self, x):
            y = torch.relu(self.a(x))
            assert y.shape[1] % 4 == 0, "fours"
            return self.fc(torch.relu(self.b(y)).mean((2, 3)))

    result = cosep.prune(
        Folding().eval(), oracle.batches((3, 8, 8)), config=oracle.settings(limits={"max_macs": "90%"})
    )
    why = {skip.group: skip.why for skip in result.report.not_pruned}
    assert why["a"] == "the network does not run with fewer channels (AssertionError: fours)"
    assert [plan.group for plan in result.plan.groups] == ["b"]
