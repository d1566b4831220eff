"""What the README and the docs tell people to type works, block by block."""

import shlex
import shutil

import pytest

import cosep.pipeline
import cosep.recovery.training
import cosep.runs.planning
import cosep.runs.recovering
import cosep.runs.remaking
from tests.docs.blocks import INLINE, ROOT, Block, blocks, given, known_flags, pages, parse_script, run
from tests.docs.given import provide

UPDATES, IMAGES = 1, 100  # of any training, and of any look at the calibration data: enough to go through all the code


@pytest.fixture
def short_work(monkeypatch):
    look = cosep.pipeline.calibration_pass
    for module in (cosep.pipeline, cosep.runs.planning, cosep.runs.remaking):
        monkeypatch.setattr(module, "calibration_pass", lambda job, n: look(job, min(n or IMAGES, IMAGES)))
    for module in (cosep.runs.recovering, cosep.recovery.training):
        real = module.recover
        monkeypatch.setattr(
            module,
            "recover",
            lambda net, data, n, *rest, real=real, **kw: real(net, data, min(n, UPDATES), *rest, **kw),
        )


def named(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_block_of_a_page_does_what_it_says(page, tmp_path, monkeypatch, short_work):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    namespace = provide(given(text), tmp_path)
    for block in blocks(text, named(page)):
        try:
            run(block, namespace)
        except Exception as error:
            raise AssertionError(f"{block.page}:{block.line}: {type(error).__name__}: {error}") from error
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("page", pages(), ids=named)
def test_every_command_in_the_text_of_a_page_exists_with_its_flags(page):
    for command in INLINE.findall(page.read_text()):
        first, *rest = shlex.split(command.removeprefix("python "))
        if first.endswith(".py"):
            assert (ROOT / first).exists(), command
            if rest:
                parse_script(first, rest)
        elif first == "cosep" and rest and not rest[0].startswith("-"):
            known_flags(rest[0], rest[1:])


def test_a_block_of_an_unknown_kind_is_refused_and_a_hidden_one_is_found():
    text = '```\nx\n```\n<!-- python\na = 1\n-->\n    ```python title="f.py"\n    b = 2\n    ```\n'
    plain, hidden, file = blocks(text)
    with pytest.raises(AssertionError, match="no way to check a block of kind ''"):
        run(plain, {})
    assert (hidden.kind, hidden.code) == ("python", "a = 1\n")
    assert (file.title, file.code, file.line) == ("f.py", "b = 2\n", 7)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("python", "raise ValueError"),
        ("console", "no command\n"),
        ("console", "$ cosep prune digits_cnn --no-such-flag\n"),
        ("console", "$ python benchmarks/cutting.py --no-such-flag 1\n"),
        ("console", "$ make no-such-target\n"),
        ("console", '$ pip install "cosep[no-such-extra]"\n'),
        ("console", '$ pip install ".[no-such-extra]"\n'),
        ("console", "$ rm -rf /tmp/x\n"),
        ("toml", "[select]\ndegre = 3\n"),
        ("json", "{"),
    ],
)
def test_a_block_that_does_not_work_is_noticed(kind, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception):  # noqa: B017, PT011  (each kind fails in its own way)
        run(Block("page", 1, kind, "", code), {})
