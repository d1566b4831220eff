"""The page about odd models and data says nothing that no test proves, and leaves no test out."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "odd-models-and-data.md").read_text(encoding="utf-8")


def test_every_line_of_the_page_names_its_tests_and_every_test_is_named():
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("| what you", "|---"))]
    named = [re.findall(r"test_\w+", row) for row in rows]
    assert all(named)
    tests = {
        name
        for file in ("test_models.py", "test_data.py", "test_strangers.py")
        for name in re.findall(r"^def (test_\w+)", (HERE / file).read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert {name for names in named for name in names} == tests
