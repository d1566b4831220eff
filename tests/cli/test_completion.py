"""What a shell is told when it asks how a word goes on, and how fast."""

import json
import os
import resource
import subprocess
import sys
from importlib.resources import files

import pytest

from cosep.cli.completion import completions, table
from cosep.zoo import model_names

TABLE = json.loads((files("cosep.cli") / "completions.json").read_text(encoding="utf-8"))


def asked(line, shell="bash", **more):
    """What `cosep` answers to a shell whose line is this, and the processor time that it takes for it."""
    words = line.split(" ")
    env = {"_COSEP_COMPLETE": f"complete_{shell}", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    env |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1], **more}
    before = _seconds_of_children()
    command = [sys.executable, "-c", "from cosep.cli import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    return done, _seconds_of_children() - before


def _seconds_of_children():
    """Processor time, since a clock on the wall also counts what else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_table_is_that_of_the_commands():
    assert table() == TABLE, "write it anew: python -m cosep.cli.completion"


def test_models_are_completed_by_name_within_a_third_of_a_second():
    names = sorted(name for name in model_names() if name.startswith("resnet5"))
    took = []
    for _ in range(5):  # the first may have to read its files from the disk
        done, seconds = asked("cosep prune resnet5")
        assert sorted(done.stdout.split()) == names
        took.append(seconds)
        if seconds < 0.3:
            break
    assert min(took) < 0.3


def test_no_torch_is_imported_for_an_answer():
    code = "import sys; from cosep.cli import main; main(); assert not {'torch', 'typer'} & set(sys.modules)"
    env = {**os.environ, "_COSEP_COMPLETE": "complete_bash", "COMP_WORDS": "cosep pr", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.split() == ["prune"]


@pytest.mark.parametrize(
    ("words", "begun", "found"),
    [
        ([], "in", ["inspect"]),
        ([], "--v", ["--version"]),
        (["prune"], "digits", ["digits_cnn"]),
        (["prune", "--quiet"], "digits", ["digits_cnn"]),  # a flag without a value
        (["prune", "--weights", "net.pt"], "digits", ["digits_cnn"]),  # the value of one is no argument
        (["prune", "resnet20"], "--max-m", ["--max-macs"]),
        (["prune", "resnet20", "--data"], "cifar1", ["cifar10:", "cifar100:"]),
        (["prune", "resnet20", "--scope"], "", ["interior", "all"]),
        (["prune", "resnet20", "--criterion"], "elim", ["elimination"]),
        (["prune", "resnet20", "--out"], "ru", []),  # the shell completes files
        (["prune"], "my_net.py", []),
        (["report"], "", []),
    ],
)
def test_what_may_come_next(words, begun, found):
    assert completions(words, begun, TABLE) == found


def test_every_shell_gets_its_own_form():
    assert asked("cosep prune vgg1", "zsh")[0].stdout == '_arguments \'*: :(("vgg16"\n"vgg19"))\'\n'
    assert asked("cosep prune my_net", "zsh")[0].stdout == "_files\n"
    assert asked("cosep prune vgg1", "fish", _TYPER_COMPLETE_FISH_ACTION="get-args")[0].stdout.split() == [
        "vgg16",
        "vgg19",
    ]
    codes = [
        asked(line, "fish", _TYPER_COMPLETE_FISH_ACTION="is-args")[0].returncode
        for line in ("cosep pr", "cosep report r")
    ]
    assert codes == [0, 1]
    assert asked("cosep prune vgg1", "powershell")[0].stdout.splitlines() == ["vgg16::: ", "vgg19::: "]
