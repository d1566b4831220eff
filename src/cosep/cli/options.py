"""One flag for every setting, made from the settings themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from cosep.config import PruneConfig, paper_recovery, plain_kind, preset, replace_settings

# Names that people know from the paper, beside the settings' own.
ALIASES = {"select.degree": ("--p",)}


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


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for every setting; those that were given reach it as `changes`, by stage."""
    flags = setting_flags()
    parameters, paths = [], {}
    for path, (kind, stage, help_text) in _settings().items():
        name = path.replace(".", "_")
        paths[name] = path
        names = list(flags[path])
        if plain_kind(kind) is bool:
            names = [f"{flag}/--no-{flag[2:]}" for flag in names]
        option = typer.Option(*names, help=help_text, rich_help_panel=f"Settings: {stage}", show_default=False)
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[_optional(kind, name), option]
            )
        )
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "changes"]

    def wrapped(**given: Any) -> None:
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
        stored.pop("about", None)  # what a run folder's config.toml says of its model and data
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
                text = f"{f.metadata['help']} (default: {_shown(getattr(stage, f.name))})"
                found[f"{part.name}.{f.name}"] = (kinds[f.name], part.name, text)
        else:
            found[part.name] = (
                get_type_hints(PruneConfig)[part.name],
                "run",
                f"{part.metadata['help']} (default: {_shown(stage)})",
            )
    return found


def _shown(value: object) -> object:
    return "none" if value is None else value


def _optional(kind: Any, name: str) -> Any:
    """The type of a flag that may be left out."""
    kind = plain_kind(kind)
    if get_origin(kind) is not Literal:
        assert kind in (int, float, bool, str), f"the setting {name} has a type for which there is no flag"
        return kind | None
    functional: Any = Enum  # its functional form, which type checkers follow only with literals
    return functional("choices", {str(choice): choice for choice in get_args(kind)}, type=str) | None
