"""cosep demo: the whole story on embedded data in about half a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cosep.cli.common import console, percent
from cosep.cli.progress import shown
from cosep.cli.summary import summary_table
from cosep.errors import RunError

if TYPE_CHECKING:
    from cosep.config import PruneConfig
    from cosep.runs.results import PruneResult

MODEL, DATA = "digits_cnn", "digits"
DRAWS = 5  # of random channels: one may be lucky
MARK = "cosep demo"  # in the run's config.toml: what a demo may replace


def demo_command(
    out: Annotated[Path, typer.Option(help="The run folder; that of an earlier demo is replaced.")] = Path("demo-run"),
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the last line.")] = False,
) -> None:
    """Train a small residual network on embedded images of digits, prune it, and try what its parts are good for.

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
    say("2. Pruning it: how much can go is searched for, each layer's width follows from measured damage")
    about = {"model": MODEL, "data": DATA, "classes": len(source.class_names), "input": list(source.input_shape)}
    about |= {"class_names": list(source.class_names), "made_by": MARK}
    pruned = partial(prune, base, source.calibration, source.test, train=source.train, holdout=source.holdout)
    with shown(quiet=quiet, run=out) as callbacks:
        result = pruned(config=config, run=out, about=about, callbacks=callbacks)
    if not quiet:
        console.print(summary_table(result.report))
        say("3. The choice of channels and the rebuild alone: half of those widths, no training")
        widths = {plan.group: max(1, (len(plan.kept) + 1) // 2) for plan in result.plan.groups}
        for line in choices(partial(pruned, widths=widths, epochs=0), config):
            say(line)
        say(f"(test accuracy; unpruned {percent(result.report.before.accuracy)}. A toy: now try your own network)")
    console.print(str(out / "report.html"), highlight=False, markup=False, soft_wrap=True)


def choices(pruned: Callable[..., PruneResult], config: PruneConfig) -> Iterator[str]:
    """The test accuracy of the default's channels and of random ones, only cut and rebuilt, as lines of a table."""
    from cosep.config import replace_settings

    yield f"   {'':<34}{'only cut':>16}{'cut and rebuilt':>20}"
    best: dict[bool, list[float]] = {}
    for name, criterion, seeds in (
        ("channels of the default", config.select.criterion, [config.seed]),
        (f"random channels, {DRAWS} draws", "random", [config.seed + draw for draw in range(DRAWS)]),
    ):
        row = []
        for solve in (False, True):
            changes = [{"seed": seed, "rebuild": {"solve": solve}} for seed in seeds]
            results = [pruned(config=replace_settings(config, change), criterion=criterion) for change in changes]
            found = [result.report.after.accuracy or 0.0 for result in results]
            row.append(_range(found))
            if solve:
                best[len(seeds) == 1] = found
        yield f"   {name:<34}{row[0]:>16}{row[1]:>20}"
    (ours,), drawn = best[True], best[False]
    behind = sum(value < ours for value in drawn)
    yield f"   Rebuilt, the default's channels are ahead of {behind} of {len(drawn)} random draws."


def _range(found: Sequence[float]) -> str:
    if len(found) == 1:
        return percent(found[0])
    return f"{100 * min(found):.1f} to {100 * max(found):.1f} %"


def _clear(folder: Path) -> None:
    """Remove the run of an earlier demo; where anything else lies in the folder, nothing is touched."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    from cosep.runs.folder import CONFIG, files_of_run, read_description

    if not (folder / CONFIG).is_file() or read_description(folder).get("about", {}).get("made_by") != MARK:
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
