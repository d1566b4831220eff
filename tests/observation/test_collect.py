"""Observing a model: one pass over a loader, its laws and its errors."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from cosep import config as settings
from cosep.errors import CalibrationError, DataError
from cosep.observation import class_histograms, class_moments, merge_all, observe, observe_histograms
from cosep.observation.moments import RunningMoments

LAYERS = ["0", "3", "6"]


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Conv2d(4, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)),
    ).eval()


def data(images=30, classes=3):
    torch.manual_seed(1)
    labels = torch.arange(images) % classes
    return torch.randn(images, 1, 8, 8) + labels[:, None, None, None], labels


def batches(size=7, **kwargs):
    return DataLoader(TensorDataset(*data(**kwargs)), batch_size=size)


def activations(model, inputs):
    """The pooled outputs of the three layers, written out."""
    first = model[0](inputs)
    second = model[3](model[2](model[1](first)))
    return {"0": first.mean((2, 3)), "3": second.mean((2, 3)), "6": model[6](model[5](model[4](second)))}


def state_of(model):
    hooks = [len(h) for m in model.modules() for h in (m._forward_hooks, m._forward_pre_hooks)]
    return hooks, [m.training for m in model.modules()], torch.is_grad_enabled()


def test_the_moments_are_those_of_the_activations():
    model, (inputs, labels) = network(), data()
    found = observe(model, batches(), LAYERS)
    assert list(found) == LAYERS
    for name, values in activations(model, inputs).items():
        expected = class_moments(values.detach().double(), labels)
        assert torch.equal(found[name].count, expected.count)
        assert_close(found[name].mean, expected.mean, rtol=1e-5, atol=1e-6)
        assert_close(found[name].variance, expected.variance, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", [1, 4, 30])
def test_the_batch_size_does_not_matter(size):
    model = network().double()
    inputs, labels = data()
    loader = DataLoader(TensorDataset(inputs.double(), labels), batch_size=size)
    found, whole = observe(model, loader, LAYERS), observe(model, [(inputs.double(), labels)], LAYERS)
    for name in LAYERS:
        assert_close(found[name].mean, whole[name].mean, rtol=1e-12, atol=1e-12)
        assert_close(found[name].scatter, whole[name].scatter, rtol=1e-10, atol=1e-12)


def test_two_processes_merged_equal_one():
    model = network().double()
    inputs, labels = data()
    inputs = inputs.double()
    whole = observe(model, [(inputs, labels)], LAYERS)
    # The second share lacks the last class and has a single sample of another.
    first, second = torch.arange(30) < 26, torch.arange(30) >= 26
    second &= labels < 2
    shares = [observe(model, [(inputs[s], labels[s])], LAYERS, partial=True) for s in (first | (labels == 2), second)]
    for name in LAYERS:
        merged = merge_all(share[name] for share in shares)
        assert torch.equal(merged.count, whole[name].count)
        assert_close(merged.mean, whole[name].mean, rtol=1e-12, atol=1e-12)
        assert_close(merged.scatter, whole[name].scatter, rtol=1e-12, atol=1e-12)


def test_layers_observed_together_or_alone_are_the_same():
    together = observe(network(), batches(), LAYERS)
    for name in LAYERS:
        assert_close(together[name].scatter, observe(network(), batches(), [name])[name].scatter, rtol=1e-12, atol=0)


def test_the_activation_tap_observes_behind_norm_and_activation():
    model, (inputs, labels) = network(), data()
    found = observe(model, batches(), ["0"], config=settings.ObserveConfig(tap="activation"))["0"]
    expected = class_moments(model[:3](inputs).mean((2, 3)).detach(), labels)
    assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tap", ["output", "activation"])
def test_a_pass_that_ends_behind_the_layers_gives_the_same_and_runs_the_rest_once(tap):
    model, config, ran = network(), settings.ObserveConfig(tap=tap), []
    model[6].register_forward_hook(lambda *_: ran.append("head"))
    before = state_of(model)
    whole = observe(model, batches(), ["0"], config=config)["0"]
    assert len(ran) == 5
    ran.clear()
    ended = observe(model, batches(), ["0"], config=config, whole=False)["0"]
    assert ran == ["head"]  # the first batch goes to the end
    assert torch.equal(ended.mean, whole.mean)
    assert torch.equal(ended.scatter, whole.scatter)
    assert torch.equal(ended.count, whole.count)
    assert state_of(model) == before


def test_a_model_that_catches_errors_does_not_catch_the_end_of_a_pass():
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            try:
                return self.inner(x)
            except Exception:
                return self.inner(x.contiguous())

    whole, ended = (observe(Careful(), batches(), ["inner.0"], whole=w)["inner.0"] for w in (True, False))
    assert torch.equal(ended.scatter, whole.scatter)


def test_the_last_layer_can_be_observed_by_passes_that_end_behind_it():
    whole, ended = (observe(network(), batches(), LAYERS, whole=w) for w in (True, False))
    for name in LAYERS:
        assert torch.equal(ended[name].scatter, whole[name].scatter)


def test_training_flags_statistics_and_gradients_stay_as_found():
    model = network().train()
    model[1].eval()
    model[1].track_running_stats = True
    before, weights = state_of(model), {k: v.clone() for k, v in model.state_dict().items()}
    observe(model, batches(), LAYERS)
    assert state_of(model) == before
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_batch_norm_in_training_mode_is_not_updated():
    model = network().train()
    mean = model[1].running_mean.clone()
    observe(model, batches(), LAYERS)
    assert torch.equal(model[1].running_mean, mean)
    assert model[1].num_batches_tracked == 0


def test_dropout_is_off_while_observing():
    model = nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 2)).train()
    once, again = (observe(model, batches(), ["2"])["2"] for _ in range(2))
    assert torch.equal(once.mean, again.mean)


@pytest.mark.parametrize("break_in", ["labels", "values", "callback"])
def test_everything_is_restored_after_a_failure_while_its_exception_still_lives(break_in):
    model = network().train()
    inputs, labels = data()
    before = state_of(model)
    bad_inputs = inputs.clone()
    bad_inputs[0] = torch.nan

    def callback(images):
        if break_in == "callback":
            raise KeyboardInterrupt

    second = {"labels": (inputs, labels - 1), "values": (bad_inputs, labels), "callback": (inputs, labels)}[break_in]
    with pytest.raises((CalibrationError, KeyboardInterrupt)) as caught:
        observe(model, [(inputs, labels), second], LAYERS, on_batch=callback)
    assert state_of(model) == before
    assert caught.value.__traceback__ is not None


def test_the_state_does_not_grow_with_the_number_of_images():
    state = RunningMoments(5, None, torch.device("cpu"))

    def size():
        return sum(t.numel() * t.element_size() for t in vars(state).values() if isinstance(t, torch.Tensor))

    sizes = set()
    for _ in range(20):
        state.add(torch.randn(50, 5), torch.arange(50) % 3, ["layer"], [5])
        sizes.add(size())
    assert len(sizes) == 1
    assert state.images == 1000


def test_classes_may_appear_late():
    inputs, labels = data()
    order = labels.argsort()
    loader = DataLoader(TensorDataset(inputs[order], labels[order]), batch_size=4)
    assert observe(network(), loader, ["0"])["0"].count.tolist() == [10, 10, 10]


def test_the_pass_ends_after_max_images_and_tells_its_progress():
    seen = []
    found = observe(network(), batches(7), ["0"], max_images=16, on_batch=seen.append)["0"]
    assert seen == [7, 14, 16]
    assert int(found.count.sum()) == 16


def test_labels_may_be_numpy_or_lists():
    inputs, labels = data()
    expected = observe(network(), [(inputs, labels)], ["0"])["0"]
    for given in (labels.numpy(), labels.tolist(), labels.int()):
        assert torch.equal(observe(network(), [[inputs, given]], ["0"])["0"].mean, expected.mean)


def test_dead_and_constant_channels_are_no_error():
    model = network()
    nn.init.zeros_(model[0].weight)
    found = observe(model, batches(), LAYERS)["0"]
    assert_close(found.variance, torch.zeros(3, 4).double(), rtol=0, atol=1e-30)


def test_a_model_without_parameters_can_be_observed():
    assert observe(nn.Sequential(nn.ReLU()), batches(), ["0"])["0"].channels == 1


# --- histograms ----------------------------------------------------------------------------------------------------


def test_histograms_of_the_second_pass_are_those_of_the_activations():
    model, (inputs, labels) = network().double(), data()
    loader = [(inputs[:11].double(), labels[:11]), (inputs[11:].double(), labels[11:])]
    config = settings.ObserveConfig(bins=6)
    moments = observe(model, loader, LAYERS, config=config)
    found = observe_histograms(model, loader, LAYERS, moments, config=config)
    assert list(found) == LAYERS
    for name, values in activations(model, inputs.double()).items():
        expected = class_histograms(values.detach(), labels, bins=6)
        assert found[name].count.shape == (3, values.shape[1], 6)
        # A value on an edge may round to either side, when the batch changes how a convolution sums.
        assert (found[name].count - expected.count).abs().sum() <= 2
        assert_close(found[name].low, expected.low)
        assert_close(found[name].high, expected.high)
        assert torch.equal(found[name].count.sum(2), moments[name].count[:, None].expand(-1, values.shape[1]))


def test_histograms_need_moments_with_ranges_and_data():
    model, loader = network(), batches()
    moments = observe(model, loader, ["0"])
    with pytest.raises(CalibrationError, match="there are no moments for layer '3'"):
        observe_histograms(model, loader, ["0", "3"], moments)
    bare = {"0": type(moments["0"])(moments["0"].count, moments["0"].mean, moments["0"].scatter)}
    with pytest.raises(CalibrationError, match="the moments have no range for layer '0'"):
        observe_histograms(model, loader, ["0"], bare)
    with pytest.raises(CalibrationError, match="no images in the second pass"):
        observe_histograms(model, [], ["0"], moments)
    with pytest.raises(CalibrationError, match="layer '0' had 2 channels and now has 4"):
        observe_histograms(model, loader, ["0"], {"0": moments["0"].of_channels(torch.arange(2))})


# --- bad input -----------------------------------------------------------------------------------------------------

X, Y = data(6)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ([], r"the calibration loader gave no images"),
        ([(X[:0], Y[:0])], r"the calibration loader gave no images"),
        (X, r"the calibration loader is Tensor; it must give batches"),
        (5, r"the calibration loader is int; it must give batches"),
        ([(X, Y.double())], r"labels are torch.float64; they must be integer"),
        ([(X, nn.functional.one_hot(Y))], r"labels have the shape \(6, 3\); they must have \(6,\).*argmax"),
        ([(X, Y[:4])], r"4 labels came with 6 images"),
        ([(X, Y - 1)], r"a label is -1; class numbers start at 0"),
        ([(X[[0, 1, 2]], Y[[0, 1, 2]])], r"class 0 has 1, class 1 has 1, class 2 has 1; a variance needs at least 2"),
        ([(X, torch.zeros(6).long())], r"one class only \(0\)"),
        ([(X, Y), (X / 0, Y)], r"layer '0', channel \d, is (nan|inf|-inf) for image 6 "),
    ],
)
def test_bad_calibration_data_are_named(loader, message):
    with pytest.raises(CalibrationError, match=message):
        observe(network(), loader, LAYERS)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"image": X, "label": Y}, r"batch 0 of the calibration loader is a dict with the keys 'image', 'label'"),
        (X, r"batch 0 of the calibration loader has inputs without labels"),
        ((X, Y, Y), r"is a tuple of 3 \(Tensor, Tensor, Tensor\); a pair of tensors"),
        (([X], Y), r"is a tuple of 2 \(list, Tensor\); a pair of tensors"),
        ((X, ["cat"] * 6), r"is a tuple of 2 \(Tensor, list\); a pair of tensors"),
        ((X[0, 0, 0, 0], Y), r"inputs of batch 0 of the calibration loader are a single number"),
    ],
)
def test_batches_of_another_form_are_named(batch, message):
    with pytest.raises(DataError, match=message):
        observe(network(), [batch], LAYERS)


def test_labels_beyond_the_declared_classes_are_named():
    with pytest.raises(CalibrationError, match="a label is 2, but 2 classes were declared"):
        observe(network(), batches(), LAYERS, classes=2)


def test_declared_classes_that_do_not_appear_have_no_samples():
    moments = observe(network(), batches(), LAYERS, classes=5)
    assert all(found.count[3:].tolist() == [0, 0] for found in moments.values())


def test_the_layer_and_the_channel_of_a_bad_value_are_named():
    model = network()
    with torch.no_grad():
        model[3].bias[5] = torch.inf
    with pytest.raises(CalibrationError, match=r"layer '3', channel 5, is inf for image 0 \(in this batch"):
        observe(model, batches(), ["0", "3"])


def test_an_unknown_layer_is_named_with_the_nearest():
    with pytest.raises(CalibrationError, match="the model has no layer '9'"):
        observe(network(), batches(), ["0", "9"])


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(64, 2), nn.Linear(64, 2)

    def forward(self, x):
        return self.used(x.flatten(1))


@pytest.mark.parametrize("tap", ["output", "activation"])
def test_a_layer_that_never_ran_is_named(tap):
    with pytest.raises(CalibrationError, match=r"layers that never ran in a forward pass: 'idle'"):
        observe(Unused(), batches(), ["used", "idle"], config=settings.ObserveConfig(tap=tap))


@pytest.mark.parametrize("whole", [True, False])
def test_a_layer_that_ran_twice_is_named(whole):
    layer = nn.Linear(64, 64)
    model = nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer)
    with pytest.raises(CalibrationError, match="layer '3' ran twice"):
        observe(model, batches(), ["3"], whole=whole)


def test_a_layer_that_folds_into_the_batch_is_named():
    model = nn.Sequential(nn.Flatten(0, 1), nn.Unflatten(1, (2, 4)), nn.Flatten(0, 1), nn.Flatten(), nn.Linear(32, 3))
    with pytest.raises(CalibrationError, match=r"layer '4' gave 14 rows for a batch of 7"):
        observe(model, batches(), ["4"])


def test_max_images_must_be_positive():
    with pytest.raises(CalibrationError, match="max_images is 0; it must be at least 1"):
        observe(network(), batches(), LAYERS, max_images=0)
