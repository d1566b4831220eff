"""Data that are not the plain case: each is handled with the right result, or refused with the way out."""

import gc
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import cosep
from cosep.errors import CalibrationError, ConfigError, DataError, ModelError, RecoveryError, RunError
from tests.odd.small import CLASSES, Net, batches, images, kept, prune, same, same_weights, settings, trained


def started():
    """Callbacks and the list of stages that they hear of."""
    stages = []
    return cosep.Callbacks(on_stage=lambda group, stage: stages.append(stage)), stages


def refused_before_any_work(error, match, *args, **options):
    callbacks, stages = started()
    with pytest.raises(error, match=match):
        prune(Net(), *args, callbacks=callbacks, **options)
    assert not stages


def refused_before_any_cut(error, match, loader, **options):
    callbacks, stages = started()
    with pytest.raises(error, match=match):
        prune(Net(), loader, callbacks=callbacks, **options)
    assert "cut" not in stages


# --- classes -------------------------------------------------------------------------------------------------------


def unbalanced():
    """1,000 images each of two classes and one pair of the third, which comes last."""
    x, _ = images(2002, seed=3)
    return x, torch.cat([torch.arange(2000) % 2, torch.tensor([2, 2])])


def test_a_class_a_thousand_times_rarer_has_exact_statistics_of_its_own():
    x, y = unbalanced()
    loader = list(zip(x.split(300), y.split(300), strict=True))
    model = Net()
    moments = cosep.observe(model, loader, ["a"])["a"]
    with torch.no_grad():
        values = model.a(x).mean((2, 3)).double().numpy()
    for label in range(CLASSES):
        of_class = values[y.numpy() == label]
        np.testing.assert_allclose(moments.mean[label], of_class.mean(0), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(moments.variance[label], of_class.var(0), rtol=1e-4)
    assert len(kept(prune(model, loader, config=settings(observe={"images": 0})), "a")) == 4


def test_a_rare_class_beyond_the_images_that_are_looked_at_is_left_out_and_named():
    x, y = unbalanced()
    result = prune(Net(), [(x, y)], config=settings(observe={"images": 600}))
    assert any("left out of the class pairs: 2" in note for note in result.report.groups[0].notes)
    alone = prune(Net(), [(x[:600], y[:600])], config=settings(observe={"images": 0}))
    assert kept(result, "a") == kept(alone, "a")


@pytest.mark.parametrize("count", [0, 1])
def test_a_class_that_is_missing_or_has_one_image_is_left_out_and_named(count):
    x, y = images(60)
    stay = (y != 1) | (torch.arange(60) == 1) * bool(count)
    result = prune(Net(), [(x[stay], y[stay])])
    note = "1 class with fewer than 2 calibration images left out of the class pairs: 1"
    assert all(note in entry.notes for entry in result.report.groups)


def test_images_of_one_class_or_one_of_each_are_refused():
    x, y = images(60)
    refused_before_any_cut(CalibrationError, "one class only", [(x[y == 0], y[y == 0])])
    match = r"class 0 has 1, class 1 has 1, class 2 has 1; a variance needs at least 2.*observe.images; 0: all"
    refused_before_any_cut(CalibrationError, match, [(x[:3], torch.tensor([0, 1, 2]))])


# --- batches of other sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 20, 59])
def test_uneven_batches_give_the_same_statistics_and_an_exact_accuracy(size):
    x, y = images(60)
    evaluate = batches(size, seed=8)
    result = prune(Net(), batches(size), evaluate, config=settings(rebuild={"reestimate_batchnorm": False}))
    assert kept(result, "a") == kept(prune(Net(), [(x, y)]), "a")
    test_x, test_y = images(60, seed=8)
    right = (result.model(test_x).argmax(1) == test_y).double().mean()
    assert result.report.after.accuracy == pytest.approx(float(right))


def test_a_single_image_at_the_end_can_be_trained_on_where_batchnorm_has_places_to_count():
    result = prune(Net(), batches(count=61), config=trained())
    assert result.report.recovery.updates == 4


class Pooled(Net):
    """BatchNorm of one number an image: a batch of one has no variance."""

    def __init__(self):
        super().__init__()
        self.last = nn.BatchNorm1d(6)

    def forward(self, x):
        return self.f(self.last(F.relu(self.b(F.relu(self.bn(self.a(x))))).mean((2, 3))))


def test_a_single_image_at_the_end_that_batchnorm_cannot_train_on_is_told_and_without_it_it_is_another_run(tmp_path):
    calibration, settings_ = batches(), trained()
    with pytest.raises(RecoveryError, match=r"a batch of one image cannot be trained on.*drop_last=True"):
        prune(Pooled(), calibration, train=batches(count=61), config=settings_, run=tmp_path / "run")
    with pytest.raises(RunError, match=r"its train data were others \(4 batches, 3 here\)\. Choose another run folder"):
        prune(Pooled(), calibration, train=batches(count=60), config=settings_, run=tmp_path / "run")
    result = prune(Pooled(), calibration, train=batches(count=60), config=settings_, run=tmp_path / "other")
    assert result.report.recovery.updates == 3


def test_a_single_batch_is_enough_if_the_share_says_so():
    x, y = images(60)
    result = prune(Net(), [(x, y)], config=trained())
    assert result.report.recovery.updates == 1
    with pytest.raises(ConfigError, match=r"recover.share is 0.25, which of 1 training batches gives no full batch"):
        prune(Net(), [(x, y)], config=trained(recover={"share": 0.25}))


@pytest.mark.parametrize("name", ["calibration", "train", "holdout", "evaluate"])
def test_an_empty_loader_is_refused_by_name(name):
    loaders = {"calibration": batches(), name: []}
    with pytest.raises((CalibrationError, DataError), match=f"{name}.* gave no batch"):
        cosep.prune(Net(), config=settings(), **loaders)


def test_an_empty_first_batch_is_refused():
    x, y = images(60)
    refused_before_any_work(
        CalibrationError, "first batch of the calibration loader is empty", [(x[:0], y[:0]), (x, y)]
    )


# --- types of inputs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64, torch.int64, torch.float16])
def test_inputs_of_another_type_than_the_weights_are_refused_with_the_conversion(dtype):
    loader = [(x.to(dtype), y) for x, y in batches()]
    match = rf"They are {dtype} and the weights torch.float32: convert them.*x.float\(\)"
    refused_before_any_work(ModelError, match, loader)


@pytest.mark.parametrize("name", ["train", "holdout", "evaluate"])
def test_inputs_of_another_type_in_a_later_stages_loader_are_refused_at_the_start(name):
    match = rf"the model fails on the first batch of {name}.*They are torch.float64"
    refused_before_any_work(ModelError, match, **{name: [(x.double(), y) for x, y in batches()]})


class FromBytes(Net):
    def forward(self, x):
        return super().forward(x.float() / 255)


def test_a_model_that_takes_bytes_is_pruned_on_bytes():
    bytes_ = [((x * 40 + 128).clamp(0, 255).byte(), y) for x, y in batches()]
    odd = prune(FromBytes(), bytes_, config=trained())
    usual = prune(Net(), [(x.float() / 255, y) for x, y in bytes_], config=trained())
    assert kept(odd, "a") == kept(usual, "a")
    assert same(odd.model, usual.model.float(), tolerance=1e9)  # shapes
    with torch.no_grad():
        torch.testing.assert_close(odd.model(bytes_[0][0]), usual.model(bytes_[0][0].float() / 255))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("batch", [0, 2])
def test_pixels_that_are_not_finite_are_named_by_their_image(value, batch):
    loader = batches()
    loader[batch] = (loader[batch][0].clone(), loader[batch][1])
    loader[batch][0][3, 0, 2, 2] = value
    match = rf"layer 'a', channel 0, is (nan|inf|-inf) for image {20 * batch + 3} .*Look for bad inputs"
    refused_before_any_cut(CalibrationError, match, loader)


def test_pixels_that_are_not_finite_in_training_end_it_with_the_last_good_weights():
    bad = batches()
    bad[1] = (bad[1][0] * torch.nan, bad[1][1])
    result = prune(Net(), train=bad, config=trained())
    assert result.report.recovery.outcome.startswith("stopped: the loss of update 2 was nan; the weights of")
    assert all(bool(p.isfinite().all()) for p in result.model.parameters())


def test_images_with_pixels_that_are_not_finite_count_as_wrong():
    x, y = images(60, seed=8)
    evaluate = [(torch.cat([x, x * torch.nan]), torch.cat([y, y]))]
    result = prune(Net(), batches(), evaluate)
    right = (result.model(x).argmax(1) == y).double().mean()
    assert result.report.after.accuracy == pytest.approx(float(right) / 2)


# --- forms of batches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "found"),
    [
        (lambda x, y: {"pixel_values": x, "labels": y}, "dict with the keys 'pixel_values', 'labels'"),
        (lambda x, y: ((x, x), y), r"tuple of 2 \(tuple, Tensor\)"),
        (lambda x, y: (x, ["cat"] * len(y)), r"tuple of 2 \(Tensor, list\)"),
    ],
)
@pytest.mark.parametrize("name", ["calibration", "train", "evaluate"])
def test_batches_of_another_form_are_refused_with_what_they_are(form, found, name):
    odd = [form(x, y) for x, y in batches()]
    match = f"first batch of .*{name}.* is a {found}; a pair of tensors.*collate_fn"
    loaders = {"calibration": batches(), name: odd}
    with pytest.raises(DataError, match=match):
        cosep.prune(Net(), config=settings(), **loaders)


@pytest.mark.parametrize(
    ("form", "found"),
    [
        (
            lambda x, y: (x, y, torch.arange(len(y))),
            r"tuple of 3 \(Tensor, Tensor, Tensor\); a pair of tensors.*collate_fn",
        ),
        (lambda x, y: (x,), "inputs without labels"),
        (lambda x, y: x, "inputs without labels"),
    ],
)
@pytest.mark.parametrize("name", ["evaluate", "holdout"])
def test_an_accuracy_needs_labels(form, found, name):
    odd = [form(x, y) for x, y in batches()]
    with pytest.raises(DataError, match=f"first batch of {name} .*{found}"):
        cosep.prune(Net(), batches(), config=settings(), **{name: odd})


def test_the_collate_function_that_the_refusal_names_is_a_way_out():
    x, y = images(60)
    rows = [{"pixel_values": a, "labels": int(b)} for a, b in zip(x, y, strict=True)]

    def pairs(some):
        return torch.stack([row["pixel_values"] for row in some]), torch.tensor([row["labels"] for row in some])

    odd = prune(Net(), list(DataLoader(rows, batch_size=20, collate_fn=pairs)))
    assert same_weights(odd.model, prune(Net()).model)


@pytest.mark.parametrize("convert", [lambda y: y.numpy(), lambda y: y.tolist(), lambda y: y.int(), lambda y: y.byte()])
def test_labels_may_be_arrays_lists_or_short_integers(convert):
    loader = [(x, convert(y)) for x, y in batches()]
    odd = prune(Net(), loader, loader[:1], config=trained())
    assert same_weights(odd.model, prune(Net(), config=trained()).model)


# --- labels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda y: y + 1, r"a label is 3, but 3 classes.*renumber the labels"),
        (lambda y: y - 1, r"a label is -1; class numbers start at 0"),
        (lambda y: y.float(), r"labels are torch.float32; they must be integer class numbers.*labels.long\(\)"),
        (lambda y: y.unsqueeze(1), r"labels have the shape \(20, 1\).*labels.reshape\(-1\)"),
        (lambda y: F.one_hot(y, CLASSES).float(), r"labels have the shape \(20, 3\).*labels.argmax\(1\)"),
        (lambda y: F.one_hot(y, CLASSES) + 1, r"an image of several classes \(multi-label\)"),
        (lambda y: y[:-1], r"19 labels came with 20 images"),
    ],
)
def test_calibration_labels_that_are_no_class_numbers_are_refused_before_any_cut(change, match):
    refused_before_any_cut(CalibrationError, match, [(x, change(y)) for x, y in batches()])


@pytest.mark.parametrize("name", ["train", "holdout", "evaluate"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda y: y + 1, r"label 3, but the model has 3 outputs"),
        (lambda y: y - 1, r"label -1, but the model has 3 outputs.*marked as unlabelled"),
        (lambda y: y.float(), r"are torch.float32 of shape \(20,\) for 20 images; needed are class numbers"),
        (lambda y: y.unsqueeze(1), r"of shape \(20, 1\) for 20 images.*labels.reshape\(-1\)"),
        (lambda y: y > 0, r"are torch.bool of shape"),
    ],
)
def test_labels_of_later_stages_are_looked_at_before_any_work(name, change, match):
    odd = [(x, change(y)) for x, y in batches()]
    refused_before_any_work(DataError, f"first batch of {name} .*{match}", **{name: odd})


def test_a_recovery_towards_probabilities_is_one_towards_labels_if_they_say_the_same():
    soft = [(x, F.one_hot(y, CLASSES).float()) for x, y in batches()]
    odd = prune(Net(), train=soft, config=trained(recover={"distill": 0.0}))
    usual = prune(Net(), train=batches(), config=trained(recover={"distill": 0.0}))
    assert same(odd.model, usual.model)


def test_mixed_labels_are_trained_towards_as_the_mixture_of_losses():
    # One update without momentum or decay of rates: the gradient of a mixture is the mixture of gradients.
    once = trained(recover={"distill": 0.0, "features": 0.0, "clip": 0.0, "weight_decay": 0.0, "warmup": 0.0})
    x, y = images(60)
    other = (y + 1) % CLASSES
    ends = [prune(Net(), train=[(x, target)], config=once).model.f.bias.detach() for target in (y, other)]
    mixed = 0.3 * F.one_hot(y, CLASSES).float() + 0.7 * F.one_hot(other, CLASSES).float()
    found = prune(Net(), train=[(x, mixed)], config=once).model.f.bias.detach()
    torch.testing.assert_close(found, 0.3 * ends[0] + 0.7 * ends[1])


@pytest.mark.parametrize("labels", [[1.0, 1.0, 0.0], [2.0, -1.0, 0.0]])
def test_several_labels_an_image_are_not_taken_for_probabilities(labels):
    odd = [(x, torch.tensor([labels] * len(y))) for x, y in batches()]
    refused_before_any_work(DataError, r"no probabilities.*\(multi-label\) is not supported", train=odd)


def test_soft_labels_are_refused_where_an_accuracy_is_counted():
    soft = [(x, F.one_hot(y, CLASSES).float()) for x, y in batches()]
    refused_before_any_work(DataError, r"labels of the first batch of evaluate.*labels.argmax\(1\)", evaluate=soft)


def test_a_bad_label_in_the_middle_of_training_stops_the_run_which_then_goes_on(tmp_path):
    bad = batches()
    bad[2] = (bad[2][0], bad[2][1] - 100)  # behind the batches by which data are known again
    with pytest.raises(DataError, match=r"a batch of the loader for recovery has the label -100"):
        prune(Net(), train=bad, config=trained(), run=tmp_path / "run")
    resumed = prune(Net(), train=batches(), config=trained(), run=tmp_path / "run")
    assert same_weights(resumed.model, prune(Net(), train=batches(), config=trained()).model)


# --- loaders -------------------------------------------------------------------------------------------------------


class Stream(IterableDataset):
    """Images one by one, and nobody knows how many."""

    def __iter__(self):
        return iter(zip(*images(60), strict=True))


def test_an_iterable_data_set_without_length_is_counted_and_gives_what_a_list_gives():
    loader = DataLoader(Stream(), batch_size=20)
    odd = prune(Net(), loader, batches(seed=8), width=None, config=trained())
    usual = prune(Net(), batches(), batches(seed=8), width=None, config=trained())
    assert odd.report.recovery.updates == usual.report.recovery.updates > 0
    assert same_weights(odd.model, usual.model)


def test_an_endless_loader_with_a_length_is_read_no_further_than_that():
    class Endless:
        def __len__(self):
            return 3

        def __iter__(self):
            while True:
                yield from batches()

    odd = prune(Net(), train=Endless(), config=trained())
    assert same_weights(odd.model, prune(Net(), train=batches(), config=trained()).model)


def _generator():
    yield from batches()


@pytest.mark.parametrize("name", ["calibration", "train", "holdout", "evaluate"])
@pytest.mark.parametrize("make", [_generator, lambda: iter(batches()), lambda: map(tuple, batches())])
def test_what_is_used_up_after_one_pass_is_refused_by_name(name, make):
    loaders = {"calibration": batches(), name: make()}
    with pytest.raises(DataError, match=rf"{name} is a \w+, which is used up after one pass.*Give a DataLoader"):
        cosep.prune(Net(), config=settings(), **loaders)


def test_a_loader_that_is_its_own_iterator_but_starts_anew_loses_no_batch():
    class Restarting:
        def __iter__(self):
            self.rest = iter(batches(seed=8))
            return self

        def __next__(self):
            return next(self.rest)

        def __len__(self):
            return 3

    result = prune(Net(), batches(), Restarting())
    x, y = images(60, seed=8)
    assert result.report.after.accuracy == pytest.approx(float((result.model(x).argmax(1) == y).double().mean()))


@pytest.mark.parametrize(
    ("loader", "match"),
    [
        (TensorDataset(*images(60)), r"calibration is a data set \(TensorDataset\).*Give DataLoader\(calibration"),
        (images(60)[0], r"calibration is a Tensor; batches of \(inputs, labels\) are needed"),
        (5, r"calibration is a int; batches"),
        (None, r"calibration is a NoneType; batches"),
    ],
)
def test_what_is_no_loader_is_refused(loader, match):
    with pytest.raises(DataError, match=match):
        cosep.prune(Net(), loader, config=settings())


class Faulty:
    """Batches; once, after so many have been given in all, an error of the user's own instead."""

    def __init__(self, after):
        self.left = after
        self.error = KeyError("the tape broke")

    def __len__(self):
        return 3

    def __iter__(self):
        for batch in batches():
            self.left -= 1
            if self.left == 0:
                raise self.error
            yield batch


def per_layer(run=None, **loaders):
    config = trained(recover={"schedule": "per-layer", "group_epochs": 3.0})
    parts = {"calibration": batches(), "train": batches(), **loaders}
    return cosep.prune(Net(), config=config, widths={"a": 4, "b": 4}, run=run, **parts)


@pytest.fixture(scope="module")
def undisturbed():
    return per_layer().model


@pytest.mark.parametrize("part", ["calibration", "train"])
@pytest.mark.parametrize("after", [1, 4, 9, 13])
def test_an_error_in_a_loader_comes_through_and_the_run_goes_on_to_the_same_end(part, after, tmp_path, undisturbed):
    faulty = Faulty(after)
    with pytest.raises(KeyError, match="the tape broke") as caught:
        per_layer(tmp_path, **{part: faulty})
    assert caught.value is faulty.error
    assert same_weights(per_layer(tmp_path, **{part: faulty}).model, undisturbed)


class Deadly(Dataset):
    """Images whose reader dies, as if the system had killed it, at the beginning of a pass, once a file is there."""

    def __init__(self, sign):
        self.sign = sign
        self.x, self.y = images(60)

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index == 0 and os.path.exists(self.sign):
            os.remove(self.sign)
            os._exit(9)
        return self.x[index], self.y[index]


def test_a_worker_that_dies_is_told_by_torch_without_waiting_and_the_run_goes_on(tmp_path):
    sign = tmp_path / "sign"
    loader = DataLoader(Deadly(str(sign)), batch_size=20, num_workers=1)
    stages = []

    def tell(group, stage):
        if stage == "rebuild" and "rebuild" not in stages:
            sign.touch()
        stages.append(stage)

    def run():
        callbacks = cosep.Callbacks(on_stage=tell)
        return cosep.prune(
            Net(), loader, config=trained(), widths={"a": 4, "b": 6}, run=tmp_path / "run", callbacks=callbacks
        )

    said = ""
    try:
        run()
    except RuntimeError as error:  # not pytest.raises, which would keep the dead worker's loader alive
        said = str(error)
    gc.collect()
    assert "exited unexpectedly" in said
    assert stages[-1] == "rebuild"
    again = DataLoader(Deadly(str(tmp_path / "never")), batch_size=20, num_workers=1)
    undisturbed = cosep.prune(Net(), again, config=trained(), widths={"a": 4, "b": 6})
    assert same_weights(run().model, undisturbed.model)
