"""One self-contained HTML file around data and scripts: nothing is fetched, and no text can become markup or code."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main id="page"><noscript>This page draws its figures with JavaScript, which is turned off here. The same numbers are in
report.json and plan.json of the run folder, and `cosep report` prints them.</noscript></main>
{data}
<script>{script}</script>
</body>
</html>
"""


def assembled(title: str, data: Mapping[str, Any], scripts: Sequence[str]) -> str:
    """The page: named documents in script elements that do not run, one style, one script."""
    style = asset("page.css")
    script = "\n".join(asset(name) for name in scripts)
    # Nothing may be fetched from anywhere, and only these very texts may run or style.
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'"
    documents = "\n".join(
        f'<script type="application/json" id="{html.escape(name)}">{embedded(document)}</script>'
        for name, document in data.items()
    )
    return PAGE.format(policy=policy, title=html.escape(printable(title)), style=style, data=documents, script=script)


def embedded(document: Any) -> str:
    """JSON that stays JSON inside a script element, whatever strings it holds."""
    text = json.dumps(compact(document), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # `<` could end the element or open a comment; lone surrogates cannot be written as UTF-8.
    return printable(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def compact(value: Any) -> Any:
    """The same document with four digits a number, and null for what is not finite."""
    if isinstance(value, float):
        return _short(value)
    if isinstance(value, Mapping):
        return {str(key): compact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [compact(item) for item in value]
    return value


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def printable(text: str) -> str:
    """Text that UTF-8 can hold: what it cannot becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def packed(values: bytes) -> str:
    """Bytes as base64 text."""
    return base64.b64encode(values).decode("ascii")


def asset(name: str) -> str:
    """A text file of the page's own."""
    return (files("cosep.reporting") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + packed(hashlib.sha256(text.encode()).digest())
