"""The rebuild of Transformers: what the layers aim at, by numpy's own least squares on what each of them reads."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from cosep.config import RebuildConfig
from cosep.groups import find_groups
from cosep.rebuilding import rebuild
from cosep.surgery import apply_layout, layout_of
from cosep.zoo.vit import CifarViT

WIDTH, HEADS, SIZE, TOKENS = 12, 3, 4, 16
KEPT = {"head": (0, 2), "channel": tuple(range(0, 4 * WIDTH, 3))}
EVERY = RebuildConfig(pull=1e-9, rows=10_000, positions=TOKENS, refine=0)  # every token of every image


def images(count=96, batches=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(count, 3, 16, 16, generator=generator) for _ in range(batches)]


def network(layers):
    torch.manual_seed(0)
    model = CifarViT(layers, width=WIDTH, heads=HEADS, classes=4, size=16).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def without(model, x, kept):
    """The network without some heads and neurons, and its layout."""
    layout = {}
    for group in find_groups(model, x[:1]):
        if group.scope == "interior" and group.unit in kept:
            layout = {**layout, **layout_of(model, group, kept[group.unit], layout)}
    return apply_layout(model, layout), layout


def fitted(batches):
    """The images that fits may see: one in sixteen of a batch is held back."""
    return torch.cat([x[torch.arange(i * len(x), (i + 1) * len(x)) % 16 != 0] for i, x in enumerate(batches)])


def rows(tokens):
    return tokens.flatten(0, 1).double().numpy()


def best(design, wanted):
    """What the best weights and bias make of these rows."""
    design = np.hstack([rows(design), np.ones((design.shape[0] * design.shape[1], 1))])
    return design @ np.linalg.lstsq(design, rows(wanted), rcond=None)[0]


def squares(differences):
    return float((differences**2).sum())


def embedded(model, x):
    return (model.patches(x) + model.positions).flatten(2).transpose(1, 2)


def mixed(attention, x):
    """The values of the heads, mixed by their attention: (images, tokens, heads * size)."""
    q, k, v = (
        layer(x).unflatten(2, (-1, SIZE)).transpose(1, 2) for layer in (attention.query, attention.key, attention.value)
    )
    return ((q @ k.transpose(-2, -1) / SIZE**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_a_head_that_repeats_another_can_go_without_a_trace():
    model, batches = network(2), images()
    with torch.no_grad():
        for layer in (model.blocks[0].attention.get_submodule(name) for name in ("query", "key", "value")):
            for tensor in layer.parameters():
                tensor[SIZE : 2 * SIZE] = tensor[:SIZE]
    group = next(g for g in find_groups(model, batches[0][:1]) if g.name == "blocks.0.attention.query")
    layout = layout_of(model, group, KEPT["head"], {})
    done = rebuild(model, apply_layout(model, layout), layout, batches, EVERY)
    assert done.divergence < 1e-6 * done.divergence_cut
    output = next(each for each in done.layers if each.layer == "blocks.0.attention.output")
    assert (output.towards, output.applied) == ("sum", True)
    assert output.error_after < 1e-6 < output.error_before


def test_the_output_projection_and_the_second_layer_are_least_squares_solutions_of_the_whole_networks_sums():
    model, batches = network(1), images()
    cut, layout = without(model, batches[0], KEPT)
    done = rebuild(model, cut, layout, batches, EVERY).model
    whole, small = model.blocks[0], done.blocks[0]
    with torch.no_grad():
        stream = embedded(model, fitted(batches))
        normed = whole.norm1(stream)
        first = stream + whole.attention(normed)
        attended = small.attention(small.norm1(stream))
        np.testing.assert_allclose(rows(attended), best(mixed(small.attention, normed), first - stream), atol=1e-3)
        second = first + whole.linear2(F.gelu(whole.linear1(whole.norm2(first))))
        own = stream + attended
        hidden = F.gelu(small.linear1(small.norm2(own)))
        np.testing.assert_allclose(rows(small.linear2(hidden)), best(hidden, second - own), atol=1e-3)


def test_queries_keys_values_and_first_layers_are_least_squares_solutions_of_their_kept_outputs():
    model, batches = network(2), images()
    cut, layout = without(model, batches[0], KEPT)
    made = rebuild(model, cut, layout, batches, EVERY)
    towards = {each.layer: each.towards for each in made.layers}
    # The first block changes what the second one reads; there its layers have something to repair. What a LayerNorm
    # gives depends on itself (its mean is nothing), so that many weights do as well: their errors are compared.
    whole, small = model.blocks[1], made.model.blocks[1]
    inner = [head * SIZE + i for head in KEPT["head"] for i in range(SIZE)]
    with torch.no_grad():
        x = fitted(batches)
        before = model.blocks[0](embedded(model, x))
        own = made.model.blocks[0](embedded(made.model, x))
        for name in ("query", "key", "value"):
            wanted = whole.attention.get_submodule(name)(whole.norm1(before))[..., inner]
            seen = small.norm1(own)
            found = small.attention.get_submodule(name)(seen)
            assert squares(rows(found) - rows(wanted)) <= 1.001 * squares(best(seen, wanted) - rows(wanted))
            assert towards[f"blocks.1.attention.{name}"] == "output"
        wanted = whole.linear1(whole.norm2(before + whole.attention(whole.norm1(before))))[..., list(KEPT["channel"])]
        seen = small.norm2(own + small.attention(small.norm1(own)))
        assert squares(rows(small.linear1(seen)) - rows(wanted)) <= 1.001 * squares(best(seen, wanted) - rows(wanted))
    assert towards["blocks.1.linear1"] == "output"


def test_norms_of_tokens_are_as_they_were():
    model, batches = network(2), images()
    cut, layout = without(model, batches[0], KEPT)
    done = rebuild(model, cut, layout, batches)
    assert done.divergence < done.divergence_cut
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            assert torch.equal(done.model.get_submodule(name).weight, module.weight)
            assert torch.equal(done.model.get_submodule(name).bias, module.bias)
