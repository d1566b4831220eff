"""A hundred small models as strangers write them, and what reads each group's channels in them, said by hand.

What is said by hand makes the oracle: the uncut model with zeros put by hooks where removed channels are read, in
either mode. It knows nothing of how cosep finds groups, slices weights or masks.
"""

import math
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

C = 3  # classes
STRANGERS = {}


class Stranger:
    """A model, the shape of its images, and who reads each group.

    "name": the module reads the group's channels as they are, several places each after flattening. "name+8": from the
    eighth of its inputs on. "name:4:8": channels 4 to 7 only. "name!": in reverse. "~name": a norm over channels.
    "^name": a convolution that standardises its weights. "@name": attention, whose channels are heads.
    """

    def __init__(self, build, shape, reads):
        self.build, self.shape, self.reads = build, shape, reads


def stranger(*shape, **reads):
    """Register a class of models; reads: group (with _ for .) = "reader reader+8 reader"."""

    def register(kind):
        STRANGERS[kind.__name__] = Stranger(kind, shape or (3, 8, 8), {k: v.split() for k, v in reads.items()})
        return kind

    return register


class Base(nn.Module):
    """Two convolutions, a BatchNorm and a classifier, which the others change."""

    def __init__(self):
        super().__init__()
        self.a, self.bn, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 3, padding=1)
        self.fc = nn.Linear(6, C)

    def between(self, x):
        return F.relu(self.bn(x))

    def forward(self, x):
        return self.fc(F.relu(self.b(self.between(self.a(x)))).mean((2, 3)))


PLAIN = {"a": "b", "b": "fc"}

# --- the tutorials ------------------------------------------------------------------------------------------------


@stranger(1, 28, 28, conv1="conv2", conv2="fc1", fc1="fc2", fc2="fc3")
class TutorialLeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 4 * 4, 30), nn.Linear(30, 21), nn.Linear(21, C)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


@stranger(1, 12, 12, conv1="conv2", conv2="fc1", fc1="fc2")
class MnistExample(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, 1), nn.Conv2d(8, 12, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(192, 20), nn.Linear(20, C)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = torch.flatten(x, 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


@stranger(features_0="features.4", features_4="classifier.1", classifier_1="classifier.3")
class AlexNetLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(8, 6, 3, padding=1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, C))

    def forward(self, x):
        return self.classifier(self.features(x))


@stranger(12, l1="l2", l2="l3")
class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(12, 16), nn.Linear(16, 10), nn.Linear(10, C)

    def forward(self, x):
        return self.l3(torch.tanh(self.l2(F.gelu(self.l1(x)))))


@stranger(features_conv="features.conv2", features_conv2="head")
class OrderedNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(conv=nn.Conv2d(3, 8, 3), act=nn.ELU(), conv2=nn.Conv2d(8, 6, 3), act2=nn.Sigmoid())
        )
        self.head = nn.Linear(6, C)

    def forward(self, x):
        return self.head(self.features(x).amax((2, 3)))


# --- normalisation ------------------------------------------------------------------------------------------------


@stranger(a="~gn b", b="fc")
class Grouped(Base):
    def __init__(self):
        super().__init__()
        self.gn = nn.GroupNorm(4, 8)

    def between(self, x):
        return F.relu(self.gn(x))


@stranger(a="~gn b", b="fc")
class OneGroup(Grouped):
    def __init__(self):
        super().__init__()
        self.gn = nn.GroupNorm(1, 8)


@stranger(**PLAIN)
class Instance(Base):
    def __init__(self):
        super().__init__()
        self.bn = nn.InstanceNorm2d(8, affine=True)


@stranger(**PLAIN)
class InstanceTracked(Base):
    def __init__(self):
        super().__init__()
        self.bn = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)


@stranger(12, l1="~ln l2", l2="l3")
class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.ln, self.l2, self.l3 = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 10), nn.Linear(10, C)

    def forward(self, x):
        return self.l3(F.relu(self.l2(F.gelu(self.ln(self.l1(x))))))


@stranger(a="~ln b", b="fc")
class ChannelsLastNorm(Base):
    """LayerNorm over channels of an image, as in ConvNeXt."""

    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(8)

    def between(self, x):
        return F.gelu(self.ln(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


@stranger(**PLAIN)
class WholeImageNorm(Base):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm([8, 8, 8])

    def between(self, x):
        return F.relu(self.ln(x))


@stranger(**PLAIN)
class Local(Base):
    def __init__(self):
        super().__init__()
        self.lrn = nn.LocalResponseNorm(3)

    def between(self, x):
        return self.lrn(F.relu(x))


@stranger(**PLAIN)
class UnitLength(Base):
    def between(self, x):
        return F.normalize(F.relu(x), dim=1)


@stranger(**PLAIN)
class RootMeanSquare(Base):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8, 1, 1))

    def between(self, x):
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * self.gain


@stranger(**PLAIN)
class WithoutAffine(Base):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(8, affine=False, momentum=None)


@stranger(**PLAIN)
class Untracked(Base):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(8, track_running_stats=False)


@stranger(**PLAIN)
class NormFirst(Base):
    """BatchNorm before the activation of the next layer, and another one behind a ReLU."""

    def __init__(self):
        super().__init__()
        self.pre = nn.BatchNorm2d(8)

    def between(self, x):
        return self.pre(F.relu(self.bn(x)))


# --- statistics and memories of one's own -------------------------------------------------------------------------


@stranger(**PLAIN)
class OwnRunningMean(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def between(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean((0, 2, 3)), alpha=0.1)
        return F.relu(x - self.mean[None, :, None, None])


@stranger(**PLAIN)
class OwnBatchNorm(Base):
    def __init__(self):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.rand(1, 8, 1, 1)), nn.Parameter(torch.rand(1, 8, 1, 1))
        self.register_buffer("moving_mean", torch.zeros(1, 8, 1, 1))
        self.register_buffer("moving_var", torch.ones(1, 8, 1, 1))

    def between(self, x):
        if self.training:
            mean = x.mean((0, 2, 3), keepdim=True)
            var = ((x - mean) ** 2).mean((0, 2, 3), keepdim=True)
            self.moving_mean = (0.9 * self.moving_mean + 0.1 * mean).detach()
            self.moving_var = (0.9 * self.moving_var + 0.1 * var).detach()
        else:
            mean, var = self.moving_mean, self.moving_var
        return F.relu(self.gamma * (x - mean) / torch.sqrt(var + 1e-5) + self.beta)


@stranger(**PLAIN)
class AverageOfWeights(Base):
    """An EMA copy of a layer's weight, kept in training."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shadow", self.a.weight.detach().clone())

    def forward(self, x):
        if self.training:
            self.shadow.mul_(0.99).add_(self.a.weight.detach(), alpha=0.01)
        return super().forward(x)


@stranger(**PLAIN)
class ClassCentres(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("centres", torch.zeros(C, 6))

    def forward(self, x):
        features = F.relu(self.b(self.between(self.a(x)))).mean((2, 3))
        logits = self.fc(features)
        if self.training:
            with torch.no_grad():
                self.centres.index_add_(0, logits.argmax(1), 0.1 * features)
        return logits


@stranger(**PLAIN)
class LastFeatures(Base):
    """Remembers what it saw last, as an attribute."""

    def between(self, x):
        self.seen = F.relu(self.bn(x)).detach()
        return F.relu(self.bn(x))


@stranger(**PLAIN)
class Counter(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.steps += 1
        return super().forward(x)


@stranger(**PLAIN)
class NotSaved(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)

    def between(self, x):
        return F.relu(x * self.scale.view(1, -1, 1, 1))


@stranger(**PLAIN)
class PropertyOfBuffer(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("raw", torch.linspace(-1, 1, 8))

    @property
    def gate(self):
        return torch.sigmoid(self.raw).reshape(1, -1, 1, 1)

    def between(self, x):
        return F.relu(x) * self.gate


# --- heads, tuples, dictionaries ----------------------------------------------------------------------------------


@stranger(a="b extra", b="fc")
class AuxiliaryHead(Base):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(8, C)

    def forward(self, x):
        x = self.between(self.a(x))
        logits = self.fc(F.relu(self.b(x)).mean((2, 3)))
        return (logits, self.extra(x.mean((2, 3)))) if self.training else logits


@stranger(a="b aux.0", b="fc", aux_0="aux.3")
class AuxiliaryBranch(Base):
    def __init__(self):
        super().__init__()
        pool = nn.AdaptiveAvgPool2d(2)
        self.aux = nn.Sequential(nn.Conv2d(8, 5, 1), pool, nn.Flatten(), nn.Linear(20, C))

    def forward(self, x):
        x = self.between(self.a(x))
        logits = self.fc(F.relu(self.b(x)).mean((2, 3)))
        return {"out": logits, "aux": self.aux(x)} if self.training else logits


Output = namedtuple("Output", "logits hidden")


@stranger(**PLAIN)
class NamedOutput(Base):
    def forward(self, x):
        hidden = F.relu(self.b(self.between(self.a(x)))).mean((2, 3))
        return Output(self.fc(hidden), hidden) if self.training else self.fc(hidden)


@stranger(**PLAIN)
class ReturnsDictionary(Base):
    def forward(self, x):
        return {"logits": super().forward(x)}


@stranger(**PLAIN)
class ReturnsObject(Base):
    def forward(self, x):
        return SimpleNamespace(logits=super().forward(x))


@stranger(**PLAIN)
class ReturnsTuple(Base):
    def forward(self, x):
        return super().forward(x), None


@stranger(a="b", b="fc deep")
class TwoHeads(Base):
    """Two heads whose mean is the answer, and an exit that training returns."""

    def __init__(self):
        super().__init__()
        self.deep = nn.Linear(6, C)

    def forward(self, x):
        h = F.relu(self.b(self.between(self.a(x)))).mean((2, 3))
        first, second = self.fc(h), self.deep(h)
        return [first, second] if self.training else (first + second) / 2


@stranger(**PLAIN)
class PenaltyInTraining(Base):
    """Keeps a penalty on its features for the loss to find."""

    def forward(self, x):
        x = self.between(self.a(x))
        self.penalty = x.abs().mean() if self.training else None
        return self.fc(F.relu(self.b(x)).mean((2, 3)))


# --- other dimensions and layers ----------------------------------------------------------------------------------


@stranger(2, 5, 6, 6, a="b", b="fc")
class Video(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.bn, self.b = nn.Conv3d(2, 6, 3, padding=1), nn.BatchNorm3d(6), nn.Conv3d(6, 5, 3)
        self.fc = nn.Linear(5, C)

    def forward(self, x):
        return self.fc(F.relu(self.b(F.relu(self.bn(self.a(x))))).mean((2, 3, 4)))


@stranger(4, 20, a="b", b="fc")
class Signal(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.bn, self.b = nn.Conv1d(4, 8, 5, stride=2), nn.BatchNorm1d(8), nn.Conv1d(8, 6, 3, dilation=2)
        self.fc = nn.Linear(24, C)

    def forward(self, x):
        return self.fc(F.leaky_relu(self.b(F.relu(self.bn(self.a(x))))).flatten(1))


@stranger(a="up", up="b", b="fc")
class Upwards(Base):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 7, 2, stride=2)
        self.b = nn.Conv2d(7, 6, 3, padding=1)

    def between(self, x):
        return F.relu(self.up(F.relu(self.bn(x))))


@stranger(a="b", b="d", d="fc")
class Dilated(Base):
    def __init__(self):
        super().__init__()
        self.d = nn.Conv2d(6, 4, 3, padding=4, dilation=4, padding_mode="reflect")
        self.fc = nn.Linear(4, C)

    def forward(self, x):
        return self.fc(F.silu(self.d(F.relu(self.b(self.between(self.a(x)))))).mean((2, 3)))


@stranger(expand="project", project="fc", stem="expand")
class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.expand = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 12, 1, bias=False)
        self.n1, self.dw, self.n2 = nn.BatchNorm2d(12), nn.Conv2d(12, 12, 3, groups=12, padding=1), nn.BatchNorm2d(12)
        self.project, self.fc = nn.Conv2d(12, 6, 1), nn.Linear(6, C)

    def forward(self, x):
        x = F.relu6(self.n1(self.expand(F.relu(self.stem(x)))))
        return self.fc(self.project(F.relu6(self.n2(self.dw(x)))).mean((2, 3)))


@stranger(stem="b", b="fc")
class DepthMultiplier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.dw = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3, groups=4)
        self.b, self.fc = nn.Conv2d(8, 6, 1), nn.Linear(6, C)

    def forward(self, x):
        return self.fc(F.relu(self.b(F.relu(self.dw(F.relu(self.stem(x)))))).mean((2, 3)))


@stranger(a="g", g="b", b="fc")
class GroupedConvolution(Base):
    def __init__(self):
        super().__init__()
        self.g = nn.Conv2d(8, 8, 3, groups=2, padding=1)

    def between(self, x):
        return F.relu(self.g(F.relu(self.bn(x))))


@stranger(a="b", b="fc", se_0="se.2")
class SqueezeExcite(Base):
    def __init__(self):
        super().__init__()
        self.se = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 8), nn.Sigmoid())

    def between(self, x):
        x = F.relu(self.bn(x))
        return x * self.se(x.mean((2, 3)))[:, :, None, None]


STRANGERS["SqueezeExcite"].reads["a"] = ["b", "se.0"]


@stranger(**PLAIN)
class ChannelAttention1d(Base):
    """ECA: a convolution along the channels."""

    def __init__(self):
        super().__init__()
        self.eca = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def between(self, x):
        x = F.relu(self.bn(x))
        weight = self.eca(x.mean((2, 3)).unsqueeze(1)).transpose(1, 2).unsqueeze(-1)
        return x * torch.sigmoid(weight)


@stranger(a="b", b="fc", gate="")
class SpatialGate(Base):
    """CBAM's gate: the mean and the largest of all channels."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Conv2d(2, 1, 3, padding=1)

    def between(self, x):
        x = F.relu(self.bn(x))
        both = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return x * torch.sigmoid(self.gate(both))


@stranger(**PLAIN)
class Shuffled(Base):
    """PixelShuffle: four channels become one."""

    def __init__(self):
        super().__init__()
        self.shuffle, self.b = nn.PixelShuffle(2), nn.Conv2d(2, 6, 3)

    def between(self, x):
        return self.shuffle(F.relu(self.bn(x)))


@stranger(a="b", b="fc")
class Unshuffled(Base):
    def __init__(self):
        super().__init__()
        self.b = nn.Conv2d(32, 6, 3, padding=1)

    def between(self, x):
        return F.pixel_unshuffle(F.relu(self.bn(x)), 2)


@stranger(**PLAIN)
class ChannelShuffle(Base):
    def __init__(self):
        super().__init__()
        self.b = nn.Conv2d(8, 6, 1, groups=2)

    def between(self, x):
        x = F.relu(self.bn(x))
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


@stranger(**PLAIN)
class ShuffleModule(Base):
    def __init__(self):
        super().__init__()
        self.shuffle = nn.ChannelShuffle(2)

    def between(self, x):
        return F.relu(self.shuffle(self.bn(x)))


@stranger(**PLAIN)
class Maxout(Base):
    def __init__(self):
        super().__init__()
        self.b = nn.Conv2d(4, 6, 3)

    def between(self, x):
        first, second = x.chunk(2, 1)
        return torch.maximum(first, second)


@stranger(**PLAIN)
class Gated(Base):
    def __init__(self):
        super().__init__()
        self.b = nn.Conv2d(4, 6, 3)

    def between(self, x):
        return F.glu(self.bn(x), 1)


@stranger(12, value="out", gate="out")
class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.value, self.gate, self.out = nn.Linear(12, 16), nn.Linear(12, 16), nn.Linear(16, C)

    def forward(self, x):
        return self.out(F.silu(self.gate(x)) * self.value(x))


@stranger(**PLAIN)
class Learned(Base):
    """PReLU with a slope for each channel."""

    def __init__(self):
        super().__init__()
        self.act = nn.PReLU(8)

    def between(self, x):
        return self.act(self.bn(x))


@stranger(**PLAIN)
class Pooled(Base):
    def between(self, x):
        x = F.relu(self.bn(x))
        return F.max_pool2d(x, 2) + F.avg_pool2d(x, 2) + F.adaptive_max_pool2d(x, 4)


@stranger(**PLAIN)
class Resized(Base):
    def between(self, x):
        return F.interpolate(F.pad(F.relu(self.bn(x)), (1, 1, 1, 1)), scale_factor=2.0, mode="bilinear")


@stranger(a="b", b="fc")
class Unfolded(Base):
    """Patches by unfold, then a linear layer on them."""

    def __init__(self):
        super().__init__()
        self.b = nn.Linear(32, 6)

    def forward(self, x):
        patches = F.unfold(self.between(self.a(x)), 2, stride=2).transpose(1, 2)
        return self.fc(F.relu(self.b(patches)).mean(1))


@stranger(**PLAIN)
class Bilinear(Base):
    def __init__(self):
        super().__init__()
        self.bilinear = nn.Bilinear(6, 6, 5)
        self.fc = nn.Linear(5, C)

    def forward(self, x):
        h = F.relu(self.b(self.between(self.a(x)))).mean((2, 3))
        return self.fc(self.bilinear(h, h))


# --- weights that are made ----------------------------------------------------------------------------------------


@stranger(**PLAIN)
class WeightNormed(Base):
    def __init__(self):
        super().__init__()
        parametrizations.weight_norm(self.a)


@stranger(**PLAIN)
class SpectralNormed(Base):
    def __init__(self):
        super().__init__()
        parametrizations.spectral_norm(self.b)


class Positive(nn.Module):
    def forward(self, weight):
        return F.softplus(weight)


@stranger(**PLAIN)
class PositiveWeights(Base):
    def __init__(self):
        super().__init__()
        parametrize.register_parametrization(self.b, "weight", Positive())


class Standardised(nn.Conv2d):
    def forward(self, x):
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        w = w / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


@stranger(a="^b", b="fc")
class StandardisedWeights(Base):
    def __init__(self):
        super().__init__()
        self.b = Standardised(8, 6, 3, padding=1)


@stranger(**PLAIN)
class ByFunction(Base):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(6, 8, 3, 3) / 8)
        del self.b

    def forward(self, x):
        return self.fc(F.relu(F.conv2d(self.between(self.a(x)), self.kernel)).mean((2, 3)))


@stranger(**PLAIN)
class Einsum(Base):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(6, 8) / 3)
        del self.b

    def forward(self, x):
        return self.fc(F.relu(torch.einsum("nchw,oc->nohw", self.between(self.a(x)), self.mix)).mean((2, 3)))


@stranger(**PLAIN)
class MatrixProduct(Base):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(8, 6) / 3)
        del self.b

    def forward(self, x):
        return self.fc(F.relu(self.between(self.a(x)).mean((2, 3)) @ self.mix))


@stranger(a="b", b="fc")
class Dynamic(Base):
    """A kernel for every image, mixed from two."""

    def __init__(self):
        super().__init__()
        self.b2, self.router = nn.Conv2d(8, 6, 3, padding=1), nn.Linear(3, 2)

    def forward(self, x):
        share = torch.softmax(self.router(x.mean((2, 3))), 1)[:, :, None, None]
        h = self.between(self.a(x))
        return self.fc(F.relu(share[:, :1] * self.b(h) + share[:, 1:] * self.b2(h)).mean((2, 3)))


STRANGERS["Dynamic"].reads["a"] = ["b", "b2"]


@stranger(**PLAIN)
class ScaledLayer(Base):
    """LayerScale and a learned bias of its own."""

    def __init__(self):
        super().__init__()
        self.gamma, self.shift = nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8, 1, 1))

    def between(self, x):
        return F.relu(self.gamma.reshape(1, 8, 1, 1) * x + self.shift)


@stranger(**PLAIN)
class Masked(Base):
    """A mask that the stranger has put on the weight."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", (torch.arange(8) % 3 > 0).float())

    def between(self, x):
        return F.relu(self.bn(x)) * self.mask.reshape(-1, 1, 1)


# --- shared, tied, called twice -----------------------------------------------------------------------------------


@stranger(**PLAIN)
class SharedConvolution(Base):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(8, 8, 3, padding=1)

    def between(self, x):
        return F.relu(self.c(F.relu(self.c(x))))


@stranger(a="b", b="fc")
class Siamese(Base):
    """Both halves of the image through the same layers."""

    def forward(self, x):
        left, right = x.chunk(2, 3)
        sides = [F.relu(self.b(self.between(self.a(part)))).mean((2, 3)) for part in (left, right)]
        return self.fc((sides[0] - sides[1]).abs())


@stranger(**PLAIN)
class TiedWeights(Base):
    def __init__(self):
        super().__init__()
        self.b = nn.Conv2d(8, 8, 1)
        self.c = nn.Conv2d(8, 8, 1)
        self.c.weight = self.b.weight
        self.fc = nn.Linear(8, C)

    def forward(self, x):
        return self.fc(F.relu(self.c(F.relu(self.b(self.between(self.a(x)))))).mean((2, 3)))


STRANGERS["TiedWeights"].reads.update({"a": ["b", "c", "fc"], "b": ["c", "fc"], "c": ["fc"]})


@stranger(12, encode="decode")
class TiedDecoder(nn.Module):
    """The decoder is the encoder's weight, turned."""

    def __init__(self):
        super().__init__()
        self.encode, self.fc = nn.Linear(12, 8), nn.Linear(12, C)

    def forward(self, x):
        return self.fc(F.linear(F.relu(self.encode(x)), self.encode.weight.t()))


@stranger(**PLAIN)
class UnusedLayers(Base):
    def __init__(self):
        super().__init__()
        self.never = nn.Conv2d(8, 8, 3)
        self.also = self.a


@stranger(**PLAIN)
class InList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 3)])
        self.heads = nn.ModuleDict({"main": nn.Linear(6, C)})

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.heads["main"](x.mean((2, 3)))


STRANGERS["InList"].reads = {"layers_0": ["layers.2"], "layers_2": ["heads.main"]}


@stranger(**PLAIN)
class ParameterLists(Base):
    def __init__(self):
        super().__init__()
        self.gains = nn.ParameterList([torch.rand(8), torch.rand(8)])

    def between(self, x):
        for gain in self.gains:
            x = F.relu(x * gain[:, None, None])
        return x


# --- branches and sums --------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(width, inner, 3, padding=1), nn.BatchNorm2d(inner)
        self.c2, self.n2 = nn.Conv2d(inner, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.n2(self.c2(F.relu(self.n1(self.c1(x))))))


@stranger(stem="one.c1 two.c1 fc", one_c1="one.c2", two_c1="two.c2")
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.one, self.two, self.fc = nn.Conv2d(3, 8, 3), Block(8, 6), Block(8, 5), nn.Linear(8, C)

    def forward(self, x):
        return self.fc(self.two(self.one(F.relu(self.stem(x)))).mean((2, 3)))


@stranger(stem="inner.c1 outer fc", inner_c1="inner.c2")
class ResidualInResidual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.inner, self.outer = nn.Conv2d(3, 8, 3, padding=1), Block(8, 6), nn.Conv2d(8, 8, 1)
        self.fc = nn.Linear(8, C)

    def forward(self, x):
        x = F.relu(self.stem(x))
        return self.fc((x + 0.2 * self.outer(self.inner(x))).mean((2, 3)))


@stranger(a="b c+3 fc+3", b="c+11 fc+11", c="fc+17")
class DenselyConnected(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 1), nn.Conv2d(17, 5, 1)
        self.fc = nn.Linear(22, C)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(a))
        c = F.relu(self.c(torch.cat([x, a, b], 1)))
        return self.fc(torch.cat([x, a, b, c], dim=1).mean((2, 3)))


@stranger(down1="down2 merge+6", down2="up", up="merge+0", merge="fc")
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 10, 3, padding=1)
        self.up, self.merge = nn.ConvTranspose2d(10, 6, 2, stride=2), nn.Conv2d(14, 7, 3)
        self.fc = nn.Linear(7, C)

    def forward(self, x):
        one = F.relu(self.down1(x))
        two = F.relu(self.down2(F.max_pool2d(one, 2)))
        return self.fc(F.relu(self.merge(torch.cat((F.relu(self.up(two)), one), 1))).mean((2, 3)))


@stranger(b1="fc+0", b3="fc+4", r5="b5", b5="fc+9")
class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.b1, self.b3 = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 5, 3, padding=1)
        self.r5, self.b5, self.fc = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 3, 5, padding=2), nn.Linear(15, C)

    def forward(self, x):
        branches = [self.b1(x), self.b3(x), self.b5(F.relu(self.r5(x))), F.max_pool2d(x, 3, 1, 1)]
        return self.fc(F.relu(torch.cat(branches, 1)).mean((2, 3)))


@stranger(a="left right", left="fc", right="fc+5")
class SplitInTwo(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.left, self.right = nn.Conv2d(3, 8, 3), nn.Conv2d(4, 5, 1), nn.Conv2d(4, 4, 1)
        self.fc = nn.Linear(9, C)

    def forward(self, x):
        one, two = torch.split(F.relu(self.a(x)), 4, dim=1)
        return self.fc(torch.cat([F.relu(self.left(one)), F.relu(self.right(two))], 1).mean((2, 3)))


STRANGERS["SplitInTwo"].reads["a"] = ["left:0:4", "right:4:8"]


@stranger(a="part fc", part="fc")
class CrossStage(nn.Module):
    """Half of the channels go round, as in CSPNet."""

    def __init__(self):
        super().__init__()
        self.a, self.part, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Linear(8, C)

    def forward(self, x):
        x = F.relu(self.a(x))
        return self.fc(torch.cat([x[:, :4], F.relu(self.part(x[:, 4:]))], 1).mean((2, 3)))


STRANGERS["CrossStage"].reads = {"a": ["fc:0:4", "part:4:8"], "part": ["fc+4"]}


@stranger(gate="b", b="fc")
class Highway(Base):
    def __init__(self):
        super().__init__()
        self.gate = nn.Conv2d(3, 8, 1)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        h = gate * F.relu(self.a(x)) + (1 - gate) * 0.5
        return self.fc(F.relu(self.b(h)).mean((2, 3)))


@stranger(stem="a b fc", a="c", b="c")
class TwoPathsAdded(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 1), nn.Conv2d(6, 8, 3, padding=1)
        self.c, self.fc = nn.Conv2d(8, 6, 1), nn.Linear(6, C)

    def forward(self, x):
        x = F.relu(self.stem(x))
        return self.fc((F.relu(self.c(F.relu(self.a(x) + self.b(x)))) * 1.0).mean((2, 3)))


STRANGERS["TwoPathsAdded"].reads = {"stem": ["a", "b"], "a": ["c"], "b": ["c"], "c": ["fc"]}


@stranger(a="b", b="fc")
class Stacked(Base):
    """Branches stacked and averaged."""

    def __init__(self):
        super().__init__()
        self.a2 = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x):
        h = torch.stack([F.relu(self.a(x)), F.relu(self.a2(x))]).mean(0)
        return self.fc(F.relu(self.b(h)).mean((2, 3)))


@stranger(a="b", b="fc")
class PaddedShortcut(Base):
    """A shortcut that is padded with zeros to more channels."""

    def forward(self, x):
        h = F.relu(self.a(x)) + F.pad(x, (0, 0, 0, 0, 0, 5))
        return self.fc(F.relu(self.b(h)).mean((2, 3)))


@stranger(a="b!", b="fc")
class Reversed(Base):
    def between(self, x):
        return F.relu(self.bn(x)).flip(1)


@stranger(**PLAIN)
class Indexed(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.tensor([3, 1, 0, 2, 7, 6, 5, 4]))

    def between(self, x):
        return F.relu(self.bn(x))[:, self.order]


@stranger(**PLAIN)
class Shifted(Base):
    """TSM: some channels come from the neighbour."""

    def between(self, x):
        x = F.relu(self.bn(x))
        out = torch.zeros_like(x)
        out[:, :2, :, 1:], out[:, 2:] = x[:, :2, :, :-1], x[:, 2:]
        return out


@stranger(**PLAIN)
class TopChannels(Base):
    def between(self, x):
        x = F.relu(self.bn(x))
        strong = x.mean((2, 3)).topk(4, dim=1).values[:, -1:, None, None]
        return x * (x.mean((2, 3), keepdim=True) >= strong)


@stranger(**PLAIN)
class SoftmaxOverChannels(Base):
    def between(self, x):
        return x * torch.softmax(x, 1)


@stranger(**PLAIN)
class Covariance(Base):
    """Second-order pooling."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(36, C)

    def forward(self, x):
        h = F.relu(self.b(self.between(self.a(x)))).flatten(2)
        return self.fc((h @ h.transpose(1, 2) / h.shape[2]).flatten(1))


# --- attention and sequences --------------------------------------------------------------------------------------


@stranger(a="q k v", q="", v="out", out="fc")
class OwnAttention(nn.Module):
    """One head, written by hand, over the places of an image."""

    def __init__(self):
        super().__init__()
        self.a, self.q, self.k, self.v = nn.Conv2d(3, 8, 3), nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(8, 10)
        self.out, self.fc = nn.Linear(10, 7), nn.Linear(7, C)

    def forward(self, x):
        x = F.relu(self.a(x)).flatten(2).transpose(1, 2)
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / 6**0.5, -1)
        return self.fc(self.out(weights @ self.v(x)).mean(1))


@stranger(a="", out="fc")
class ManyHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.qkv, self.out, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, C)

    def forward(self, x):
        x = F.relu(self.a(x)).flatten(2).transpose(1, 2)
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, -1)
        return self.fc((x + self.out(y)).mean(1))


STRANGERS["ManyHeads"].reads = {"a": ["qkv", "fc"], "qkv": ["out"]}


@stranger(a="mha", mha_query="@mha", mha_out_proj="fc")
class LibraryAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.mha, self.fc = nn.Conv2d(3, 8, 3), nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, C)

    def forward(self, x):
        x = F.relu(self.a(x)).flatten(2).transpose(1, 2)
        return self.fc(self.mha(x, x, x, need_weights=False)[0].mean(1))


@stranger(
    a="enc.self_attn ~enc.norm1 enc.linear1 ~enc.norm2 fc",
    enc_self_attn_query="@enc.self_attn",
    enc_linear1="enc.linear2",
)
class LibraryEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.enc = nn.Conv2d(3, 8, 3), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(8, C)

    def forward(self, x):
        return self.fc(self.enc(F.relu(self.a(x)).flatten(2).transpose(1, 2)).mean(1))


@stranger(a="b", b="gru")
class Recurrent(Base):
    def __init__(self):
        super().__init__()
        self.gru, self.fc = nn.GRU(6, 5, batch_first=True), nn.Linear(5, C)

    def forward(self, x):
        x = F.relu(self.b(self.between(self.a(x)))).flatten(2).transpose(1, 2)
        return self.fc(self.gru(x)[0][:, -1])


@stranger(a="b", b="cell")
class OneCell(Base):
    def __init__(self):
        super().__init__()
        self.cell, self.fc = nn.LSTMCell(6, 5), nn.Linear(5, C)

    def forward(self, x):
        x = F.relu(self.b(self.between(self.a(x)))).mean(3)
        state = None
        for t in range(x.shape[2]):
            state = self.cell(x[:, :, t], state)
        return self.fc(state[0])


@stranger(patch="", f1="f2", token1="token2")
class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.n1, self.n2 = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8), nn.LayerNorm(8)
        self.token1, self.token2 = nn.Linear(16, 10), nn.Linear(10, 16)
        self.f1, self.f2, self.fc = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, C)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.token2(F.gelu(self.token1(self.n1(x).transpose(1, 2)))).transpose(1, 2)
        x = x + self.f2(F.gelu(self.f1(self.n2(x))))
        return self.fc(x.mean(1))


STRANGERS["Mixer"].reads["patch"] = ["~n1", "~n2", "f1", "fc"]


@stranger(patch="", f1="f2")
class TinyTransformer(nn.Module):
    """A class token, places, and attention of one's own, before norm."""

    def __init__(self):
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.place = nn.Parameter(torch.randn(1, 5, 8))
        self.n1, self.q, self.k, self.v, self.o = nn.LayerNorm(8), *(nn.Linear(8, 8) for _ in range(4))
        self.n2, self.f1, self.f2, self.fc = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, C)

    def heads(self, x):
        return x.unflatten(-1, (2, -1)).transpose(1, 2)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        y = self.n1(x)
        q, k, v = (self.heads(f(y)) for f in (self.q, self.k, self.v))
        w = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        x = x + self.o((w @ v).transpose(1, 2).flatten(2))
        x = x + self.f2(F.gelu(self.f1(self.n2(x))))
        return self.fc(x[:, 0])


STRANGERS["TinyTransformer"].reads.update({"patch": ["~n1", "~n2", "q", "k", "v", "f1", "fc"], "v": ["o"], "q": ["o"]})


# --- what leaves torch, and what Python decides -------------------------------------------------------------------


@stranger(**PLAIN)
class NumpyLeak(Base):
    def between(self, x):
        x = F.relu(self.bn(x))
        return x / float(np.abs(x.detach().numpy()).max() + 1)


@stranger(**PLAIN)
class ItemLeak(Base):
    def between(self, x):
        x = F.relu(self.bn(x))
        return x / (1 + x.mean().item())


@stranger(**PLAIN)
class ListLeak(Base):
    def between(self, x):
        x = F.relu(self.bn(x))
        return x * (1 + max(x.amax((0, 2, 3)).tolist()))


@stranger(**PLAIN)
class FromNumpy(Base):
    def between(self, x):
        return torch.from_numpy(np.maximum(self.bn(x).detach().cpu().numpy(), 0)).to(x)


@stranger(**PLAIN)
class BranchOnData(Base):
    def between(self, x):
        x = self.bn(x)
        return F.relu(x) if x.mean() > 0 else F.leaky_relu(x, 0.3)


@stranger(**PLAIN)
class LoopOverChannels(Base):
    def between(self, x):
        return torch.stack([F.relu(x[:, c] * (1 + 0.1 * c)) for c in range(x.shape[1])], 1)


@stranger(**PLAIN)
class LoopOverImages(Base):
    def between(self, x):
        return torch.stack([F.relu(image) for image in self.bn(x)])


@stranger(**PLAIN)
class WidthInCode(Base):
    def between(self, x):
        return F.relu(self.bn(x)).reshape(-1, 8, 64).reshape(-1, 8, 8, 8)


@stranger(**PLAIN)
class AssertsShape(Base):
    def between(self, x):
        assert x.shape[1] == 8, "eight channels, please"
        return F.relu(self.bn(x))


@stranger(**PLAIN)
class Noisy(Base):
    def between(self, x):
        x = F.relu(self.bn(x))
        return x + 0.1 * torch.randn_like(x) if self.training else x


@stranger(**PLAIN)
class FunctionalDropout(Base):
    def between(self, x):
        return F.dropout(F.relu(self.bn(x)), 0.3, self.training)


@stranger(**PLAIN)
class AlwaysRandom(Base):
    def between(self, x):
        return F.dropout(F.relu(self.bn(x)), 0.3)


@stranger(**PLAIN)
class BatchDependent(Base):
    """Its forward changes with the batch: images are compared with the batch's mean."""

    def between(self, x):
        return F.relu(x - x.mean(0, keepdim=True))


# --- unusual Python -----------------------------------------------------------------------------------------------


@stranger(**PLAIN)
class Checkpointed(Base):
    def between(self, x):
        return checkpoint(lambda y: F.relu(self.bn(y)), x, use_reentrant=False)


@stranger(**PLAIN)
class ScriptedPart(Base):
    def __init__(self):
        super().__init__()
        self.act = torch.jit.script(nn.Sequential(nn.ReLU(), nn.Hardtanh(0.0, 2.0)))

    def between(self, x):
        return self.act(self.bn(x))


@stranger(**PLAIN)
class CannotBeCopied(Base):
    def __deepcopy__(self, memo):
        raise TypeError("not this one")


@stranger(**PLAIN)
class CopiesItself(Base):
    def __deepcopy__(self, memo):
        return self


class Slotted:
    __slots__ = ("gain",)

    def __init__(self, gain):
        self.gain = gain

    def __call__(self, x):
        return x * self.gain


@stranger(**PLAIN)
class WithSlots(Base):
    def __init__(self):
        super().__init__()
        self.helper = Slotted(0.5)

    def between(self, x):
        return self.helper(F.relu(self.bn(x)))


@stranger(**PLAIN)
class LazyLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.fc = nn.LazyConv2d(8, 3), nn.LazyConv2d(6, 3), nn.LazyLinear(C)

    def forward(self, x):
        return self.fc(F.relu(self.b(F.relu(self.a(x)))).mean((2, 3)))


@stranger(**PLAIN)
class LazyOnceMade(LazyLayers):
    def __init__(self):
        super().__init__()
        self(torch.zeros(1, 3, 8, 8))


@stranger(a="inner.b", inner_b="inner.fc")
class MethodOfPart(nn.Module):
    """Calls methods of a part that are not forward."""

    def __init__(self):
        super().__init__()
        self.a, self.inner = nn.Conv2d(3, 8, 3), Base()

    def forward(self, x):
        h = self.inner.between(self.a(x))
        return self.inner.fc(F.relu(self.inner.b(h)).mean((2, 3)))


@stranger(**PLAIN)
class CallsForward(Base):
    """Calls .forward, past all hooks."""

    def between(self, x):
        return F.relu(self.bn.forward(x))


@stranger(**PLAIN)
class CallsForwardOfReader(Base):
    def forward(self, x):
        return self.fc(F.relu(self.b.forward(self.between(self.a.forward(x)))).mean((2, 3)))


@stranger(**PLAIN)
class FrozenStem(Base):
    def __init__(self):
        super().__init__()
        self.a.requires_grad_(False)
        self.bn.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.bn.eval()
        return self


@stranger(**PLAIN)
class InPlace(Base):
    def between(self, x):
        x = self.bn(x)
        x.clamp_(min=0).mul_(0.5).add_(0.1)
        x[:, :, 0] = 0
        return x


@stranger(**PLAIN)
class Fourier(Base):
    def between(self, x):
        return torch.fft.irfft2(torch.fft.rfft2(F.relu(self.bn(x))) * 0.5, s=x.shape[-2:])


@stranger(**PLAIN)
class DoubleInside(Base):
    def between(self, x):
        return F.relu(self.bn(x)).double().sqrt().to(x.dtype)


@stranger(**PLAIN)
class Blurred(Base):
    """A fixed kernel for each channel, as against aliasing."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kernel", torch.ones(8, 1, 3, 3) / 9)

    def between(self, x):
        return F.conv2d(F.relu(self.bn(x)), self.kernel, padding=1, groups=x.shape[1])


@stranger(a="b", b="fc", prototypes="")
class Prototypes(Base):
    """Distances to learned points instead of a classifier."""

    def __init__(self):
        super().__init__()
        self.fc, self.points = nn.Linear(6, 4), nn.Parameter(torch.randn(C, 4))

    def forward(self, x):
        return -torch.cdist(super().forward(x), self.points)


@stranger(**PLAIN)
class CosineHead(Base):
    def forward(self, x):
        h = F.relu(self.b(self.between(self.a(x)))).mean((2, 3))
        return 10 * F.linear(F.normalize(h), F.normalize(self.fc.weight))


@stranger(a="b", b="fc", embed="")
class Conditioned(Base):
    """FiLM from the image's own mean."""

    def __init__(self):
        super().__init__()
        self.film = nn.Linear(3, 16)

    def forward(self, x):
        gain, shift = self.film(x.mean((2, 3))).chunk(2, 1)
        h = F.relu(self.bn(self.a(x)) * gain[:, :, None, None] + shift[:, :, None, None])
        return self.fc(F.relu(self.b(h)).mean((2, 3)))


@stranger(a="b", b="fc")
class StochasticDepth(Base):
    def __init__(self):
        super().__init__()
        self.block = Block(8, 5)

    def between(self, x):
        x = F.relu(self.bn(x))
        if self.training and torch.rand(()) < 0.5:
            return x
        return self.block(x)


STRANGERS["StochasticDepth"].reads.update({"a": ["b", "block.c1"], "block_c1": ["block.c2"]})


@stranger(a="b", b="fc", offset="")
class Sampled(Base):
    """A spatial transformer: where to look is learned."""

    def __init__(self):
        super().__init__()
        self.theta = nn.Linear(3, 6)

    def between(self, x):
        return F.relu(self.bn(x))

    def forward(self, x):
        h = self.between(self.a(x))
        theta = self.theta(x.mean((2, 3))).view(-1, 2, 3)
        h = F.grid_sample(h, F.affine_grid(theta, h.shape, align_corners=False), align_corners=False)
        return self.fc(F.relu(self.b(h)).mean((2, 3)))


@stranger(a="b", b="fc")
class Quantised(Base):
    """Rounded activations with a straight-through gradient."""

    def between(self, x):
        x = F.relu(self.bn(x))
        return x + ((x * 8).round() / 8 - x).detach()
