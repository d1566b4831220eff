"""What MkDocs asks of us while it builds the site: pages made from the code itself, and formulas without scripts."""

import html
import os
import re
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path

from mkdocs.structure.files import File
from pygments.formatters import HtmlFormatter

APP = Path(__file__).parents[1] / "src" / "cosep" / "cli" / "app.py"


def on_files(files, config):
    """The colours of code, from Pygments."""
    style = HtmlFormatter(style="default").get_style_defs(".highlight")
    files.append(File.generated(config, "pygments.css", content=style))
    return files


def on_page_markdown(markdown, page, config, files):
    """Put the commands' own help and the settings' own defaults where a page asks for them."""
    for mark, made in (("<!-- commands -->", commands), ("<!-- settings -->", settings)):
        if mark in markdown:
            markdown = markdown.replace(mark, made())
    return markdown


def on_page_content(content, page, config, files):
    """Formulas as MathML, which browsers show by themselves."""
    from latex2mathml.converter import convert

    def formula(match):
        display = "inline" if match["tag"] == "span" else "block"
        return convert(html.unescape(match["tex"]), display=display)

    return re.sub(
        r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', formula, content, flags=re.S
    )


def commands():
    """The help of every command as Markdown, by typer's own generator."""
    words = [sys.executable, "-m", "typer", str(APP), "utils", "docs", "--name", "cosep"]
    every = {**os.environ, "COSEP_HELP_ALL": "1"}
    made = subprocess.run(words, capture_output=True, text=True, check=True, env=every).stdout
    made = re.sub(r"</?span[^>]*>", "`", made)  # bold words in the help are things to type
    made = re.sub(r"^  (?=cosep )", "    ", made, flags=re.M)  # examples
    return made.partition("\n")[2]


def settings():
    """Every setting, stage by stage, with its flag, its value in both presets and what it is for."""
    from cosep.cli.options import setting_flags
    from cosep.config import PruneConfig, preset

    default, paper, flags = asdict(preset()), asdict(preset("paper")), setting_flags()
    parts = {part.name: default[part.name] for part in fields(PruneConfig) if isinstance(default[part.name], dict)}
    lines = []
    for stage, values in [*parts.items(), ("", {k: v for k, v in default.items() if k not in parts})]:
        config = getattr(preset(), stage) if stage else preset()
        help_of = {field.name: field.metadata.get("help", "") for field in fields(config)}
        lines += [f"## `[{stage}]`" if stage else "## Of the whole run", "", (type(config).__doc__ or "").strip(), ""]
        lines += ["| setting | flag | `default` | `paper` | |", "|---|---|---|---|---|"]
        for name, value in values.items():
            other = (paper[stage] if stage else paper)[name]
            flag = ", ".join(f"`{f}`" for f in flags[f"{stage}.{name}" if stage else name])
            told = help_of[name].replace("|", "\\|")
            lines.append(f"| `{name}` | {flag} | `{value!r}` | {'' if other == value else f'`{other!r}`'} | {told} |")
        lines.append("")
    return "\n".join(lines)
