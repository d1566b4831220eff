"""torch's own attention, written out in layers: the same numbers, and heads that can be cut."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import cosep
from cosep.config import preset, replace_settings
from cosep.errors import ModelError
from cosep.groups import find_groups
from cosep.layers import written_out
from cosep.layers.attention import PlainAttention
from cosep.measurement import macs
from cosep.plugins import import_extra
from cosep.records import GroupPlan
from cosep.storage.artifacts import save
from cosep.storage.export import export_onnx
from cosep.surgery import apply_layout, cut_all_checked, plan_for, with_cuts_tried

WIDTH, HEADS = 12, 3
later = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)


def attention(**settings):
    torch.manual_seed(0)
    made = nn.MultiheadAttention(WIDTH, HEADS, **settings).eval()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def tiny_vit():
    vision = import_extra("torchvision", ModelError)
    torch.manual_seed(0)
    model = vision.models.VisionTransformer(16, 4, 2, 4, 32, 48, num_classes=3)
    nn.init.normal_(model.heads.head.weight)
    return model.eval()


class Classified(nn.Module):
    """A layer on tokens and a classifier behind it."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


class Attending(nn.Module):
    """Attention by its plainest call, which computes the mean of the heads' weights too."""

    def __init__(self, used=False):
        super().__init__()
        self.attention, self.used = attention(batch_first=True), used

    def forward(self, x):
        found, weights = self.attention(x, x, x)
        return found + weights.sum(-1, keepdim=True) if self.used else found


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("mask", [None, later, torch.randn(12, 5, 5)])
@pytest.mark.parametrize("settings", [{}, {"bias": False}, {"kdim": 6, "vdim": 4}])
def test_written_out_it_computes_the_same(settings, mask, weights):
    former = attention(batch_first=True, **settings)
    plain = written_out(former)
    assert isinstance(plain, PlainAttention)
    query, key, value = (torch.randn(4, 5, settings.get(name, WIDTH)) for name in ("", "kdim", "vdim"))
    for average in (True, False):
        told = {"attn_mask": mask, "need_weights": weights, "average_attn_weights": average}
        assert_close(plain(query, key, value, **told), former(query, key, value, **told))


def test_padding_and_tokens_in_front_are_understood():
    former = attention()
    x = torch.randn(5, 4, WIDTH)
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[1, 3:] = True
    told = {"key_padding_mask": padding, "attn_mask": later}
    assert_close(written_out(former)(x, x, x, **told), former(x, x, x, **told))
    one = x[:, 0]
    assert_close(written_out(former)(one, one, one), former(one, one, one))


def test_the_given_model_stays_as_it_is_and_one_without_attention_is_itself():
    model = Attending()
    before = dict(model.named_parameters())
    plain = written_out(model)
    assert isinstance(plain.attention, PlainAttention)
    assert type(model.attention) is nn.MultiheadAttention
    assert dict(model.named_parameters()) == before
    linear = nn.Linear(2, 2)
    assert written_out(linear) is linear


def test_attention_with_parts_that_the_plain_one_lacks_is_left():
    for former in (attention(add_bias_kv=True), attention(add_zero_attn=True)):
        assert written_out(former) is former


def test_weights_that_nobody_reads_keep_no_head():
    x = torch.randn(2, 5, WIDTH)
    free, read = (find_groups(Classified(Attending(used)), x)[0] for used in (False, True))
    assert (free.unit, free.width, free.scope) == ("head", HEADS, "interior")
    assert read.scope is None
    assert "taken across its heads" in read.why_not


def test_layers_of_torch_lose_heads_and_neurons():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
    model, x = Classified(encoder).eval(), torch.randn(2, 5, WIDTH)
    groups = [group for group in find_groups(model, x) if group.scope == "interior"]
    assert {group.unit for group in groups} == {"head", "channel"}
    cut, _, checks = cut_all_checked(model, [(group, (0, 2)) for group in groups], x)
    assert all(check.equal for check in checks.values())
    with torch.no_grad():  # what torch would do in one operation of its own
        first = model.layer.self_attn.out_proj.weight
        first[:, WIDTH // HEADS : 2 * (WIDTH // HEADS)] = 0
        gone = [i for i in range(16) if i not in (0, 2)]
        model.layer.linear2.weight[:, gone] = 0
        assert_close(cut(x), model(x))


def test_a_vision_transformer_of_torchvision_goes_through_the_chain_and_loads_from_its_constructor(tmp_path):
    model = tiny_vit()
    torch.manual_seed(1)
    y = torch.arange(48) % 3
    x = torch.randn(3, 3, 16, 16)[y] + 0.3 * torch.randn(48, 3, 16, 16)
    settings = {
        "device": {"accelerator": "cpu"},
        "observe": {"images": 48},
        "recover": {"schedule": "none"},
        "limits": {"max_macs": "60%"},
    }
    config = replace_settings(preset(), settings)
    result = cosep.prune(model, [(x, y)], config=config, run=tmp_path / "run")
    heads = {each.group: len(each.kept) for each in result.plan.groups if "self_attention" in each.group}
    assert len(heads) == 2
    assert result.report.change.macs <= 0.6
    assert macs(result.model, x) == result.report.after.macs
    assert min(heads.values()) < 4
    loaded = cosep.load(tmp_path / "run", tiny_vit)
    assert torch.equal(loaded(x), result.model(x))
    assert result.plan.apply(model)(x).shape == loaded(x).shape
    towards = {each.layer.rpartition(".")[2]: each.towards for each in result.report.rebuild.layers}
    assert (towards["query"], towards["out_proj"]) == ("output", "sum")
    export_onnx(loaded, tmp_path / "small.onnx", x[:2])  # compares what both compute


def tiny_swin(version):
    vision = import_extra("torchvision", ModelError).models.swin_transformer
    blocks = {
        1: (vision.SwinTransformerBlock, vision.PatchMerging),
        2: (vision.SwinTransformerBlockV2, vision.PatchMergingV2),
    }
    block, merging = blocks[version]
    torch.manual_seed(0)
    settings = {"num_classes": 3, "block": block, "downsample_layer": merging}
    model = vision.SwinTransformer([4, 4], 12, [2, 2], [3, 6], [4, 4], **settings).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("version", [1, 2])
def test_attention_in_windows_written_out_changes_no_bit_and_loses_heads(version, tmp_path):
    model = tiny_swin(version)
    plain = written_out(model)
    assert set(plain.state_dict()) == set(model.state_dict())
    for size in (32, (40, 24), 16):  # shifted; with windows that are padded; one window in the second stage
        x = torch.randn(2, 3, *(size if isinstance(size, tuple) else (size, size)))
        assert torch.equal(plain(x), model(x))
    x = torch.randn(2, 3, 32, 32)
    heads = [group for group in find_groups(model, x) if group.unit == "head"]
    assert [(group.width, group.scope) for group in heads] == [(3, "interior")] * 2 + [(6, "interior")] * 2
    chosen = [(group, tuple(range(0, group.width, 2))) for group in heads]
    cut, _, checks = cut_all_checked(model, chosen, x)
    assert all(check.equal for check in checks.values()), checks
    # In torchvision's own network, which has all heads: zeros where their values would be read.
    with torch.no_grad():
        for group in heads:
            gone = [4 * head + i for head in range(1, group.width, 2) for i in range(4)]
            model.get_submodule(group.consumers[-1]).weight[:, gone] = 0
        assert_close(cut(x), model(x), rtol=1e-4, atol=1e-5)
    if version == 1:
        export_onnx(cut, tmp_path / "small.onnx", x[:1])


def timm_reduced(name):
    """A Transformer of timm's with fewer keys than queries, small, and with weights that matter."""
    try:
        timm = import_extra("timm", ModelError)
    except ModelError as missing:
        pytest.skip(str(missing))
    kind, settings = REDUCED[name]
    torch.manual_seed(0)
    model = timm.create_model(kind, pretrained=False, num_classes=3, mlp_ratios=(2, 2, 2, 2), **settings).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


STAGES = {"embed_dims": (8, 16), "depths": (1, 1), "num_heads": (2, 4), "sr_ratios": (2, 1)}
TWINS = {"img_size": 64, "embed_dims": (8, 16, 24, 32), "num_heads": (2, 2, 3, 4)}
REDUCED = {
    "PVT": ("pvt_v2_b0", STAGES),
    "PVT, linear": ("pvt_v2_b2_li", STAGES),  # pools before it reduces
    "Twins": ("twins_pcpvt_small", TWINS | {"depths": (1, 1, 1, 1)}),
    "Twins, windows": ("twins_svt_small", TWINS | {"depths": (2, 2, 2, 2), "wss": (5, 5, 5, 5)}),  # padded ones
}


@pytest.mark.parametrize("name", REDUCED)
def test_attention_of_timms_with_fewer_keys_than_queries_computes_the_same_and_loses_heads(name, tmp_path):
    model, x = timm_reduced(name), torch.randn(2, 3, 64, 64)
    plain = written_out(model)
    assert set(plain.state_dict()) == set(model.state_dict())
    # Windows have attention of five axes in timm and of four here, which torch computes by different kernels.
    rounding = 1e-5 if "windows" in name else 0
    for images in (x, torch.randn(1, 3, 32, 40)) if name.startswith("PVT") else (x,):
        assert_close(plain(images), model(images), rtol=rounding, atol=rounding)
    groups = with_cuts_tried(model, find_groups(model, x), x)
    assert [group.name for group in groups if group.scope is None] == ["head"]  # the classifier
    heads = [group for group in groups if group.unit == "head"]
    assert {group.width for group in heads} == set(REDUCED[name][1]["num_heads"])
    assert len(heads) == sum(REDUCED[name][1]["depths"])
    plan = plan_for(model, groups, [GroupPlan(g.name, g.width, tuple(range(1, g.width)), "") for g in heads])
    cut = apply_layout(model, plan.layout)
    save(tmp_path / "saved", cut, plan)
    assert torch.equal(cosep.load(tmp_path / "saved", lambda: timm_reduced(name))(x), cut(x))
    if name in ("PVT", "Twins, windows"):
        export_onnx(cut, tmp_path / "small.onnx", x[:1])  # compares what both compute
    # In timm's own network, which has all heads: zeros where the values of each first one would be read.
    with torch.no_grad():
        before = model(x)
        for group in heads:
            weight = model.get_submodule(group.consumers[-1]).weight
            weight[:, : weight.shape[1] // group.width] = 0
        assert (model(x) - before).abs().max() > 0.01 * before.abs().max()
        assert_close(cut(x), model(x), rtol=1e-4, atol=1e-4)
    everything = [(group, tuple(range(0, group.width, 2))) for group in groups if group.scope is not None]
    assert all(check.equal for check in cut_all_checked(timm_reduced(name), everything, x)[2].values())


def test_windows_are_observed_image_by_image():
    from cosep.observation import observe

    model, y = written_out(tiny_swin(1)), torch.arange(8) % 2
    x = torch.randn(8, 3, 32, 32)
    name = "features.1.0.attn.qkv"
    found = observe(model, [(x, y)], [name])[name]
    caught = []
    model.get_submodule(name).register_forward_hook(lambda *args: caught.append(args[2]))
    with torch.no_grad():
        each = [model(image) is not None and caught.pop().mean((0, 1)) for image in x.split(1)]
    expected = torch.stack([torch.stack(each)[y == label].double().mean(0) for label in range(2)])
    assert_close(found.mean, expected, rtol=1e-4, atol=1e-5)
