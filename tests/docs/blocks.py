"""Every fenced block of the README and the docs, and the one way in which each kind of block is checked.

python              run, one namespace a page; with title="file.py": written to that file, for later commands to use
console             lines that begin with "$ " are run; `cosep` in this process, scripts as far as their arguments
toml                read and applied as settings, as `--config` does
json                read
text                not checked: output, diagrams

In a page, `<!-- given: names -->` says what of `given.py` its blocks may use without making it, and
`<!-- python ... -->` is a block that readers do not see.
"""

import argparse
import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from json import loads
from pathlib import Path

from packaging.requirements import Requirement
from typer.main import get_command
from typer.testing import CliRunner

from cosep.cli.app import app
from cosep.cli.options import configured

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.M | re.S)
HIDDEN = re.compile(r"^<!-- python\n(?P<code>.*?)^-->$", re.M | re.S)
GIVEN = re.compile(r"^<!-- given: (.*?) -->$", re.M)
INLINE = re.compile(r"`((?:cosep|python (?:benchmarks|experiments)/|(?:benchmarks|experiments)/\w+\.py)[^`\n]*)`")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str  # python, console, toml, json, text; anything else has no way to be checked
    title: str
    code: str


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text, page=""):
    """All blocks of a page in order, hidden ones too."""
    found = []
    for match in FENCE.finditer(text):
        kind, _, rest = match["info"].strip().partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        code = re.sub(f"^{match['indent']}", "", match["code"], flags=re.M)
        found.append((match.start(), kind, title[1] if title else "", code))
    found += [(match.start(), "python", "", match["code"]) for match in HIDDEN.finditer(text)]
    return [Block(page, text.count("\n", 0, at) + 1, kind, title, code) for at, kind, title, code in sorted(found)]


def given(text):
    """What a page takes for granted, by name."""
    return [name.strip() for line in GIVEN.findall(text) for name in line.split(",")]


def commands(block):
    """The commands of a console block, each on one line; what else is in it is output."""
    joined = block.code.replace("\\\n", " ")
    return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


def run(block, namespace):
    """Check one block in the current folder; an exception says what is wrong with it."""
    if block.kind == "python" and block.title:
        compile(block.code, block.title, "exec")
        Path(block.title).write_text(block.code)
    elif block.kind == "python":
        # The line numbers of a traceback are those of the page.
        exec(compile("\n" * block.line + block.code, block.page, "exec"), namespace)
    elif block.kind == "console":
        assert commands(block), "a console block without a line that begins with '$ '"
        for command in commands(block):
            run_command(command)
    elif block.kind == "toml":
        Path("block.toml").write_text(block.code)
        configured("default", Path("block.toml"), {})
    elif block.kind == "json":
        loads(block.code)
    else:
        assert block.kind == "text", f"no way to check a block of kind {block.kind!r}"


def run_command(command):
    """Run a command, or check it as far as it can be without hours, a network or several machines."""
    words = shlex.split(command, comments=True)
    match words:
        case ["cosep", *rest]:
            _cosep(rest)
        case ["python", script, *rest] if script.split("/")[0] in ("benchmarks", "experiments"):
            parse_script(script, rest)
        case ["torchrun", "--nproc_per_node", count, "-m", "cosep", name, *rest]:
            assert int(count) > 1
            known_flags(name, rest)
        case ["make", target]:
            subprocess.run(["make", "-n", "-o", ".venv/.installed", target], cwd=ROOT, check=True, capture_output=True)
        case ["pip", "install", *rest]:
            # "." is the clone that one is in.
            named = [re.sub(r"^\.(?=\[|$)", "cosep", word) for word in rest if not word.startswith("-")]
            for wanted in map(Requirement, named):
                assert wanted.name != "cosep" or wanted.extras <= extras(), wanted
        case ["pip-audit" | "mkdocs" | "uv", *rest]:
            files = [word for word in rest if word.endswith((".txt", ".toml"))]
            assert all((ROOT / file).exists() for file in files), files
        case _:
            raise AssertionError(f"no way to check the command {command!r}")


def parse_script(script, words):
    """Run a script of the repository until it has read its arguments."""

    class Parsed(Exception):
        pass

    real = argparse.ArgumentParser.parse_args

    def parse(self, *given):
        real(self, *given)
        raise Parsed

    before = sys.argv, sys.path[:]
    sys.argv, argparse.ArgumentParser.parse_args = [script, *words], parse
    sys.path.insert(0, str((ROOT / script).parent))
    try:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    except Parsed:
        return
    except SystemExit as error:
        raise AssertionError(f"{script} does not take {words}") from error
    finally:
        sys.argv, sys.path[:] = before
        argparse.ArgumentParser.parse_args = real
    raise AssertionError(f"{script} reads no arguments")


def help_of(script):
    """What a script of the repository says of its options."""
    before = sys.argv, sys.path[:]
    sys.argv = [script, "--help"]
    sys.path.insert(0, str((ROOT / script).parent))
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
            runpy.run_path(str(ROOT / script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
    return said.getvalue()


def known_flags(name, words):
    """Refuse a command of cosep, or a flag of it, that does not exist."""
    command = get_command(app).commands[name]
    flags = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)} | {"--help"}
    unknown = {word.split("=")[0] for word in words if word.startswith("--")} - flags
    assert not unknown, f"cosep {name} has no {unknown}"


def extras():
    """The optional parts of the package, as its metadata names them."""
    section = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2]
    return set(re.findall(r"^(\w+) = \[", section.partition("\n[")[0], re.M))


def _cosep(words):
    done = CliRunner().invoke(app, words)
    missing = [extra for extra in ("torchvision", "timm") if f"cosep[{extra}]" in str(done.exception)]
    if missing and any(word.startswith(f"{missing[0]}:") for word in words):
        return  # the command needs an extra that is not installed, and says so
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
