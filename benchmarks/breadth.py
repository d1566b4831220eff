"""Prune half of every interior group of every torchvision classifier and of models across timm's families.

    python benchmarks/breadth.py --results results/ [--only REGEX] [--onnx] [--size 128] [--time-limit 900]
    python benchmarks/breadth.py --results results/ --transformers [--only REGEX] [--onnx]
    python benchmarks/breadth.py --results small/ --transformers --small [--only REGEX] [--onnx]
    python benchmarks/breadth.py --results results/ --table docs/supported-models.md

Weights are random, and biases, norms and their statistics are shaken so that no two channels are alike. One process and
one JSON file a model: a crash is a row, not the end, and a second start goes on where the first one stopped. Prints a
line a model and, at the end, the share of CNNs that were pruned with every cut checked.

Transformers get an input of their own size, half of their heads and neurons go, and all cuts are checked at once,
against the whole model with zeros in the layers that read what goes. Those of Hugging Face's transformers are among
the small ones where that is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

TRANSFORMERS = ("vit_", "swin_", "maxvit")
TIMM = """
resnet26d seresnet50 ecaresnet26t resnetv2_50 resnet50_gn resnetblur50 resnest14d res2net50_26w_4s
skresnet18 seresnext26ts gcresnext26ts regnetx_002 regnety_002 regnetz_b16 dpn48b densenet121 dla34
hrnet_w18_small inception_v4 legacy_xception efficientnet_lite0 tf_efficientnetv2_b0 mixnet_s
mobilenetv3_small_100 mobilenetv4_conv_small mnasnet_small fbnetc_100 ghostnet_100 hardcorenas_a
lcnet_050 rexnet_100 convnext_atto convnextv2_atto eca_nfnet_l0 nf_regnet_b1 cspresnet50 darknet53
ese_vovnet19b_dw selecsls42 vgg11_bn repvgg_a0 mobileone_s0 starnet_s1 fasternet_t0 hgnetv2_b0
inception_next_atto gernet_s tresnet_m
"""


TIMM_TRANSFORMERS = """
vit_tiny_patch16_224 vit_small_patch32_224 deit_tiny_patch16_224 deit3_small_patch16_224 deit_tiny_distilled_patch16_224
swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 beit_base_patch16_224 cait_xxs24_224 xcit_nano_12_p16_224
pit_ti_224 levit_128s mobilevit_xxs mobilevitv2_050 coatnet_nano_rw_224 crossvit_tiny_240 convit_tiny
twins_pcpvt_small twins_svt_small pvt_v2_b0 poolformer_s12 eva02_tiny_patch14_224 efficientformer_l1
"""


# Two blocks or so of each, and small images, for --small: everything of a family that matters to its groups is there.
SMALL = {
    "vit_tiny_patch16_224": (32, {"depth": 2}),
    "vit_small_patch32_224": (64, {"depth": 2}),
    "deit_tiny_patch16_224": (32, {"depth": 2}),
    "deit3_small_patch16_224": (32, {"depth": 2}),
    "deit_tiny_distilled_patch16_224": (32, {"depth": 2}),
    "swin_tiny_patch4_window7_224": (56, {"depths": (2, 2), "num_heads": (3, 6), "embed_dim": 48}),
    "swinv2_tiny_window8_256": (64, {"depths": (2, 2), "num_heads": (3, 6), "embed_dim": 48}),
    "beit_base_patch16_224": (32, {"depth": 2, "embed_dim": 192, "num_heads": 3}),
    "cait_xxs24_224": (32, {"depth": 2}),
    "xcit_nano_12_p16_224": (64, {"depth": 2}),
    "convit_tiny": (32, {"depth": 2}),
    "pvt_v2_b0": (64, {"depths": (1, 1, 1, 1), "img_size": None}),
    "twins_pcpvt_small": (64, {"depths": (1, 1, 1, 1)}),
    "twins_svt_small": (64, {"depths": (2, 2, 2, 2)}),
    "coatnet_nano_rw_224": (64, {}),
    "mobilevit_xxs": (64, {"img_size": None}),
    "mobilevitv2_050": (64, {"img_size": None}),
    "poolformer_s12": (64, {"img_size": None}),
    "eva02_tiny_patch14_224": (28, {"depth": 2}),
    "levit_128s": (224, {"img_size": None}),
    "efficientformer_l1": (224, {"img_size": None}),
    "pit_ti_224": (224, {"img_size": None}),
    "crossvit_tiny_240": (240, {"img_size": None}),
}
# Classifiers of Hugging Face's transformers, for --small where it is installed: name, configuration, size of an image.
HUGGING_FACE_WIDTHS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
HUGGING_FACE_STAGES = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 4}
HUGGING_FACE = {
    "ViT": (32, {**HUGGING_FACE_WIDTHS, "patch_size": 8}),
    "DeiT": (32, {**HUGGING_FACE_WIDTHS, "patch_size": 8}),
    "Beit": (32, {**HUGGING_FACE_WIDTHS, "patch_size": 8}),
    "Dinov2": (32, {**HUGGING_FACE_WIDTHS, "patch_size": 8}),
    "ViTMSN": (32, {**HUGGING_FACE_WIDTHS, "patch_size": 8}),
    "IJepa": (32, {**HUGGING_FACE_WIDTHS, "patch_size": 8}),
    "Swin": (64, HUGGING_FACE_STAGES),
    "Swinv2": (64, HUGGING_FACE_STAGES),
    "Pvt": (64, {}),
    "Segformer": (64, {"hidden_sizes": [16, 32, 40, 64]}),
}
NOTHING = 1e-3  # the deviation of weights that do nothing yet
SMALL_TORCHVISION = ("VisionTransformer", "SwinTransformer", "SwinTransformer V2", "MaxVit")
# Every Transformer of torchvision's registry with its own widths, heads and windows, but only so many blocks, for
# --small: the class that its constructor calls, what of it is changed, and the size of an image.
SHORT = {
    "vit_": ("vision_transformer", "VisionTransformer", {"num_layers": 2}, None),
    "swin_": ("swin_transformer", "SwinTransformer", {"depths": [2, 1, 1, 1]}, 64),
    "maxvit": ("maxvit", "MaxVit", {"block_layers": [1, 1, 1, 1]}, 224),
}


def short_specs() -> list[str]:
    """Every Transformer of torchvision's registry."""
    return [spec for spec in model_specs() if spec.startswith("torchvision:") and is_transformer(spec)]


def short_model(name: str, models):
    """A model of torchvision's registry with a few blocks, and the size of its images."""
    module, kind, changes, size = next(how for start, how in SHORT.items() if name.startswith(start))
    home = getattr(models, module)
    whole = getattr(home, kind)
    side = size or 2 * int(name.rpartition("_")[2])  # two patches by two

    def fewer(**settings):
        own = {"image_size": side} if "image_size" in settings else {}
        return whole(**{**settings, **changes, **own})

    setattr(home, kind, fewer)
    try:
        return getattr(models, name)(weights=None, num_classes=10), side
    finally:
        setattr(home, kind, whole)


def small_specs() -> list[str]:
    families = [f"torchvision:{name}" for name in SMALL_TORCHVISION] + [f"timm:{name}" for name in SMALL]
    if importlib.util.find_spec("transformers") is not None:
        families += [f"transformers:{name}" for name in HUGGING_FACE]
    return families + short_specs()


def hugging_face_model(name: str):
    """A small classifier of Hugging Face's transformers that returns its logits alone, and the size of its images."""
    import transformers
    from torch import nn

    class Logits(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x).logits

    size, settings = HUGGING_FACE[name]
    configuration = getattr(transformers, f"{name}Config")(image_size=size, num_labels=10, **settings)
    return Logits(getattr(transformers, f"{name}ForImageClassification")(configuration)), size


def small_model(spec: str):
    """A small model of a family, and the size of its images."""
    from cosep.errors import ModelError
    from cosep.plugins import import_extra

    family, _, name = spec.partition(":")
    if family == "transformers":
        import_extra("torchvision", ModelError)  # which it imports, too
        return hugging_face_model(name)
    library = import_extra(family, ModelError)
    if family == "timm":
        size, settings = SMALL[name]
        settings = {key: value for key, value in {"img_size": size, **settings}.items() if value is not None}
        return library.create_model(name, pretrained=False, num_classes=10, **settings), size
    models = library.models
    if name == "VisionTransformer":
        return models.VisionTransformer(32, 16, 2, 3, 96, 192, num_classes=10), 32
    if name.startswith(TRANSFORMERS):
        return short_model(name, models)
    if name == "MaxVit":
        return models.MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 8, 0.1, num_classes=10), 64
    swin = models.swin_transformer
    second = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2} if "V2" in name else {}
    return models.SwinTransformer([4, 4], 24, [2, 2], [3, 6], [4, 4], num_classes=10, **second), 32


def model_specs() -> list[str]:
    """Every classifier of torchvision's registry, then the chosen ones of timm's."""
    from cosep.errors import ModelError
    from cosep.plugins import import_extra

    torchvision = import_extra("torchvision", ModelError)
    names = torchvision.models.list_models(module=torchvision.models)
    return [f"torchvision:{n}" for n in names] + [f"timm:{n}" for n in (TIMM + TIMM_TRANSFORMERS).split()]


def is_transformer(spec: str) -> bool:
    family, _, name = spec.partition(":")
    return name.startswith(TRANSFORMERS) or (family == "timm" and name in TIMM_TRANSFORMERS.split())


def shaken(model):
    """The model with its vectors (biases, norms, statistics, scales) moved apart, so that a wrong slice shows.

    Weights that begin at nothing, as those of some classifiers do, get values: what is before them would not be seen.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in model.state_dict().values():  # buffers that are not saved come from the constructor
            long = sum(s > 1 for s in tensor.shape) if tensor.is_floating_point() else 0
            if long == 1:
                tensor.add_(0.3 * (torch.rand(tensor.shape, generator=generator) - 0.5))
            elif long > 1 and float(tensor.std()) < NOTHING:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) / tensor[0].numel() ** 0.5)
    return model.eval()


def half(group, generator) -> list[int]:
    """A random half of a group's channels, rounded up, equally many in each block."""
    import torch

    size = group.width // group.blocks
    return sorted(
        block * size + c
        for block in range(group.blocks)
        for c in torch.randperm(size, generator=generator)[: (size + 1) // 2].tolist()
    )


def examine(spec: str, size: int, onnx: bool) -> dict:
    """Everything about one model, as a row of the table."""
    import torch

    from cosep.groups import find_groups, groups_in_scope
    from cosep.measurement import macs, parameters
    from cosep.records import GroupPlan
    from cosep.surgery import cut_all_checked, plan_for
    from cosep.zoo import load_model

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = shaken(load_model(spec))
    example = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    start = time.perf_counter()
    groups = find_groups(model, example, time_limit=300)
    found = time.perf_counter()
    interior = groups_in_scope(groups)
    generator = torch.Generator().manual_seed(2)
    chosen = [(group, half(group, generator)) for group in interior]
    small, _, checks = cut_all_checked(model, chosen, example)
    cut = time.perf_counter()
    done = [GroupPlan(g.name, g.width, tuple(kept), "half") for g, kept in chosen if checks[g.name].equal]
    plan = plan_for(model, groups, done)
    row = {
        "model": spec,
        "size": size,
        "groups": len(groups),
        "all": sum(g.scope == "all" for g in groups),
        "interior": len(interior),
        "cut": len(done),
        "skipped": Counter(_general(g.why_not) for g in groups if g.scope is None).most_common(),
        "taken_back": {name: c.reason for name, c in checks.items() if not c.equal},
        "vacuous": sum(not c.informative for c in checks.values() if c.equal),
        "worst": max((c.max_difference for c in checks.values() if c.equal), default=0.0),
        "macs": [macs(model, example), macs(small, example)],
        "parameters": [parameters(model), parameters(small)],
        "seconds": [round(found - start, 1), round(cut - found, 1)],
    }
    row["saved"] = saves(spec, small, plan, example)
    if onnx:
        row["onnx"] = exports(small, example)
    return row


def examine_transformer(spec: str, onnx: bool, small: bool) -> dict:
    """Half of the heads and neurons of one model gone at once, as a row of the table."""
    import torch

    from cosep.groups import find_groups, groups_in_scope
    from cosep.layers import mixing, written_out
    from cosep.measurement import macs
    from cosep.records import GroupPlan
    from cosep.surgery import apply_layout, copied, plan_for, with_cuts_tried
    from cosep.zoo import input_shape, load_model

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    made, side = small_model(spec) if small else (load_model(spec), input_shape(spec)[-1])
    model, shape = written_out(shaken(made)), (3, side, side)
    example = torch.randn(1, *shape, generator=torch.Generator().manual_seed(1))
    start = time.perf_counter()
    groups = with_cuts_tried(model, find_groups(model, example, time_limit=300), example)
    interior = groups_in_scope(groups)
    generator = torch.Generator().manual_seed(2)
    chosen = [(group, half(group, generator)) for group in interior]
    plan = plan_for(model, groups, [GroupPlan(g.name, g.width, tuple(kept), "half") for g, kept in chosen])
    cut, masked = apply_layout(model, plan.layout), copied(model)
    modules = dict(masked.named_modules())
    for group, kept in chosen:
        gone = [c for c in range(group.width) if c not in set(kept)]
        for piece in group.slices:
            if piece.module in group.consumers and piece.side == "in":
                layer = masked.get_submodule(piece.module)
                columns = torch.zeros(mixing(layer).size(layer, "in"), dtype=torch.bool)
                columns[piece.positions[gone].flatten()] = True
                layer.weight.data = mixing(layer).masked(layer, columns)
            elif isinstance(norm := modules.get(piece.module), torch.nn.LayerNorm):
                norm.register_forward_hook(over_kept(piece.positions[kept].flatten()))
    with torch.no_grad():
        whole, wanted = model(example), masked(example)
        worst = float((cut(example) - wanted).abs().max() / wanted.abs().max())
        moved = float((whole - wanted).abs().max() / whole.abs().max())
    heads = [group for group in groups if group.unit == "head"]
    row = {
        "model": spec,
        "size": shape[-1],
        "groups": len(groups),
        "heads": [len(heads), sum(g.scope == "interior" for g in heads)],
        "others": sum(g.unit != "head" for g in interior),
        "skipped": Counter(_general(g.why_not)[:110] for g in groups if g.scope is None).most_common(4),
        "all": sum(g.scope == "all" for g in groups),
        "worst": worst,
        "moved": moved,  # by the mask: outputs that it does not move would agree with anything
        "macs": [macs(model, example), macs(cut, example)],
        "seconds": [round(time.perf_counter() - start, 1)],
        "saved": saves(spec, cut, plan, example, small),
    }
    if onnx:
        row["onnx"] = exports(cut, example)
    return row


def over_kept(kept):
    """A hook of a LayerNorm in the masked copy, which must not see what went: statistics of the other channels only."""
    import torch

    def hook(norm, args, output):
        seen = torch.nn.functional.layer_norm(
            args[0][..., kept], (len(kept),), norm.weight[kept], norm.bias[kept], norm.eps
        )
        return torch.zeros_like(output).index_copy(-1, kept, seen)

    return hook


def transformer_table(rows: list[dict]) -> list[str]:
    """The section on Transformers, as lines of the page."""
    lines = [
        "## Transformers",
        "",
        "Half of the heads of every attention and half of the neurons between two layers removed at once, with inputs",
        "of the model's own size. *Heads*: attentions whose heads were cut, of those whose heads were found. *Others*:",
        "groups of neurons and channels that were cut. *Masked copy*: the outputs against the whole model with zeros",
        "in the layers that read what went. A Transformer that is not in this table has not been tried.",
        "",
        "| model | input | heads | others | not prunable, and why | MACs left | masked copy | saved | ONNX |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['model']} | | | | error: {row['error']} | | | | |")
            continue
        why = "; ".join(f"{n} × {reason}" for reason, n in row["skipped"])
        found, cut = row["heads"]
        cells = [row["model"], row["size"], f"{cut} of {found}", row["others"], why]
        cells += [f"{100 * row['macs'][1] / row['macs'][0]:.0f} %", f"{row['worst']:.0e}", row["saved"]]
        lines.append(f"| {' | '.join(map(str, [*cells, row.get('onnx', '–')]))} |")
    return lines


def _general(reason: str) -> str:
    """A reason without the names of layers and what torch said, for counting."""
    reason = reason.partition(" (RuntimeError")[0]
    reason = re.sub(r" in [\w.]+$|\(([\w ]+) in [\w.]+\)", lambda m: f"({m[1]})" if m[1] else "", reason)
    return re.sub(r"\b[\w]+\.[\w.]+\b", "…", reason)


def saves(spec: str, small, plan, example, of_small: bool = False) -> str:
    """Whether the cut model comes back from disk computing the same bits."""
    import torch

    from cosep.storage.artifacts import load, save
    from cosep.zoo import load_model

    try:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            save(f"{folder}/run", small, plan)
            uncut = small_model(spec)[0] if of_small else load_model(spec)
            again = load(f"{folder}/run", uncut.eval())
            return "yes" if torch.equal(again(example), small(example)) else "differs"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


def exports(small, example) -> str:
    """Whether the cut model exports to ONNX and computes the same there."""
    from cosep.storage.export import export_onnx

    try:
        with tempfile.TemporaryDirectory() as folder:
            check = export_onnx(small, f"{folder}/model.onnx", example)
            return f"{check.max_difference / max(check.max_output, 1e-30):.0e}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]


def run_all(arguments: argparse.Namespace) -> None:
    arguments.results.mkdir(parents=True, exist_ok=True)
    for spec in small_specs() if arguments.small else model_specs():
        path = arguments.results / (spec.replace(":", "_") + ".json")
        if not re.search(arguments.only, spec) or (is_transformer(spec) or arguments.small) != arguments.transformers:
            continue
        if path.exists() and (not arguments.onnx or "onnx" in json.loads(path.read_text())):
            continue
        command = [sys.executable, __file__, "--one", spec, "--size", str(arguments.size)]
        command += ["--onnx"] * arguments.onnx + ["--small"] * arguments.small
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.time_limit, check=False)
            lines = done.stdout.strip().splitlines()
            if done.returncode == 0 and lines:
                row = json.loads(lines[-1])
            else:
                row = {
                    "model": spec,
                    "error": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300],
                }
        except subprocess.TimeoutExpired:
            row = {"model": spec, "error": f"not finished in {arguments.time_limit} s"}
        path.write_text(json.dumps(row, indent=1))
        print(describe(row), flush=True)


def describe(row: dict) -> str:
    if "error" in row:
        return f"{row['model']:40s} ERROR {row['error']}"
    ratio = row["macs"][1] / row["macs"][0]
    if "heads" in row:
        return (
            f"{row['model']:40s} heads {row['heads'][1]} of {row['heads'][0]}  others {row['others']}  "
            f"MACs x{ratio:.2f}  masked copy {row['worst']:.0e} of {row['moved']:.0e}  saved {row['saved']}  "
            f"{row['seconds'][0]:.0f} s"
        )
    return (
        f"{row['model']:40s} groups {row['groups']:3d}  cut {row['cut']:3d} of {row['interior']:3d}  "
        f"MACs x{ratio:.2f}  masked copy {row['worst']:.0e}  saved {row['saved']}  onnx {row.get('onnx', '-')}  "
        f"{sum(row['seconds']):.0f} s"
    )


def is_fine(row: dict) -> bool:
    """Pruned, every cut passed its check, and back from disk bit by bit."""
    return "error" not in row and row["cut"] > 0 and row["cut"] == row["interior"] and row["saved"] == "yes"


def summary(rows: list[dict], family: str) -> str:
    """The figures of a family, each requirement counted by itself."""
    of = [r for r in rows if r["model"].startswith(family) and not is_transformer(r["model"])]
    ran = [r for r in of if "error" not in r]
    pruned = [r for r in ran if r["cut"] > 0]
    checked = [r for r in pruned if r["cut"] == r["interior"]]
    fine = sum(is_fine(r) for r in of)
    cuts, constant = sum(r["cut"] for r in ran), sum(r["vacuous"] for r in ran)
    saved = sum(r["saved"] == "yes" for r in ran)
    return (
        f"{family}: {len(of)} CNNs, {len(of) - len(ran)} ended in an error; {len(pruned)} pruned, "
        f"{len(checked)} of them with every interior cut checked ({cuts} cuts, "
        f"{constant} on constant outputs); {saved} came back from disk; "
        f"all of this at once: {fine} ({100 * fine / max(1, len(of)):.0f} %)."
    )


def table(rows: list[dict], missing: list[str]) -> str:
    lines = [
        "# Supported models",
        "",
        "What happened when half of the channels of every interior group was removed from models with random weights",
        "(`benchmarks/breadth.py` makes this page; inputs of the size given). *Masked copy* is the largest",
        "difference between a cut model and its masked copy, relative to the largest value; a cut that differs is",
        "taken back.",
        "*Saved*: written, read back from the constructor, and the same bits. *Tied* groups belong to scope `all`.",
        "*ONNX*: the largest relative difference in ONNX Runtime; – where it was not run.",
        "",
        *[f"- {summary(rows, family)}" for family in ("torchvision", "timm")],
        "",
        "| model | input | groups | interior | cut | tied | not prunable, and why | "
        "MACs left | masked copy | saved | ONNX |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if is_transformer(row["model"]):
            continue
        if "error" in row:
            lines.append(f"| {row['model']} | | | | | | error: {row['error']} | | | | |")
            continue
        why = "; ".join(f"{n} × {reason}" for reason, n in row["skipped"])
        if row["taken_back"]:
            reasons = Counter(_general(r)[:90] for r in row["taken_back"].values()).most_common(2)
            why += "; taken back: " + "; ".join(f"{n} × {r}" for r, n in reasons)
        left = f"{100 * row['macs'][1] / row['macs'][0]:.0f} %"
        cells = [row["model"], row["size"], row["groups"], row["interior"], row["cut"], row["all"], why, left]
        cells += [f"{row['worst']:.0e}", row["saved"], row.get("onnx", "–")]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", f"Not examined yet: {', '.join(missing)}."] if missing else []
    lines += ["", *transformer_table([row for row in rows if is_transformer(row["model"])]), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--time-limit", type=int, default=900)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--transformers", action="store_true", help="Transformers instead of CNNs")
    parser.add_argument("--small", action="store_true", help="small models of the Transformers' families")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        of_one = is_transformer(arguments.one) or arguments.small
        row = (
            examine_transformer(arguments.one, arguments.onnx, arguments.small)
            if of_one
            else examine(arguments.one, arguments.size, arguments.onnx)
        )
        print(json.dumps(row))
        return
    if arguments.results is None:
        parser.error("--results is needed")
    if arguments.table is None:
        run_all(arguments)
    specs = model_specs()
    paths = [arguments.results / (spec.replace(":", "_") + ".json") for spec in specs]
    rows = [json.loads(p.read_text()) for p in paths if p.exists()]
    if arguments.table is not None:
        missing = [s for s, p in zip(specs, paths, strict=True) if not p.exists() and not is_transformer(s)]
        arguments.table.write_text(table(rows, missing))
    for family in ("torchvision", "timm"):
        print(summary(rows, family))


if __name__ == "__main__":
    main()
