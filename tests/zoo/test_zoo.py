import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cosep.errors import ModelError
from cosep.zoo import input_shape, load_model, model_names, twin
from cosep.zoo.vit import Attention

# Published counts: He et al. (2016) give 0.27, 0.46, 0.66, 0.85 and 1.7 million for the CIFAR ResNets, Huang et al.
# (2017) 1.0 million for DenseNet-40; torchvision's documentation has 25,557,032 and 3,504,872 for the ImageNet models.
MILLIONS = {
    "resnet20": 0.27,
    "resnet32": 0.46,
    "resnet44": 0.66,
    "resnet56": 0.85,
    "resnet110": 1.73,
    "resnet20_b": 0.27,
    "resnet110_b": 1.73,
    "densenet40": 1.02,
    "vgg16": 14.73,
    "vgg19": 20.04,
    "mobilenetv2": 2.24,
    "resnet50": 25.557032,
    "resnet50_v1": 25.557032,
    "mobilenetv2_imagenet": 3.504872,
}


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def small_input(name):
    """The model's own input, but never larger than 64 pixels: the ImageNet models take any size."""
    channels, *size = input_shape(name)
    return torch.randn(2, channels, *(min(s, 64) for s in size))


@pytest.mark.parametrize("name", MILLIONS)
def test_parameters_are_as_many_as_published(name):
    assert parameters(load_model(name)) / 1e6 == pytest.approx(
        MILLIONS[name], abs=0.005 if MILLIONS[name] < 25 else 1e-9
    )


@pytest.mark.parametrize(("name", "millions"), [("resnet20", 40.6), ("resnet56", 125.5)])
def test_macs_are_as_many_as_published(name, millions):
    model = load_model(name).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, *input_shape(name)))
    assert counter.get_total_flops() / 2e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("name", model_names())
def test_every_model_gives_one_logit_a_class_and_trains(name):
    model = load_model(name, classes=7).train()
    inputs = small_input(name)
    logits = model(inputs)
    assert logits.shape == (2, 7)
    logits.logsumexp(1).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", model_names())
def test_no_module_changes_its_input_in_place(name):
    model = load_model(name).eval()
    changed = []

    def check(module, before, _):
        if before[0]._version != versions[module]:
            changed.append(module)

    versions = {}
    for module in model.modules():
        module.register_forward_pre_hook(lambda m, x: versions.__setitem__(m, x[0]._version))
        module.register_forward_hook(check)
    with torch.no_grad():
        model(small_input(name))
    assert versions
    assert not changed


def test_cifar_resnet_has_the_names_of_the_public_weights():
    names = set(load_model("resnet20").state_dict())
    assert {"conv1.weight", "bn1.running_mean", "layer3.2.conv2.weight", "layer2.0.bn2.bias", "linear.bias"} <= names
    assert not any("shortcut" in n or "downsample" in n for n in names)


def test_option_a_shortcut_takes_every_second_pixel_between_zero_channels():
    block = load_model("resnet20").layer2[0].eval()
    nn.init.zeros_(block.bn2.weight)  # the residual branch is silent: only the shortcut is left
    x = torch.rand(1, 16, 8, 8)
    out = block(x)
    assert out.shape == (1, 32, 4, 4)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


def test_shortcuts_with_a_convolution_have_the_names_of_torchvision():
    state = load_model("resnet32_b", classes=100).state_dict()
    found = {name: tuple(tensor.shape) for name, tensor in state.items() if "downsample" in name or "fc" in name}
    counted = {name: () for name in found if name.endswith("num_batches_tracked")}
    assert found == counted | {
        "layer2.0.downsample.0.weight": (32, 16, 1, 1),
        **{f"layer2.0.downsample.1.{part}": (32,) for part in ("weight", "bias", "running_mean", "running_var")},
        "layer3.0.downsample.0.weight": (64, 32, 1, 1),
        **{f"layer3.0.downsample.1.{part}": (64,) for part in ("weight", "bias", "running_mean", "running_var")},
        "fc.weight": (100, 64),
        "fc.bias": (100,),
    }
    assert len(counted) == 2
    assert not any(name.startswith("linear") for name in state)


def test_the_first_variant_of_resnet50_has_its_strides_in_the_first_convolutions():
    """The weights fit both; torchvision's network with its strides moved is the oracle."""
    model, reference = load_model("resnet50_v1").eval(), load_model("torchvision:resnet50").eval()
    model.load_state_dict(reference.state_dict())
    for stage in (reference.layer2, reference.layer3, reference.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(x), reference(x))
        other = load_model("resnet50").eval()
        other.load_state_dict(model.state_dict())
        assert not torch.allclose(model(x), other(x))


@pytest.mark.parametrize("spec", ["resnet50", "resnet50_v1", "torchvision:resnet50", "timm:resnet50"])
def test_the_same_file_fits_two_resnet50_that_compute_something_else_and_each_names_the_other(spec):
    library = spec.partition(":")[0] if ":" in spec else "torch"
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    model, other = load_model(spec).eval(), load_model(twin(spec)).eval()
    assert {name: t.shape for name, t in model.state_dict().items()} == {
        name: t.shape for name, t in other.state_dict().items()
    }
    other.load_state_dict(model.state_dict())
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert not torch.allclose(model(x), other(x))


@pytest.mark.parametrize("side", [16, 20, 24, 28])
@pytest.mark.parametrize("name", ["vgg16", "mobilenetv2", "densenet40", "vit6", "resnet20_b"])
def test_cifar_models_take_the_smaller_images_that_a_fast_training_begins_with(name, side):
    assert load_model(name).eval()(torch.randn(1, 3, side, side)).shape == (1, 10)


def test_the_attention_of_the_transformer_is_torchs_own_with_the_same_weights():
    attention = Attention(12, 3)
    reference = nn.MultiheadAttention(12, 3, batch_first=True)
    parts = (attention.query, attention.key, attention.value)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([layer.weight for layer in parts]))
        reference.in_proj_bias.copy_(torch.cat([layer.bias for layer in parts]))
        reference.out_proj.load_state_dict(attention.output.state_dict())
        x = torch.randn(2, 5, 12)
        torch.testing.assert_close(attention(x), reference(x, x, x)[0])


# As torchvision publishes them (a few of each kind; the counts of entries are the whole).
TORCHVISION = {
    "resnet50": (
        320,
        {
            "conv1.weight": (64, 3, 7, 7),
            "bn1.num_batches_tracked": (),
            "layer1.0.downsample.0.weight": (256, 64, 1, 1),
            "layer1.0.downsample.1.running_var": (256,),
            "layer2.3.conv2.weight": (128, 128, 3, 3),
            "layer4.2.bn3.bias": (2048,),
            "fc.weight": (1000, 2048),
            "fc.bias": (1000,),
        },
    ),
    "mobilenetv2_imagenet": (
        314,
        {
            "features.0.0.weight": (32, 3, 3, 3),
            "features.0.1.running_mean": (32,),
            "features.1.conv.0.0.weight": (32, 1, 3, 3),
            "features.1.conv.1.weight": (16, 32, 1, 1),
            "features.2.conv.1.0.weight": (96, 1, 3, 3),
            "features.17.conv.3.bias": (320,),
            "features.18.0.weight": (1280, 320, 1, 1),
            "classifier.1.weight": (1000, 1280),
        },
    ),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_imagenet_models_have_the_names_and_shapes_of_torchvision(name):
    count, published = TORCHVISION[name]
    state = load_model(name).state_dict()
    assert len(state) == count
    assert {k: tuple(state[k].shape) for k in published} == published


@pytest.mark.parametrize(("ours", "theirs"), [("resnet50", "resnet50"), ("mobilenetv2_imagenet", "mobilenet_v2")])
def test_imagenet_models_compute_what_torchvision_computes_with_the_same_weights(ours, theirs):
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    model, reference = load_model(ours).eval(), load_model(f"torchvision:{theirs}").eval()
    model.load_state_dict(reference.state_dict())
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(x), reference(x))


def test_seed_decides_fresh_weights():
    torch.manual_seed(3)
    first = load_model("digits_cnn").state_dict()
    torch.manual_seed(3)
    second = load_model("digits_cnn").state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_unknown_name_is_met_with_a_suggestion():
    with pytest.raises(ModelError, match=r"unknown model 'resnet65'; did you mean resnet56"):
        load_model("resnet65")
    with pytest.raises(ModelError, match="did you mean resnet56"):
        input_shape("resnet65")


def test_a_name_like_no_other_is_met_with_the_list():
    with pytest.raises(
        ModelError, match=r"known are digits_cnn, .*torchvision:NAME, timm:NAME and path/to/file\.py:factory"
    ):
        load_model("xyz")


def test_classes_must_be_positive():
    with pytest.raises(ModelError, match="classes is 0"):
        load_model("resnet20", classes=0)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_missing_library_names_the_extra(library, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModelError, match=rf'pip install "cosep\[{library}\]"'):
        load_model(f"{library}:resnet18")


FACTORY = """
from helper import Net

def net(num_classes=4):
    return Net(num_classes)

net.input_shape = (1, 2, 2)

def fixed():
    return Net(3)

def nothing():
    return None

def broken():
    raise RuntimeError("no luck")
"""


@pytest.fixture
def user_file(tmp_path):
    (tmp_path / "helper.py").write_text(
        "from torch import nn\ndef Net(n):\n    return nn.Sequential(nn.Flatten(), nn.Linear(4, n))\n"
    )
    (tmp_path / "my_nets.py").write_text(FACTORY)
    yield tmp_path / "my_nets.py"
    sys.modules.pop("helper", None)


def test_factory_in_a_file_is_called_with_the_classes_it_takes(user_file):
    assert load_model(f"{user_file}:net")(torch.zeros(1, 1, 2, 2)).shape == (1, 4)
    assert load_model(f"{user_file}:net", classes=6)(torch.zeros(1, 1, 2, 2)).shape == (1, 6)
    assert load_model(f"{user_file}:fixed", classes=6)(torch.zeros(1, 1, 2, 2)).shape == (1, 3)


def test_factory_says_its_input_shape(user_file):
    assert input_shape(f"{user_file}:net") == (1, 2, 2)
    with pytest.raises(ModelError, match=r"write `fixed\.input_shape = "):
        input_shape(f"{user_file}:fixed")


def test_loading_a_factory_leaves_the_import_path_as_it_was(user_file):
    before = list(sys.path)
    load_model(f"{user_file}:net")
    with pytest.raises(ModelError):
        load_model(f"{user_file}:broken")
    assert sys.path == before


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("nothing", "returned a NoneType; it must return an nn.Module"),
        ("broken", "failed: RuntimeError: no luck"),
        ("absent", "has no function 'absent'; it has net, fixed, nothing, broken"),
    ],
)
def test_factory_that_does_not_serve_is_told(user_file, factory, message):
    with pytest.raises(ModelError, match=message):
        load_model(f"{user_file}:{factory}")


def test_factory_file_that_is_missing_or_broken_is_told(tmp_path):
    with pytest.raises(ModelError, match=r"none\.py does not exist"):
        load_model(f"{tmp_path}/none.py:net")
    (tmp_path / "bad.py").write_text("def net(:\n")
    with pytest.raises(ModelError, match=r"bad\.py could not be run: SyntaxError"):
        load_model(f"{tmp_path}/bad.py:net")
