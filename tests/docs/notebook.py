"""The notebook of the docs: its cells, run from top to bottom in one namespace, with what they show.

python -m tests.docs.notebook     # run it and store what it shows
"""

import ast
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

PATH = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook):
    """Every code cell in order, in the current folder; what each shows, as Jupyter stores it."""
    namespace = {"__name__": "__main__"}
    return [run_cell("".join(cell["source"]), namespace) for cell in code_cells(notebook)]


def run_cell(source, namespace):
    """What a cell prints, and the value of its last line."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    written, value = io.StringIO(), None
    with contextlib.redirect_stdout(written):
        exec(compile(tree, "<cell>", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    shown = []
    if written.getvalue():
        text = written.getvalue().splitlines(keepends=True)
        shown.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = [value._repr_html_()]
        shown.append({"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data})
    return shown


def main():
    notebook = json.loads(PATH.read_text())
    start = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        shown = run(notebook)
        os.chdir(start)
    for cell, outputs in zip(code_cells(notebook), shown, strict=True):
        cell["outputs"] = outputs
    PATH.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
