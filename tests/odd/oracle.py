"""An uncut model with zeros, put by hooks, where removed channels are read: what a cut model must compute."""

import copy
import re
import warnings
from collections import defaultdict
from collections.abc import Mapping
from types import MethodType

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

import cosep
from cosep.config import preset, replace_settings
from cosep.errors import CosepError
from cosep.groups import groups_in_scope
from cosep.surgery import with_cuts_tried

LAST_AXIS = (nn.Linear, nn.LayerNorm, nn.GRU, nn.LSTMCell, nn.MultiheadAttention)
TOLERANCE = 1e-6  # in double precision, relative to the largest value of an image
SINGLE = 2e-3  # where a model insists on single precision


def reader_of(text):
    """A reader, as written beside the strangers: its name, the channels it reads, where they begin, and if reversed."""
    name, low, high, offset, turned = re.fullmatch(r"([\w.]+)(?::(\d+):(\d+))?(?:\+(\d+))?(!?)", text).groups()
    return name, None if high is None else range(int(low), int(high)), None if offset is None else int(offset), turned


def zeroing(text, width, kept):
    """What a module reads, with zeros for removed channels."""
    _, some, offset, turned = reader_of(text)

    def mask(x, axis):
        x = x.clone()
        each = x.shape[axis] // width if some is None and offset is None else 1
        places = list(some or range(width))
        for place, channel in enumerate(reversed(places) if turned else places):
            if channel not in kept:
                x.narrow(axis, (offset or 0) + place * each, each).zero_()
        return x

    return mask


def reading(masks, inner=None):
    """A forward that passes its inputs through masks, on the way to another one or to the module's own."""

    def forward(self, *args, **kwargs):
        axis = args[0].ndim - 1 if isinstance(self, LAST_AXIS) else 1
        for mask in masks:
            args = [mask(x, axis) if isinstance(x, torch.Tensor) else x for x in args]
        return (inner or type(self).forward)(self, *args, **kwargs)

    return forward


def over_kept(kept):
    """A forward of a norm over channels that sees the kept ones only, and gives zeros for the others."""

    def forward(self, x):
        axis, stay = x.ndim - 1 if isinstance(self, nn.LayerNorm) else 1, torch.tensor(sorted(kept))
        seen, weight, bias = x.index_select(axis, stay), self.weight[stay], self.bias[stay]
        if isinstance(self, nn.LayerNorm):
            made = F.layer_norm(seen, (len(stay),), weight, bias, self.eps)
        else:
            made = F.group_norm(seen, self.num_groups, weight, bias, self.eps)
        return torch.zeros_like(x).index_copy_(axis, stay, made)

    return forward


def standardised_over_kept(kept):
    """A forward of a convolution that standardises the weights of the kept channels only."""

    def forward(self, x):
        stay = sorted(kept)
        weight = self.weight[:, stay]
        weight = weight - weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x[:, stay], weight, self.bias, padding=self.padding)

    return forward


def attending(kept):
    """A forward of nn.MultiheadAttention, written out, in which removed heads give nothing."""

    def forward(self, query, key, value, **kwargs):
        parts = zip((query, key, value), self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True)
        q, k, v = (F.linear(x, w, b).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x, w, b in parts)
        made = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
        for head in range(self.num_heads):
            if head not in kept:
                made[:, head] = 0
        return F.linear(made.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias), None

    return forward


SPECIAL = {"~": over_kept, "^": standardised_over_kept, "@": attending}


def masked(model, reads, kept, widths):
    """A copy of the model that computes as if the channels that are not kept carried nothing."""
    twin = copy.deepcopy(model)
    masks, forwards = defaultdict(list), {}
    for group, stay in kept.items():
        for text in reads[group.replace(".", "_")] if len(stay) < widths[group] else ():
            if text[0] in SPECIAL:
                forwards[text[1:]] = SPECIAL[text[0]](set(stay))
            else:
                masks[reader_of(text)[0]].append(zeroing(text, widths[group], set(stay)))
    forwards.update((name, reading(some, forwards.get(name))) for name, some in masks.items())
    for name, forward in forwards.items():
        module = twin.get_submodule(name)
        module.forward = MethodType(forward, module)
        module.register_forward_hook(nothing)  # torch's fast paths pass modules by that have no hooks
    return twin


def nothing(module, args, output):
    """A hook that changes nothing."""


def inputs(shape, seed=1):
    """Images of several scales and kinds, five at a time."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, *shape, generator=generator)
    return [x, 0.1 * x, 10 * x, x.abs(), x + 3]


def outputs(model, x, training, seed=0):
    """All tensors that a copy of a model returns in one mode, dropout off, in double precision where it can."""
    run = copy.deepcopy(model).train(training)
    for module in run.modules():
        if isinstance(module, _DropoutNd):
            module.eval()
    with torch.no_grad():
        try:
            torch.manual_seed(seed)
            return flat(copy.deepcopy(run).double()(x.double())), TOLERANCE
        except RuntimeError:
            torch.manual_seed(seed)
            return flat(run(x)), SINGLE


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for part in value for tensor in flat(part)] if isinstance(value, (tuple, list)) else []


def apart(expected, found):
    """The largest difference of two lists of tensors, each image relative to its largest value."""
    if len(expected) != len(found) or any(a.shape != b.shape for a, b in zip(expected, found, strict=True)):
        return float("inf")
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        rows = len(a) if a.ndim > 1 else 1
        a, b = a.double().reshape(rows, -1), b.double().reshape(rows, -1)
        worst = max(worst, float(((a - b).abs().amax(1) / a.abs().amax(1).clamp(min=1e-12)).max()))
    return worst


def settings(**changes):
    quick = {"device": {"accelerator": "cpu"}, "surgery": {"scope": "all"}, "recover": {"schedule": "none"}}
    return replace_settings(preset(), {**quick, **changes})


def batches(shape, classes=3):
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(16, *shape, generator=generator), torch.arange(16) % classes) for _ in range(3)]


def built(stranger, seed=0):
    """The model with nothing in it that is one or zero for all channels alike."""
    torch.manual_seed(seed)
    model = stranger.build()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
                continue
            vector = tensor.is_floating_point() and not name.endswith(("mask", "original0", "original1"))
            if vector and sum(size > 1 for size in tensor.shape) == 1:
                tensor += 0.3 * torch.rand(tensor.shape, generator=generator)
    return model.eval()


def examine(stranger, seed=0):
    """What becomes of a stranger's model when half of every group goes.

    "right" or "wrong" beside the masked copy on every input in both modes; "left whole", or "refused" by an error of
    ours. Any other error comes through.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, result = halved(stranger, seed)
    except CosepError as error:
        return {"outcome": "refused", "why": str(error)}
    kept = {plan.group: plan.kept for plan in result.plan.groups}
    widths = {plan.group: plan.width for plan in result.plan.groups}
    row = {"cut": sum(len(kept[name]) < width for name, width in widths.items())}
    if not row["cut"]:
        return {**row, "outcome": "left whole"}
    twin = masked(model, stranger.reads, kept, widths)
    found = [compared(twin, result.model, x, training) for x in inputs(stranger.shape) for training in (False, True)]
    far = [value for value in found if value is not None]
    right = max(far) <= 1
    return {**row, "outcome": "right" if right else "wrong", "compared": len(far), "random": len(found) - len(far)}


def halved(stranger, seed):
    """A stranger's model and what is left of it: half of every group, cut and nothing else."""
    model, loader = built(stranger, seed), batches(stranger.shape)
    image = loader[0][0][:1]
    groups = groups_in_scope(with_cuts_tried(model, cosep.find_groups(model, image), image), "all")
    widths = {group.name: group.width // 2 + group.width // 2 % group.blocks for group in groups}
    plain = settings(rebuild={"solve": False, "reestimate_batchnorm": False}, select={"criterion": "random"}, seed=seed)
    return model, cosep.prune(model, loader, config=plain, widths=widths)


def compared(twin, model, x, training):
    """How far a model is from the masked copy, in tolerances; None where chance decides what that computes."""
    expected, _ = outputs(twin, x, training)
    if apart(expected, outputs(twin, x, training, seed=1)[0]) > 0:
        return None
    found, tolerance = outputs(model, x, training)
    return apart(expected, found) / tolerance


def chained(stranger, seed=0):
    """What becomes of a stranger's model in the default chain, with a search, the rebuild and a little training."""
    quick = {"schedule": "final", "share": 1.0, "epochs": 1.0}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, loader = built(stranger, seed), batches(stranger.shape)
            result = cosep.prune(model, loader, loader, config=settings(recover=quick, seed=seed))
    except CosepError as error:
        return {"outcome": "refused", "why": str(error)}
    found = [tensor for training in (False, True) for tensor in outputs(result.model, loader[0][0], training)[0]]
    if not all(bool(tensor.isfinite().all()) for tensor in found):
        return {"outcome": "wrong"}
    cut = sum(len(plan.kept) < plan.width for plan in result.plan.groups)
    return {"outcome": "right" if cut else "left whole", "cut": cut}
