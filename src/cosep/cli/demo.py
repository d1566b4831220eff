"""cosep demo: the whole story on embedded data in about half a minute."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cosep.cli.common import console, percent
from cosep.cli.progress import shown
from cosep.cli.summary import summary_table
from cosep.errors import RunError

MODEL, DATA = "digits_cnn", "digits"
MARK = "cosep demo"  # in the run's config.toml: what a demo may replace


def demo_command(
    out: Annotated[Path, typer.Option(help="The run folder; that of an earlier demo is replaced.")] = Path("demo-run"),
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the last line.")] = False,
) -> None:
    """Train a small residual network on embedded images of digits, prune it, and compare with random channels.

    Example: cosep demo
    """
    from cosep.config import DeviceConfig, preset, replace_settings
    from cosep.data import load_data
    from cosep.pipeline import prune
    from cosep.recovery.training import TrainConfig, train
    from cosep.reporting.progress import training_shown
    from cosep.runs.fabric import launched
    from cosep.zoo import load_model

    _clear(out)
    say = (lambda text: None) if quiet else partial(console.print, highlight=False)
    source = load_data(DATA, seed=seed, batch_size=64)
    config = replace_settings(preset(), {"seed": seed, "recover": {"share": 1.0}, "device": {"accelerator": "cpu"}})
    say("1. Training a small residual network on 8 x 8 images of digits")
    with nullcontext() if quiet else training_shown(console) as bar:
        base = train(
            partial(load_model, MODEL, classes=len(source.class_names)),
            source.train,
            TrainConfig(epochs=15, seed=seed),
            fabric=launched(DeviceConfig(accelerator="cpu")),
            on_update=bar,
        )
    say("2. Pruning it: each layer decides for itself how many channels stay")
    about = {"model": MODEL, "data": DATA, "classes": len(source.class_names), "input": list(source.input_shape)}
    about |= {"class_names": list(source.class_names), "made_by": MARK}
    pruned = partial(
        prune, base, source.calibration, source.test, config=config, train=source.train, holdout=source.holdout
    )
    with shown(quiet=quiet, run=out) as callbacks:
        result = pruned(run=out, about=about, callbacks=callbacks)
    say("3. The same widths with channels drawn at random, and the same recovery")
    widths = {plan.group: len(plan.kept) for plan in result.plan.groups}
    rival = pruned(criterion="random", widths=widths)
    if not quiet:
        console.print(summary_table(result.report))
        ours, theirs = (r.report.groups[-1].accuracy for r in (result, rival))
        say(f"held-out accuracy before any training: CoSeP {percent(ours)}, random channels {percent(theirs)}")
        ours, theirs = (r.report.after.accuracy for r in (result, rival))
        say(f"test accuracy after recovery:          CoSeP {percent(ours)}, random channels {percent(theirs)}")
        say("one seed on a toy problem: see `cosep prune --help` for your own model")
    console.print(str(out / "report.html"), highlight=False, markup=False, soft_wrap=True)


def _clear(folder: Path) -> None:
    """Remove the run of an earlier demo; where anything else lies in the folder, nothing is touched."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    from cosep.runs.folder import files_of_run, read_description

    if read_description(folder).get("about", {}).get("made_by") != MARK:
        raise RunError(f"{folder} is not of an earlier demo. Choose another folder with --out.")
    files, folders, others = files_of_run(folder)
    if others:
        raise RunError(f"{others[0]} is not of the earlier demo. Move it away, or choose another folder with --out.")
    try:
        for path in files:
            path.unlink(missing_ok=True)
        for path in folders:
            path.rmdir()
    except OSError as error:
        raise RunError(f"{folder} could not be emptied: {error.strerror or error}.") from error
