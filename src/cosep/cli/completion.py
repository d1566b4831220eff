"""Answers to a shell that completes a command line: at once, from a table, without torch and without the app itself.

The shells' scripts are typer's (`cosep --install-completion`); they ask with an environment variable. The table holds
the commands with their flags and what may follow them; `python -m cosep.cli.completion` writes it anew.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, get_args

TABLE = "completions.json"
ASKED = "_COSEP_COMPLETE"  # typer's name for the variable
PLACES = ("torchvision:", "timm:")  # where models come from beside the zoo; files complete themselves
DATA = ("digits", "cifar10:", "cifar100:", "imagefolder:")


def answered() -> bool:
    """Answer a shell that asks what a word could become; False where none asks for that."""
    asked, _, shell = os.environ.get(ASKED, "").partition("_")
    if asked != "complete" or shell not in SHELLS:
        return False
    words, begun = _words(shell)
    found = completions(words, begun, json.loads((files("cosep.cli") / TABLE).read_text(encoding="utf-8")))
    if shell == "fish" and os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        sys.exit(0 if found else 1)  # 1: let fish complete files
    text = SHELLS[shell](found)
    if text:
        print(text)
    return True


def completions(words: Sequence[str], begun: str, table: Mapping[str, Any]) -> list[str]:
    """What the word that was begun could become, behind these words; [] for a file, or anything that nobody knows."""
    commands = table["commands"]
    command = next((word for word in words if word in commands), None)
    if command is None:
        known = ["--help", "--version"] if begun.startswith("-") else list(commands)
        return [name for name in known if name.startswith(begun)]
    flags: Mapping[str, Any] = commands[command]["flags"]
    behind = words[words.index(command) + 1 :]
    if behind and flags.get(behind[-1]) is not None:  # a flag that waits for its value
        known = flags[behind[-1]]
    elif begun.startswith("-"):
        known = list(flags)
    elif commands[command]["model"] and not _given(behind, flags):
        known = table["models"]
    else:
        known = []
    return [name for name in known if name.startswith(begun)]


def _given(words: Sequence[str], flags: Mapping[str, Any]) -> bool:
    """Whether one of these words is an argument: no flag, and no value of one."""
    return any(
        not word.startswith("-") and flags.get(last) is None for last, word in zip(("", *words), words, strict=False)
    )


def _words(shell: str) -> tuple[list[str], str]:
    """The words behind `cosep`, and the one that was begun."""
    if shell == "bash":
        words, place = _split(os.environ.get("COMP_WORDS", "")), int(os.environ.get("COMP_CWORD", "0"))
        return words[1:place], words[place] if place < len(words) else ""
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(line)[1:]
    if shell in ("powershell", "pwsh"):
        begun = os.environ.get("_TYPER_COMPLETE_WORD_TO_COMPLETE", "")
        return (words[:-1] if begun else words), begun
    if words and not line.endswith(" "):
        return words[:-1], words[-1]
    return words, ""


def _split(line: str) -> list[str]:
    """As a shell splits a line; a quote that is still open does not matter."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _zsh(found: Sequence[str]) -> str:
    quoted = "\n".join('"{}"'.format(name.replace(":", r"\\:")) for name in found)
    return f"_arguments '*: :(({quoted}))'" if found else "_files"


def _powershell(found: Sequence[str]) -> str:
    return "\n".join(f"{name}::: " for name in found)


SHELLS = {"bash": "\n".join, "zsh": _zsh, "fish": "\n".join, "powershell": _powershell, "pwsh": _powershell}


def table() -> dict[str, Any]:
    """Every command with its flags: None for one without a value, else the values that are known."""
    import typer

    from cosep.cli.app import app
    from cosep.cli.options import setting_choices
    from cosep.config import Preset
    from cosep.criteria.registry import CRITERIA
    from cosep.selection.rules import WIDTH_RULES
    from cosep.zoo import model_names

    known = {
        **setting_choices(),
        "--data": list(DATA),
        "--preset": list(get_args(Preset)),
        "--criterion": list(CRITERIA),
        "--width-rule": list(WIDTH_RULES),
    }
    commands = {}
    whole: Any = typer.main.get_command(app)
    for name, command in whole.commands.items():
        options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
        arguments = [parameter.name for parameter in command.params if parameter.param_type_name == "argument"]
        flags = {
            flag: None if option.is_flag or option.count else known.get(flag, [])
            for option in options
            for flag in (*option.opts, *option.secondary_opts)
        }
        commands[name] = {"model": arguments[:1] == ["model"], "flags": {"--help": None, **flags}}
    return {"models": [*model_names(), *PLACES], "commands": commands}


if __name__ == "__main__":
    from pathlib import Path

    Path(__file__).with_name(TABLE).write_text(json.dumps(table(), indent=1) + "\n", encoding="utf-8")
