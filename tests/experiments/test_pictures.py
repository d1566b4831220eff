"""The pictures of the README and the results are those that the committed results give."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def drawn():
    return runpy.run_path(str(ROOT / "experiments" / "pictures.py"))["pictures"]()


def test_the_committed_pictures_are_up_to_date(drawn):
    committed = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "figures").iterdir()}
    assert committed == drawn, "run: python experiments/pictures.py --out docs/figures"


def test_the_picture_of_the_readme_says_what_the_results_say(drawn):
    picture = drawn["resnet56-half.svg"]
    cells = json.loads((ROOT / "experiments" / "results" / "untrained-resnet56.json").read_text())["cells"]
    base, cell = cells["base"]["accuracy"], cells["elimination damage 50/0"]
    assert f"{100 * base:.1f} % → {100 * cell['accuracy']:.1f} %" in picture
    before, after = map(int, re.search(r">(\d+) M → (\d+) M<", picture).groups())
    assert after / before == pytest.approx(cell["macs"], abs=0.01)
    assert len(re.findall(r'<rect class="after"', picture)) == 56 + 1  # every layer, and the key


def test_every_picture_is_shown_somewhere(drawn):
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert all(f"figures/{name}" in shown for name in drawn)
