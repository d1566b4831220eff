"""One flag for every setting, made from the settings themselves."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from cosep.config import PruneConfig, paper_recovery, plain_kind, preset, replace_settings
from cosep.runs.sameness import IDENTITY, MACHINE

# Names that people know from the paper, beside the settings' own.
ALIASES = {"select.degree": ("--p",)}
# What `--help` shows: the options that people use first. `--help-all` shows every one.
FIRST = {"limits.max_macs", "limits.max_params", "limits.max_latency_ms", "limits.max_drop", "recover.epochs"}
FIRST |= {"surgery.scope", "surgery.protect"}
HIDES = "COSEP_HELP_ALL" not in os.environ  # the reference is made from the help of every option
FIRST_OWN = {"model", "data", "out", "weights", "preset", "json", "targets", "latency_ms", "seeds", "rivals"}
PANELS = {
    "limits": "How much to cut",
    "recover": "Training afterwards",
    "surgery": "What may be cut",
    "select": "How channels and widths are chosen",
    "observe": "What is looked at",
    "profile": "The separability space (CoSeP)",
    "rebuild": "The rebuild without training",
    "device": "Where it runs",
    "run": "The whole run",
}


def setting_flags() -> dict[str, tuple[str, ...]]:
    """Every setting, "stage.name", with its flags; the stage is part of a flag only where two stages share a name."""
    paths = list(_settings())
    short = [path.rpartition(".")[2] for path in paths]
    flags = {}
    for path, name in zip(paths, short, strict=True):
        stage = path.rpartition(".")[0]
        unique = short.count(name) == 1 or not stage
        flag = "--" + (name if unique else f"{stage}-{name}").replace("_", "-")
        flags[path] = (flag, *ALIASES.get(path, ()))
    return flags


def setting_choices() -> dict[str, list[str]]:
    """The flags whose values are a few words, and these words."""
    flags = setting_flags()
    kinds = {path: plain_kind(kind) for path, (kind, _, _) in _settings().items()}
    return {
        flag: [str(choice) for choice in get_args(kind)]
        for path, kind in kinds.items()
        if get_origin(kind) is Literal
        for flag in flags[path]
    }


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for every setting; those that were given reach it as `changes`, by stage."""
    flags = setting_flags()
    parameters, paths = [], {}
    for path, (kind, stage, help_text) in sorted(_settings().items(), key=lambda item: list(PANELS).index(item[1][1])):
        name = path.replace(".", "_")
        paths[name] = path
        names = list(flags[path])
        if plain_kind(kind) is bool:
            names = [f"{flag}/--no-{flag[2:]}" for flag in names]
        option = typer.Option(
            *names,
            help=help_text,
            rich_help_panel=PANELS[stage],
            show_default=False,
            hidden=HIDES and path not in FIRST,
        )
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[_optional(kind, name), option]
            )
        )
    own = [_own(p) for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "changes"]
    more = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
    parameters.append(more)

    def wrapped(**given: Any) -> None:
        given.pop("help_all")
        changes: dict[str, Any] = {}
        for name, path in paths.items():
            value = given.pop(name)
            if value is None:
                continue
            stage, _, key = path.rpartition(".")
            plain = value.value if isinstance(value, Enum) else value
            if stage:
                changes.setdefault(stage, {})[key] = plain
            else:
                changes[key] = plain
        command(**given, changes=changes)

    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    wrapped.__signature__ = inspect.Signature([*own, *parameters])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *parameters]}
    return wrapped


def _own(parameter: inspect.Parameter) -> inspect.Parameter:
    """A command's own parameter, hidden from the short help unless people use it first."""
    if parameter.name in FIRST_OWN:
        return parameter
    kind, option = get_args(parameter.annotation)
    option = copy(option)
    option.hidden = HIDES
    return parameter.replace(annotation=Annotated[kind, option])


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(context.get_help(), nl=False)
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", callback=_show_all, is_eager=True, help="Show every option and exit.")
]


def configured(
    preset_name: str, file: Path | None, changes: dict[str, Any], *, model: str = "", data: str = ""
) -> PruneConfig:
    """The preset (the paper's for this model and data), with the file's settings, with the flags': later ones win."""
    config = preset(preset_name)  # type: ignore[arg-type]
    if preset_name == "paper":
        config = replace_settings(config, {"recover": paper_recovery(model, data)})
    if file is not None:
        from cosep.storage.toml import read_toml

        stored = read_toml(file)
        for section in ("about", IDENTITY, MACHINE):  # what a run folder's config.toml says of its model and data
            stored.pop(section, None)
        config = replace_settings(config, stored)
    return replace_settings(config, changes)


def _settings() -> dict[str, tuple[Any, str, str]]:
    """Every setting with its type, its stage and its help, defaults of the preset `default` named in it."""
    found: dict[str, tuple[Any, str, str]] = {}
    default = preset()
    for part in fields(PruneConfig):
        stage = getattr(default, part.name)
        if is_dataclass(stage) and not isinstance(stage, type):
            kinds = get_type_hints(type(stage))
            for f in fields(stage):
                text = _with_default(f.metadata["help"], getattr(stage, f.name))
                found[f"{part.name}.{f.name}"] = (kinds[f.name], part.name, text)
        else:
            found[part.name] = (
                get_type_hints(PruneConfig)[part.name],
                "run",
                _with_default(part.metadata["help"], stage),
            )
    return found


def _with_default(help_text: str, value: object) -> str:
    """The help of a setting with its default; where that is nothing, the help says what nothing means."""
    return help_text if value in (None, "") else f"{help_text} (default: {value})"


def _optional(kind: Any, name: str) -> Any:
    """The type of a flag that may be left out."""
    kind = plain_kind(kind)
    if get_origin(kind) is not Literal:
        assert kind in (int, float, bool, str), f"the setting {name} has a type for which there is no flag"
        return kind | None
    functional: Any = Enum  # its functional form, which type checkers follow only with literals
    return functional("choices", {str(choice): choice for choice in get_args(kind)}, type=str) | None
