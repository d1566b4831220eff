"""The laws of a cut on Transformers as libraries write them, made small: heads and neurons gone from all blocks.

What must come out is computed by the library's own network, whole, with zeros where its output layers would read what
went. Which layers these are, and where in them a head lies, is written down here. Libraries that are not installed are
left out.
"""

import json

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from cosep.errors import ModelError
from cosep.groups import find_groups
from cosep.measurement import macs
from cosep.plugins import import_extra
from cosep.records import GroupPlan
from cosep.storage.artifacts import load, save
from cosep.storage.export import export_onnx
from cosep.surgery import apply_layout, plan_for, plan_from_document, plan_to_document, with_cuts_tried
from cosep.zoo.vit import CifarViT


def library(name):
    try:
        return import_extra(name, ModelError)
    except ModelError as missing:
        pytest.skip(str(missing))


def timm_model(name, **settings):
    return library("timm").create_model(name, pretrained=False, num_classes=3, **settings)


class Logits(nn.Module):
    """What Hugging Face's classifiers return in a record, as a tensor."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x).logits


def hugging_face():
    library("torchvision")  # which it imports itself
    made = pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    return Logits(made.ViTForImageClassification(made.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=3)))


def blocks(heads, neurons, places=range(2), width=3):
    """The layers that read the heads and the neurons of each block, and how many heads there are (1: neurons)."""
    return {name.format(i): count for i in places for name, count in ((heads, width), (neurons, 0))}


SWIN = {"img_size": 56, "embed_dim": 24, "depths": (2, 1), "num_heads": (3, 6)}
CONVNEXT = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}
# The constructor, the size of an image, and which layers read what: heads so many, or neurons (0).
MODELS = {
    "timm's ViT": (
        lambda: timm_model("vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=2),
        32,
        blocks("blocks.{}.attn.proj", "blocks.{}.mlp.fc2"),
    ),
    "timm's DeiT": (
        lambda: timm_model("deit_tiny_patch16_224", img_size=32, embed_dim=24, depth=2),
        32,
        blocks("blocks.{}.attn.proj", "blocks.{}.mlp.fc2"),
    ),
    "timm's Swin": (
        lambda: timm_model("swin_tiny_patch4_window7_224", **SWIN),
        56,
        blocks("layers.0.blocks.{}.attn.proj", "layers.0.blocks.{}.mlp.fc2")
        | {"layers.1.blocks.0.attn.proj": 6, "layers.1.blocks.0.mlp.fc2": 0},
    ),
    "timm's ConvNeXt": (
        lambda: timm_model("convnext_atto", **CONVNEXT),
        64,
        {f"stages.{i}.blocks.0.mlp.fc2": 0 for i in range(4)},
    ),
    "torchvision's ViT": (
        lambda: library("torchvision").models.VisionTransformer(32, 16, 2, 3, 24, 40, num_classes=3),
        32,
        blocks("encoder.layers.encoder_layer_{}.self_attention.out_proj", "encoder.layers.encoder_layer_{}.mlp.3"),
    ),
    "torchvision's Swin": (
        lambda: library("torchvision").models.SwinTransformer([4, 4], 12, [2, 1], [3, 6], [4, 4], num_classes=3),
        32,
        blocks("features.1.{}.attn.proj", "features.1.{}.mlp.3")
        | {"features.3.0.attn.proj": 6, "features.3.0.mlp.3": 0},
    ),
    "Hugging Face's ViT": (
        hugging_face,
        16,
        blocks("net.vit.layers.{}.attention.o_proj", "net.vit.layers.{}.mlp.fc2"),
    ),
    "separate projections": (
        lambda: CifarViT(2, width=24, heads=3, classes=3, size=16),
        16,
        blocks("blocks.{}.attention.output", "blocks.{}.linear2"),
    ),
}
EXPORTED = ("timm's ViT", "timm's Swin", "timm's ConvNeXt", "Hugging Face's ViT", "separate projections")


def made(name):
    """A model with weights that matter: scales of 1e-6 and zeros would hide what a block computes."""
    build, size, _ = MODELS[name]
    torch.manual_seed(0)
    model = build().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model, torch.randn(2, 3, size, size)


def odd(width):
    """Every second one, and the last: neighbours do not lie side by side."""
    return tuple(sorted({*range(0, width, 2), width - 1} - {0} or {0}))


@pytest.mark.parametrize("name", MODELS)
def test_heads_and_neurons_of_a_library_obey_every_law(name, tmp_path):
    model, x = made(name)
    readers = MODELS[name][2]
    if name == "Hugging Face's ViT" and not hasattr(model.net.vit, "layers"):  # before its fifth version
        layer = "net.vit.encoder.layer.{}."
        readers = blocks(layer + "attention.output.dense", layer + "output.dense")
    tried = with_cuts_tried(model, find_groups(model, x), x)
    groups = [group for group in tried if group.scope == "interior"]
    assert {group.consumers[-1]: group.width if group.unit == "head" else 0 for group in groups} == readers

    whole = plan_for(model, tried, [GroupPlan(g.name, g.width, tuple(range(g.width)), "") for g in groups])
    with torch.no_grad():
        assert torch.equal(apply_layout(model, whole.layout)(x), model(x))

    plan = plan_for(model, tried, [GroupPlan(g.name, g.width, odd(g.width), "") for g in groups])
    small = apply_layout(model, plan.layout)
    assert macs(small, x[:1]) < 0.8 * macs(model, x[:1])
    masked, _ = made(name)
    with torch.no_grad():
        before = masked(x)
        for group in groups:
            weight = masked.get_submodule(group.consumers[-1]).weight
            size = weight.shape[1] // group.width
            gone = [unit for unit in range(group.width) if unit not in odd(group.width)]
            weight[:, [unit * size + place for unit in gone for place in range(size)]] = 0
        wanted, found = masked(x), small(x)
    assert (wanted - before).abs().max() > 0.01 * before.abs().max()  # the oracle tells a cut from none
    assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))

    again = plan_from_document(json.loads(json.dumps(plan_to_document(plan))))
    save(tmp_path / "saved", small, plan)
    loaded = load(tmp_path / "saved", lambda: MODELS[name][0]().eval())
    with torch.no_grad():
        assert torch.equal(again.apply(model)(x), found)
        assert torch.equal(loaded(x), found)
    if name in EXPORTED:
        check = export_onnx(loaded, tmp_path / "small.onnx", x)  # compares the numbers
        assert check.max_difference <= 1e-4 * check.max_output
