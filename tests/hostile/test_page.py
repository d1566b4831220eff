"""What a run folder says is shown as text, in the page and on the terminal."""

import json
import re

import pytest

from cosep.records import Outcome
from cosep.reporting.folders import draw_page
from cosep.reporting.progress import group_line
from cosep.reporting.words import printable
from tests.hostile.made import ABOUT, make_run

SCRIPT = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


@pytest.mark.parametrize("text", [SCRIPT, "<!--<script>", "]]>", "&lt;script&gt;", "\u2028</style>", "${alert(1)}"])
def test_text_of_a_run_folder_cannot_become_markup(tmp_path, text):
    about = {**ABOUT, "model": text, "data": text, "class_names": [text] * 10, text: text}
    settings = {
        "seed": 0, "select": {"degree": 2, "representative": text}, "profile": {"max_classes": 4, "metric": text},
        text: text,
    }  # fmt: skip
    hostile = make_run(
        tmp_path / "hostile", about=about, group_names={0: text}, limits=[text], settings=settings,
        not_pruned=[{"group": text, "width": 1, "why": text}],
    )  # fmt: skip
    plain, page = (draw_page(f).read_text(encoding="utf-8") for f in (make_run(tmp_path / "plain"), hostile))
    tags = r"<(?:script|img|style|!--|/)[^>]*"
    assert re.findall(tags, page) == re.findall(tags, plain)
    assert json.loads(re.search(r'id="run">(.*?)</script>', page).group(1))["groups"][0]["name"] == text


def test_text_of_a_run_folder_cannot_steer_the_terminal():
    line = group_line(Outcome("\x1b]0;owned\x07\x1b[2J", 4, 2, "\x9b31m\r", macs=1), 2)
    assert line.isprintable()
    assert printable("a\nb\tc\u202e") == "a\nb?c?"
