import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cosep.errors import ModelError
from cosep.zoo import load_checkpoint, load_model, read_state_dict


def net():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def snapshot(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"state_dict": s, "epoch": 3},
        lambda s: {"model_state_dict": s, "optimizer": {"lr": 0.1}},
        lambda s: {"model": s},
        lambda s: {"model": {"state_dict": s}},
        lambda s: {"state_dict": {"module." + k: v for k, v in s.items()}},
        lambda s: {"_orig_mod." + k: v for k, v in s.items()},
        lambda s: {"module._orig_mod." + k: v for k, v in s.items()},
    ],
)
def test_common_wrappers_are_understood(tmp_path, wrap):
    state = snapshot(net())
    torch.save(wrap(state), tmp_path / "c.pt")
    assert same(read_state_dict(tmp_path / "c.pt"), state)


def test_safetensors_round_trip(tmp_path):
    saved, model = net(), net()
    save_file(saved.state_dict(), tmp_path / "c.safetensors")
    load_checkpoint(model, tmp_path / "c.safetensors")
    assert same(model.state_dict(), saved.state_dict())


def test_prefix_that_belongs_to_the_model_stays(tmp_path):
    wrapper = nn.Module()
    wrapper.module = net()
    saved = snapshot(wrapper)
    torch.save(saved, tmp_path / "c.pt")
    with torch.no_grad():
        wrapper.module[0].weight.zero_()
    load_checkpoint(wrapper, tmp_path / "c.pt")
    assert same(wrapper.state_dict(), saved)


@pytest.mark.parametrize("prefix", ["model.", "backbone.net.", "model._orig_mod."])
def test_the_network_of_a_lightning_module_is_found_beside_other_entries(prefix, tmp_path):
    saved, model = net(), net()
    state = {prefix + name: tensor for name, tensor in saved.state_dict().items()}
    torch.save({"state_dict": {**state, "loss.weight": torch.ones(3)}, "epoch": 3}, tmp_path / "c.ckpt")
    load_checkpoint(model, tmp_path / "c.ckpt")
    assert same(model.state_dict(), saved.state_dict())


def test_two_networks_in_one_checkpoint_are_named(tmp_path):
    state = net().state_dict()
    torch.save({f"{who}.{name}": t for who in ("student", "teacher") for name, t in state.items()}, tmp_path / "c.ckpt")
    with pytest.raises(ModelError, match=r"weights 2 times, under student\. and teacher\."):
        load_checkpoint(net(), tmp_path / "c.ckpt")


def test_weights_are_loaded_by_name(tmp_path):
    model = load_model("digits_cnn")
    torch.save({"state_dict": model.state_dict()}, tmp_path / "c.pth")
    assert same(load_model("digits_cnn", weights=tmp_path / "c.pth").state_dict(), model.state_dict())


def test_checkpoints_from_before_batches_were_counted_fit(tmp_path):
    state = {k: v for k, v in net().state_dict().items() if "num_batches" not in k}
    torch.save(state, tmp_path / "c.pt")
    load_checkpoint(net(), tmp_path / "c.pt")


def test_mismatches_are_named_and_nothing_is_loaded(tmp_path):
    state = {k: v + 1 for k, v in net().state_dict().items()}
    del state["1.running_mean"]
    state["0.weight"] = torch.zeros(5, 1, 3, 3)
    state["head.weight"] = torch.zeros(1)
    torch.save(state, tmp_path / "c.pt")
    model = net()
    before = snapshot(model)
    expected = (
        r"does not fit.*missing: 1\.running_mean; unexpected: head\.weight; "
        r"wrong shape: 0\.weight is 5x1x3x3 instead of 2x1x3x3"
    )
    with pytest.raises(ModelError, match=expected):
        load_checkpoint(model, tmp_path / "c.pt")
    assert same(model.state_dict(), before)


def test_only_the_first_mismatches_are_listed(tmp_path):
    torch.save(net().state_dict(), tmp_path / "c.pt")
    with pytest.raises(ModelError, match=r"missing: conv1\.weight, bn1\.weight, bn1\.bias and \d+ more"):
        load_model("digits_cnn", weights=tmp_path / "c.pt")


def test_ignored_names_may_be_there(tmp_path):
    torch.save({**net().state_dict(), "aux1.weight": torch.zeros(1)}, tmp_path / "c.pt")
    load_checkpoint(net(), tmp_path / "c.pt", ignore=("aux1.",))
    with pytest.raises(ModelError, match=r"unexpected: aux1\.weight"):
        load_checkpoint(net(), tmp_path / "c.pt")


def test_file_that_carries_code_is_refused_and_not_run(tmp_path):
    marker = tmp_path / "ran"
    torch.save({"state_dict": net().state_dict(), "args": Evil(str(marker))}, tmp_path / "zip.pt")
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"w": Evil(str(marker))}, protocol=2))
    for name in ("zip.pt", "plain.pkl"):
        with pytest.raises(ModelError, match=r"carries code.*refused.*convert it once"):
            read_state_dict(tmp_path / name)
    assert not marker.exists()


def test_whole_pickled_model_is_refused(tmp_path):
    torch.save(net(), tmp_path / "m.pt")
    with pytest.raises(ModelError, match=r"carries code.*weights_only=False"):
        read_state_dict(tmp_path / "m.pt")


@pytest.mark.parametrize("name", ["c.pt", "c.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_file_is_told(tmp_path, name, share):
    path = tmp_path / name
    torch.save(net().state_dict(), path) if name == "c.pt" else save_file(net().state_dict(), path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelError, match=r"damaged or no .*again"):
        read_state_dict(path)


def test_text_file_is_no_checkpoint(tmp_path):
    (tmp_path / "c.pt").write_text("hello, this is not a checkpoint")
    with pytest.raises(ModelError, match="damaged or no checkpoint"):
        read_state_dict(tmp_path / "c.pt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.zeros(1)], "holds a list"),
        ({}, "holds nothing"),
        ({"epoch": 3, "weights": {"a": torch.zeros(1)}}, r"no tensors \(epoch, weights\).*to look into"),
    ],
)
def test_file_without_weights_is_told(tmp_path, content, message):
    torch.save(content, tmp_path / "c.pt")
    with pytest.raises(ModelError, match=message):
        read_state_dict(tmp_path / "c.pt")


def test_missing_file_is_told(tmp_path):
    with pytest.raises(ModelError, match=r"there is no checkpoint .*nowhere\.pt"):
        load_model("digits_cnn", weights=tmp_path / "nowhere.pt")
