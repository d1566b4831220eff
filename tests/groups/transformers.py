"""Attention as people write it: the same numbers, and the number of heads kept in different ways."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, SIZE, TOKENS = 12, 3, 4, 5


class Separate(nn.Module):
    """A linear layer each for queries, keys and values, and the products written out."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.head_dim = HEADS, SIZE
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def divided(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.divided(self.q(x)), self.divided(self.k(x)), self.divided(self.v(x))
        attention = torch.softmax(q @ k.transpose(-2, -1) / self.head_dim**0.5, dim=-1)
        return self.out((attention @ v).transpose(1, 2).reshape(*x.shape[:2], self.num_heads * self.head_dim))


class Fused(nn.Module):
    """One linear layer for all three, and attention as one operation of torch."""

    def __init__(self, normalised=False):
        super().__init__()
        self.num_heads, self.head_dim, self.attn_dim = HEADS, SIZE, WIDTH
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.q_norm, self.k_norm = (nn.LayerNorm(SIZE) if normalised else nn.Identity() for _ in range(2))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj(mixed.transpose(1, 2).reshape(b, n, self.attn_dim))


class AllHeadSize(nn.Module):
    """As in Hugging Face's ViT: the projections in one module, the output layer in another."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_attention_heads, self.attention_head_size, self.all_head_size = HEADS, SIZE, WIDTH
            self.query, self.key, self.value = (nn.Linear(WIDTH, self.all_head_size) for _ in range(3))

        def divided(self, x):
            return x.view(*x.shape[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

        def forward(self, x):
            q, k, v = (self.divided(layer(x)) for layer in (self.query, self.key, self.value))
            mixed = (torch.matmul(q, k.transpose(-1, -2)) / SIZE**0.5).softmax(-1) @ v
            mixed = mixed.permute(0, 2, 1, 3).contiguous()
            return mixed.view(*mixed.shape[:-2], self.all_head_size)

    def __init__(self):
        super().__init__()
        self.attention, self.dense = self.Inner(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.dense(self.attention(x))


class HeadSizeAlone(nn.Module):
    """As in Hugging Face's ViT since its fifth version: only the size of a head is asked for, the rest is inferred."""

    def __init__(self):
        super().__init__()
        self.num_attention_heads, self.head_dim, self.scaling = HEADS, SIZE, SIZE**-0.5
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        divided = (*x.shape[:-1], -1, self.head_dim)
        q, k, v = (layer(x).view(divided).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        weights = F.softmax(torch.matmul(q, k.transpose(2, 3)) * self.scaling, dim=-1, dtype=torch.float32).to(q.dtype)
        mixed = torch.matmul(weights, v).transpose(1, 2).contiguous()
        return self.o_proj(mixed.reshape(*x.shape[:-1], -1).contiguous())


class Chunked(nn.Module):
    """The three taken apart first, heads folded into the batch, and products of three axes; no number is kept."""

    def __init__(self):
        super().__init__()
        self.to_qkv, self.to_out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (
            part.reshape(b, n, -1, SIZE).transpose(1, 2).reshape(-1, n, SIZE)
            for part in self.to_qkv(x).chunk(3, dim=-1)
        )
        mixed = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / SIZE**0.5, -1), v)
        return self.to_out(mixed.reshape(b, -1, n, SIZE).transpose(1, 2).flatten(2))


class Rotated(Separate):
    """Positions as rotations of queries and keys, which take the places of a head apart and join them again."""

    def divided(self, x):
        heads = super().divided(x)
        angle = torch.arange(heads.shape[2]).reshape(-1, 1) * torch.ones(1, SIZE)
        first, second = heads.chunk(2, dim=-1)
        return heads * angle.cos() + torch.cat((-second, first), dim=-1) * angle.sin()


class Tabled(Fused):
    """A learned bias for every head and every distance between tokens, looked up in a table, as in Swin."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(2 * TOKENS - 1, HEADS))
        token = torch.arange(TOKENS)
        self.register_buffer("index", (token[:, None] - token[None, :] + TOKENS - 1).flatten())

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index].view(n, n, -1).permute(2, 0, 1).unsqueeze(0)
        attention = (q @ k.transpose(-2, -1) + bias).softmax(-1)
        return self.proj((attention @ v).transpose(1, 2).reshape(b, n, -1))


class Biased(nn.Module):
    """Biases of queries and values as parameters of their own, joined behind one another, as in BEiT."""

    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.q_bias, self.v_bias = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("k_bias", torch.zeros(WIDTH), persistent=False)

    def forward(self, x):
        b, n, _ = x.shape
        qkv = F.linear(x, self.qkv.weight, torch.cat((self.q_bias, self.k_bias, self.v_bias)))
        q, k, v = qkv.reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class OfItsInput(Fused):
    """The size of a head taken from the width of the input: as it is, it does not run with fewer heads."""

    def forward(self, x):
        b, n, width = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, width // self.num_heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, width))


class Tokens(nn.Module):
    """Two linear layers on tokens around attention with a shortcut, and a classifier: (n, 5, 6) -> (n, 4)."""

    def __init__(self, attention):
        super().__init__()
        self.embed, self.norm, self.attention = nn.Linear(6, WIDTH), nn.LayerNorm(WIDTH), attention
        self.up, self.down, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x):
        x = self.embed(x)
        x = x + self.attention(self.norm(x))
        return self.head((x + self.down(F.dropout(F.gelu(self.up(x)), 0.1, self.training))).mean(1))


KINDS = {
    "separate": (Separate, ("q", "k", "v"), "out"),
    "fused": (Fused, ("qkv",), "proj"),
    "normalised": (lambda: Fused(normalised=True), ("qkv",), "proj"),
    "all_head_size": (AllHeadSize, ("attention.query", "attention.key", "attention.value"), "dense"),
    "head_size_alone": (HeadSizeAlone, ("q_proj", "k_proj", "v_proj"), "o_proj"),
    "chunked": (Chunked, ("to_qkv",), "to_out"),
    "rotated": (Rotated, ("q", "k", "v"), "out"),
    "tabled": (Tabled, ("qkv",), "proj"),
    "biased": (Biased, ("qkv",), "proj"),
}


def network(kind):
    """A network with one attention of a kind, with weights that matter."""
    torch.manual_seed(0)
    return Tokens(KINDS[kind][0]()).eval()
