"""Small networks, small data and quick settings for what is odd about one or the other."""

import warnings

import torch
from torch import nn
from torch.nn import functional as F

import cosep
from cosep.config import preset, replace_settings
from cosep.groups import groups_in_scope

CLASSES = 3


def images(count=60, seed=0, classes=CLASSES):
    """Noise around a picture of each class, and the class numbers in turn: (count, 3, 8, 8) and (count,)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    pictures = torch.randn(classes, 3, 8, 8, generator=torch.Generator().manual_seed(99))
    return pictures[labels] + torch.randn(count, 3, 8, 8, generator=generator), labels


def batches(size=20, count=60, seed=0):
    """The images in batches: a list, which can be read again and again."""
    x, y = images(count, seed)
    return list(zip(x.split(size), y.split(size), strict=True))


def settings(**changes):
    """Settings for a run of a fraction of a second; without recovery unless asked for."""
    quick = {
        "device": {"accelerator": "cpu"},
        "order": "one-by-one",
        "select": {"criterion": "cosep", "width_rule": "knee"},
        "recover": {"schedule": "none"},
    }
    for stage, values in changes.items():
        quick[stage] = {**quick.get(stage, {}), **values} if isinstance(values, dict) else values
    return replace_settings(preset(), quick)


def plain_cut(**changes):
    """Settings under which the result is the cut alone: nothing is compensated, re-estimated or trained."""
    rebuild = {"solve": False, "reestimate_batchnorm": False, **changes.pop("rebuild", {})}
    return settings(rebuild=rebuild, **changes)


def trained(**changes):
    """Settings with a short recovery."""
    recover = {"schedule": "final", "share": 1.0, "group_epochs": 1.0, **changes.pop("recover", {})}
    return settings(recover=recover, **changes)


class Net(nn.Module):
    """Two convolutions, a BatchNorm and a classifier: what every odd network here is made of."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.a = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.b = nn.Conv2d(8, 6, 3, bias=False)
        self.f = nn.Linear(6, CLASSES)
        with torch.no_grad():
            for tensor in (self.bn.weight, self.bn.bias, self.bn.running_mean, self.bn.running_var):
                tensor += 0.3 * torch.rand(8)
        self.eval()

    def forward(self, x):
        return self.f(F.relu(self.b(F.relu(self.bn(self.a(x))))).mean((2, 3)))


def prune(model, loader=None, evaluate=None, *, width=4, group="a", config=None, **options):
    """A pruned model: the named group cut to a width and all others whole; width None: as the knees say."""
    config = config or settings()
    given = batches() if loader is None else loader
    widths = {**whole(model, given, config), group: width} if width else None
    return cosep.prune(model, given, evaluate, config=config, widths=widths, **options)


def whole(model, loader, config):
    """The width of every group that the settings let us prune; none where the groups cannot be found."""
    inner = getattr(model, "module", getattr(model, "_orig_mod", model))
    try:
        found = cosep.find_groups(inner, loader[0][0][:1])
    except Exception:
        return {}
    return {group.name: group.width for group in groups_in_scope(found, config.surgery.scope)}


def quietly(act, *args, **options):
    """What an act gives, whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return act(*args, **options)


def kept(result, group):
    return next(plan.kept for plan in result.plan.groups if plan.group == group)


def masked(model, result, consumers):
    """The uncut model with zeros in the weights that read removed channels: {consumer: group}, by definition."""
    twin = quietly(copied, model)
    with torch.no_grad():
        for consumer, group in consumers.items():
            layer = twin.get_submodule(consumer)
            stay = set(kept(result, group))
            gone = [c for c in range(layer.weight.shape[1]) if c not in stay]
            layer.weight[:, gone] = 0
    return twin.eval()


def copied(model):
    import copy

    return copy.deepcopy(model)


def same(a, b, x=None, tolerance=1e-5):
    """Whether two models compute the same."""
    x = images(12, seed=5)[0] if x is None else x
    with torch.no_grad():
        first, second = a.eval()(x), b.eval()(x)
    return first.shape == second.shape and bool((first - second).abs().max() <= tolerance * second.abs().max())


def same_weights(a, b):
    """Whether two models hold the same bits under the same names."""
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
