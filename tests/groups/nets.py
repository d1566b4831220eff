"""Tiny networks, one for each structure that a cut must understand; each maps its input to (batch, 3) logits."""

import torch
from torch import nn
from torch.nn import functional as F


def shaken(model, seed=0):
    """The model with random vectors and statistics, so that a wrong slice anywhere shows in the output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point() and sum(size > 1 for size in tensor.shape) == 1:
                tensor.add_(0.3 * (torch.rand(tensor.shape, generator=generator) - 0.5))
    return model.eval()


class Net(nn.Module):
    """Layers by name; the structure is in forward."""

    shape = (3, 8, 8)

    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)


class Plain(Net):
    def __init__(self):
        super().__init__(
            a=nn.Conv2d(3, 8, 3), bn=nn.BatchNorm2d(8), b=nn.Conv2d(8, 6, 3, stride=2, bias=False), f=nn.Linear(6, 3)
        )

    def forward(self, x):
        return self.f(F.relu(self.b(F.relu(self.bn(self.a(x)), inplace=True))).mean((2, 3)))


class Flattened(Net):
    def __init__(self):
        super().__init__(a=nn.Conv2d(3, 4, 3), p=nn.PReLU(4), h=nn.Linear(36, 5), f=nn.Linear(5, 3))

    def forward(self, x):
        return self.f(F.relu(self.h(F.max_pool2d(self.p(self.a(x)), 2).flatten(1))))


class Residual(Net):
    def __init__(self):
        super().__init__(
            stem=nn.Conv2d(3, 6, 3, padding=1),
            a=nn.Conv2d(6, 8, 3, padding=1),
            bn=nn.BatchNorm2d(8),
            b=nn.Conv2d(8, 6, 3, padding=1),
            f=nn.Linear(6, 3),
        )

    def forward(self, x):
        x = self.stem(x)
        return self.f(F.relu(x + self.b(F.relu(self.bn(self.a(x))))).mean((2, 3)))


class PaddedShortcut(Net):
    """The parameter-free shortcut of CIFAR ResNets: every second place, and channels of zeros around."""

    def __init__(self):
        super().__init__(
            stem=nn.Conv2d(3, 4, 3, padding=1),
            a=nn.Conv2d(4, 8, 3, stride=2, padding=1),
            b=nn.Conv2d(8, 8, 3, padding=1),
            f=nn.Linear(8, 3),
        )

    def forward(self, x):
        x = self.stem(x)
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        return self.f(F.relu(short + self.b(F.relu(self.a(x)))).mean((2, 3)))


class Inverted(Net):
    """Expand, depthwise, squeeze-and-excitation, project: MobileNet's block."""

    def __init__(self):
        super().__init__(
            expand=nn.Conv2d(3, 8, 1),
            deep=nn.Conv2d(8, 8, 3, groups=8),
            bn=nn.BatchNorm2d(8),
            squeeze=nn.Conv2d(8, 4, 1),
            excite=nn.Conv2d(4, 8, 1),
            project=nn.Conv2d(8, 5, 1),
            f=nn.Linear(5, 3),
        )

    def forward(self, x):
        x = F.relu6(self.bn(self.deep(self.expand(x))))
        gate = F.hardsigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return self.f(self.project(x * gate).mean((2, 3)))


class Multiplied(Net):
    """A depthwise convolution that makes two channels of each."""

    def __init__(self):
        super().__init__(
            a=nn.Conv2d(3, 4, 1), deep=nn.Conv2d(4, 8, 3, groups=4), b=nn.Conv2d(8, 5, 1), f=nn.Linear(5, 3)
        )

    def forward(self, x):
        return self.f(self.b(F.relu(self.deep(self.a(x)))).mean((2, 3)))


class Grouped(Net):
    def __init__(self):
        super().__init__(
            a=nn.Conv2d(3, 8, 1),
            g=nn.Conv2d(8, 12, 3, groups=2),
            bn=nn.BatchNorm2d(12),
            b=nn.Conv2d(12, 5, 1),
            f=nn.Linear(5, 3),
        )

    def forward(self, x):
        return self.f(self.b(F.relu(self.bn(self.g(F.relu(self.a(x)))))).mean((2, 3)))


class Dense(Net):
    """Concatenation, with the normalisation behind it."""

    def __init__(self):
        super().__init__(
            a=nn.Conv2d(3, 4, 1),
            b=nn.Conv2d(4, 3, 3, padding=1),
            n=nn.BatchNorm2d(7),
            c=nn.Conv2d(7, 5, 1),
            f=nn.Linear(12, 3),
        )

    def forward(self, x):
        x = self.a(x)
        x = torch.cat([x, self.b(F.relu(x))], 1)
        return self.f(torch.cat([x, self.c(F.relu(self.n(x)))], 1).mean((2, 3)))


class Split(Net):
    def __init__(self):
        super().__init__(a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(4, 5, 1), c=nn.Conv2d(4, 5, 1), f=nn.Linear(10, 3))

    def forward(self, x):
        left, right = F.relu(self.a(x)).chunk(2, 1)
        return self.f(torch.cat([self.b(left), self.c(right)], 1).mean((2, 3)))


class Shuffled(Net):
    def __init__(self):
        super().__init__(a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 6, 1), f=nn.Linear(6, 3))

    def forward(self, x):
        x = F.relu(self.a(x))
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.f(self.b(x).mean((2, 3)))


class Normed(Net):
    """Group, instance and layer normalisation over channels."""

    def __init__(self):
        super().__init__(
            a=nn.Conv2d(3, 8, 1),
            g=nn.GroupNorm(2, 8),
            b=nn.Conv2d(8, 6, 1),
            i=nn.InstanceNorm2d(6, affine=True, track_running_stats=True),
            c=nn.Conv2d(6, 6, 1),
            one=nn.GroupNorm(1, 6),
            h=nn.Linear(6, 8),
            norm=nn.LayerNorm(8),
            f=nn.Linear(8, 3),
        )

    def forward(self, x):
        x = F.relu(self.one(self.c(F.relu(self.i(self.b(F.relu(self.g(self.a(x)))))))))
        return self.f(F.gelu(self.norm(self.h(x.mean((2, 3))))))


class Scaled(Net):
    """Channels last, with a layer scale: ConvNeXt's block."""

    def __init__(self):
        super().__init__(
            a=nn.Conv2d(3, 6, 1),
            norm=nn.LayerNorm(6),
            up=nn.Linear(6, 12),
            down=nn.Linear(12, 6),
            f=nn.Linear(6, 3),
        )
        self.gamma = nn.Parameter(torch.rand(6))
        self.shift = nn.Parameter(torch.rand(12))

    def forward(self, x):
        x = self.a(x)
        y = self.norm(x.permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y) + self.shift))
        return self.f((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


class Transposed(Net):
    def __init__(self):
        super().__init__(
            a=nn.Conv2d(3, 8, 3),
            u=nn.ConvTranspose2d(8, 6, 2, stride=2),
            g=nn.ConvTranspose2d(6, 8, 2, groups=2),
            d=nn.ConvTranspose2d(8, 8, 2, groups=8),
            b=nn.Conv2d(8, 4, 1),
            f=nn.Linear(4, 3),
        )

    def forward(self, x):
        return self.f(self.b(F.relu(self.d(F.relu(self.g(F.relu(self.u(F.relu(self.a(x))))))))).mean((2, 3)))


class Signal(Net):
    shape = (2, 16)

    def __init__(self):
        super().__init__(a=nn.Conv1d(2, 6, 3), n=nn.BatchNorm1d(6), b=nn.Conv1d(6, 4, 3, dilation=2), f=nn.Linear(4, 3))

    def forward(self, x):
        return self.f(self.b(F.max_pool1d(F.relu(self.n(self.a(x))), 2)).mean(2))


class Volume(Net):
    shape = (1, 6, 6, 6)

    def __init__(self):
        super().__init__(a=nn.Conv3d(1, 4, 3), n=nn.BatchNorm3d(4), b=nn.Conv3d(4, 4, 3), f=nn.Linear(32, 3))

    def forward(self, x):
        return self.f(F.relu(self.b(F.relu(self.n(self.a(x))))).flatten(1))


class StandardisedConv(nn.Conv2d):
    """Weights normalised over their inputs before use, and scaled."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1))

    def forward(self, x):
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, weight=(self.gain * 0.5).view(-1), training=True)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias, self.stride, self.padding)


class Standardised(Net):
    def __init__(self):
        super().__init__(a=StandardisedConv(3, 8, 3), b=StandardisedConv(8, 6, 3), f=nn.Linear(6, 3))

    def forward(self, x):
        return self.f(F.relu(self.b(F.relu(self.a(x)))).mean((2, 3)))


class Tied(Net):
    """Two layers that share one weight."""

    def __init__(self):
        super().__init__(
            a=nn.Conv2d(3, 6, 1), b=nn.Conv2d(6, 6, 1), c=nn.Conv2d(6, 6, 1), d=nn.Conv2d(6, 4, 1), f=nn.Linear(4, 3)
        )
        self.c.weight = self.b.weight

    def forward(self, x):
        return self.f(self.d(self.c(F.relu(self.b(F.relu(self.a(x)))))).mean((2, 3)))


NETS = [
    Plain,
    Flattened,
    Residual,
    PaddedShortcut,
    Inverted,
    Multiplied,
    Grouped,
    Dense,
    Split,
    Shuffled,
    Normed,
    Scaled,
    Transposed,
    Signal,
    Volume,
    Standardised,
    Tied,
]


def built(kind, seed=0):
    """A shaken network and an example input of two."""
    torch.manual_seed(seed)
    model = shaken(kind(), seed)
    return model, torch.randn(2, *kind.shape, generator=torch.Generator().manual_seed(seed + 1))


def some(group, seed=0):
    """A random half of a group's channels, rounded up, equally many in each block."""
    generator = torch.Generator().manual_seed(seed)
    size = group.width // group.blocks
    return tuple(
        sorted(
            block * size + c
            for block in range(group.blocks)
            for c in torch.randperm(size, generator=generator)[: (size + 1) // 2].tolist()
        )
    )
