"""Disturb `cosep prune` at random moments, and see that the next start finishes alike or refuses and touches nothing.

    python benchmarks/faults.py --times 200 --seed 0 --out DIR

Every fault has a fresh run folder: the command is started and disturbed, or stopped and its folder damaged, and then
started again undisturbed. That start must end with the result of a run that nothing happened to, or with one line of
ours, exit code 1 and every file as it was. The kinds:

SIGKILL, SIGTERM, SIGINT   half of them at a random time, half at a random call that changes a file, also within a write
full disk                  a real one: from a random such call on, the file system (a tmpfs) has no or little room left
file size limit            a real one: RLIMIT_FSIZE, so that a write stops at a random byte
failing call               a random open, write, fsync, rename, unlink ... of the run folder fails with EIO, once or
                           from then on; simulated: Python's functions are replaced by ones that fail
truncated file             of a run killed at a random moment or finished: a random file loses its end
flipped byte               likewise: a random byte of a random file has another value

Faults take turns between the two ways to prune: one group after the other, and all of them together.
A fault that came too late or hindered nothing, so that the command finished as ever, is drawn again and not counted.
After damage to a finished run, `cosep.load`, `cosep report` and `cosep prune` are all asked.
Children are forked from one process that has imported everything, so that a start costs no import.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import errno
import hashlib
import importlib
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
KINDS = (*SIGNALS, "full disk", "file size limit", "failing call", "truncated file", "flipped byte")
DAMAGE = ("truncated file", "flipped byte")
PRIVATE = "COSEP_FAULTS_PRIVATE_MOUNTS"
DISK = 64 << 20
PAGE = 4096
TIMES = ("time", "seconds", "latency", "speedup", "milliseconds")
RESULT = ("model.safetensors", "plan.json", "config.toml")


# Two runs of a second or two that pass through everything: three groups, one after the other, with a recovery each; and
# damage, a search for the amount, all cuts, the rebuild and one recovery. A checkpoint after every step and update.
CHAINS = {
    "one by one": "--order one-by-one --criterion cosep --width-rule knee --schedule per-layer --group-epochs 1",
    "together": "--epochs 1",
}
SEARCH = 2  # steps of the search, so that a run is short


def command(chain: str, weights: Path, run: Path) -> list[str]:
    fast = ["--observe-images", "200", "--rebuild-images", "100", "--share", "0.07", *CHAINS[chain].split()]
    fast += ["--checkpoint-seconds", "0", "--accelerator", "cpu", "--batch-size", "32", "--quiet"]
    return ["prune", "digits_cnn", "--data", "digits", "--weights", str(weights), "--out", str(run), *fast]


@dataclass(frozen=True)
class Child:
    """A process that does what the command would, and a pipe to what it says."""

    process: int
    output: int

    def worked(self, seconds: float) -> None:
        """Wait until it has used so many seconds of a processor, or has ended: a clock that no other program slows."""
        while True:
            state, *fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
            if state == "Z" or (int(fields[10]) + int(fields[11])) / os.sysconf("SC_CLK_TCK") >= seconds:
                return
            time.sleep(0.002)

    def ended(self) -> tuple[int, str]:
        """Wait for it: its exit code, or minus the signal that ended it, and what it said."""
        with open(self.output, "rb") as pipe:
            said = pipe.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1]), said.decode(errors="replace")


def forked(work: Callable[[], object]) -> Child:
    """Do some work in a child process, as the interpreter would do it for a command."""
    sys.stdout.flush()
    reading, writing = os.pipe()  # no file: the limits on files must not concern it
    process = os.fork()
    if process:
        os.close(writing)
        return Child(process, reading)
    code = 1
    try:
        # Whoever started us may have had it ignored; a command in a terminal has not.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(writing, 2)  # where the command speaks
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def cosep_command(arguments: list[str]) -> None:
    from cosep.cli import main

    sys.argv = ["cosep", *arguments]
    main()


# Faults within a process


class Trip:
    """Does something at the n-th call that changes a file of a folder, and, if it is to last, at every one after it."""

    def __init__(self, folder: Path, at: int, act: Callable[[], None], lasting: bool = False) -> None:
        self.folder, self.at, self.act, self.lasting = str(folder), at, act, lasting
        self.calls = self.longest = 0

    def concerns(self, path: Any) -> bool:
        return isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self.folder)

    def step(self) -> None:
        self.calls += 1
        if self.calls == self.at or (self.lasting and self.calls > self.at > 0):
            self.act()

    def install(self) -> None:
        """Watch every way in which Python code changes files; for the rest of this process."""
        for name in ("replace", "rename", "unlink", "rmdir", "mkdir", "truncate"):
            setattr(os, name, partial(self._on_path, getattr(os, name)))
        os.fsync = partial(self._on_descriptor, os.fsync)
        builtins.open = io.open = partial(self._open, io.open)  # type: ignore[assignment]

    def _on_path(self, real: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
        if self.concerns(path):
            self.step()
        return real(path, *args, **kwargs)

    def _on_descriptor(self, real: Callable[[int], None], descriptor: int) -> None:
        self.step()
        real(descriptor)

    def _open(self, real: Callable[..., Any], path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not self.concerns(path) or mode in ("r", "rb"):
            return real(path, mode, *args, **kwargs)
        self.step()
        return _Watched(real(path, mode, *args, **kwargs), self)


class _Watched:
    """A file open for writing, whose writes may be cut in the middle."""

    def __init__(self, file: Any, trip: Trip) -> None:
        self._file, self._trip = file, trip

    def write(self, content: Any) -> int:
        half = len(content) // 2
        self._trip.longest = max(self._trip.longest, len(content))
        self._file.write(content[:half])
        self._file.flush()
        self._trip.step()
        return half + self._file.write(content[half:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._file.close()


def fail() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def limited(size: int) -> None:
    """Let no file grow beyond a size; Python ignores the signal that comes with it, so a write fails with EFBIG."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


# Faults around a process


def mount(disk: Path, size: int, *options: str) -> bool:
    chosen = ",".join((*options, f"size={size}"))
    return subprocess.run(["mount", "-t", "tmpfs", "-o", chosen, "tmpfs", disk], capture_output=True).returncode == 0


def fill(disk: Path, room: int) -> None:
    """Leave a tmpfs so many bytes of room, rounded up to pages; what grows meanwhile may take some of it."""
    for _ in range(20):
        state = os.statvfs(disk)
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        if mount(disk, max(used + room, PAGE), "remount"):
            return


def damage(folder: Path, kind: str, chance: random.Random) -> str | None:
    """Truncate a random file of a folder or give a random byte of it another value; which one, or None without any."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    if not files:
        return None
    path = chance.choice(files)
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content))
    if kind == "truncated file":
        content = content[:at]
    else:
        content[at] ^= chance.randrange(1, 256)
    path.write_bytes(content)
    return f"{path.relative_to(folder)} at byte {at}"


# What is there afterwards


def hashes(folder: Path) -> dict[str, str]:
    """Every file of a folder but the lock, whose presence says nothing."""
    if not folder.exists():
        return {}
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def untimed(value: Any) -> Any:
    """A document without what was measured with a clock."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if k not in TIMES}
    return [untimed(part) for part in value] if isinstance(value, list) else value


def result_of(folder: Path) -> dict[str, Any]:
    """All that two runs of the same command have in common, read from the files without trusting the program."""
    found: dict[str, Any] = {name: (folder / name).read_bytes() for name in RESULT}
    found |= {f"evidence of group {path.stem}": path.read_bytes() for path in folder.glob("evidence/*")}
    found["report"] = untimed(json.loads((folder / "report.json").read_bytes()))
    found["log"] = [untimed(json.loads(line)) for line in (folder / "log.jsonl").read_text().splitlines()]
    found["page ends"] = (folder / "report.html").read_text().rstrip().endswith("</html>")
    found["files"] = sorted(hashes(folder))
    found["loaded"] = loaded_digest(folder)
    return found


def loaded_digest(folder: Path) -> str:
    import cosep
    from cosep.runs.folder import weights_digest

    return weights_digest(cosep.load(folder, partial(cosep.load_model, "digits_cnn", classes=10)))


def differences(folder: Path, wanted: dict[str, Any]) -> list[str]:
    try:
        found = result_of(folder)
    except Exception as error:
        return [f"the result cannot be read: {type(error).__name__}: {error}"]
    return [name for name in sorted(found.keys() | wanted.keys()) if found.get(name) != wanted.get(name)]


def complaint(code: int, text: str) -> str:
    """What is wrong with the way a command ended that did not finish: "" for one line of ours and exit code 1."""
    if "Traceback" in text or "Exception ignored" in text:
        return "a traceback"
    lines = text.strip().splitlines()
    if code != 1 or len(lines) != 1 or not lines[0].startswith("cosep: "):
        return f"exit code {code} and {len(lines)} lines"
    return ""


class Bench:
    """Folders, the undisturbed run of one chain, and one fault after another."""

    def __init__(self, out: Path, chain: str, seed: int) -> None:
        self.out, self.chain, self.chance = out / chain.replace(" ", "-"), chain, random.Random(seed)
        self.weights, self.disk = out / "base.safetensors", out / "disk"

    def command(self, run: Path) -> list[str]:
        return command(self.chain, self.weights, run)

    def prepare(self) -> None:
        self.whole = self.out / "undisturbed" / "run"
        self.warm_up()
        shutil.rmtree(self.whole.parent, ignore_errors=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        code, said = forked(partial(cosep_command, self.command(self.whole))).ended()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if code:
            raise SystemExit(f"the undisturbed run failed:\n{said}")
        self.wanted = result_of(self.whole)
        self.page = (self.whole / "report.html").read_bytes()
        self.calls, self.largest = self.counted()

    def warm_up(self) -> None:
        """Import here whatever a run imports late, so that children find it there.

        The run itself is a child's: torch's builds for GPUs refuse to compute gradients in the child of a process that
        has computed some.
        """
        run = self.out / "warm" / "run"
        shutil.rmtree(run.parent, ignore_errors=True)
        names = self.out / "imported.json"

        def noted() -> None:
            with contextlib.suppress(SystemExit):  # the end of every command
                cosep_command(self.command(run))
            names.write_text(json.dumps(list(sys.modules)))

        code, said = forked(noted).ended()
        if code:
            raise SystemExit(f"the first run failed:\n{said}")
        for name in json.loads(names.read_text()):
            with contextlib.suppress(Exception):  # some are made while others are imported
                importlib.import_module(name)

    def counted(self) -> tuple[int, int]:
        """How many calls of an undisturbed run change its folder, and how many bytes its longest write has."""
        run = self.out / "counted" / "run"
        shutil.rmtree(run.parent, ignore_errors=True)

        def counting() -> None:
            trip = Trip(run, 0, lambda: None)
            trip.install()
            try:
                cosep_command(self.command(run))
            finally:
                os.write(2, f" {trip.calls} {trip.longest}".encode())

        calls, longest = forked(counting).ended()[1].split()[-2:]
        return int(calls), int(longest)

    def fault(self, number: int, kind: str) -> dict[str, Any]:
        """One fault and what came of it."""
        place = self.disk / str(number)
        run = place / "run"
        place.mkdir()
        finished = kind in DAMAGE and self.chance.random() < 1 / 3
        if finished:
            shutil.copytree(self.whole, run)
            record = {
                "kind": kind,
                "chain": self.chain,
                "of": "a finished run",
                "detail": damage(run, kind, self.chance),
            }
            record |= self.readers(run)
        else:
            record = {"kind": kind, "chain": self.chain, "of": "a run", **self.disturbed(run, kind)}
            record |= self.started_again(run)
        record["number"] = number
        if record["outcome"] not in ("same", "refused"):
            shutil.copytree(place, self.out.parent / "failures" / str(number), dirs_exist_ok=True)
        shutil.rmtree(place)
        return record

    def disturbed(self, run: Path, kind: str) -> dict[str, Any]:
        """Start the command in an empty folder and disturb it, or stop it and damage what it left."""
        work = partial(cosep_command, self.command(run))
        if kind in DAMAGE:
            detail = None
            while detail is None:
                shutil.rmtree(run, ignore_errors=True)
                self.signalled(run, work, number=signal.SIGKILL)
                detail = damage(run, kind, self.chance)
            return {"detail": detail}
        if kind in SIGNALS:
            meet = partial(self.signalled, number=signal.Signals[kind])
            allowed = {0, -signal.Signals[kind], 130 if kind == "SIGINT" else 0}
        else:
            meet = getattr(self, kind.replace(" ", "_"))
            allowed = {0, 1}
        while True:
            detail, code, text = meet(run, work)
            if code != 0 or differences(run, self.wanted):
                break
            shutil.rmtree(run)
        bad = "a traceback" if "Traceback" in text else "" if code in allowed else f"exit code {code}"
        if code == 1 and kind not in SIGNALS:
            bad = complaint(code, text)
        return {"detail": detail, "code": code, "said": text.strip()[-2000:], "disturbed_badly": bad}

    def signalled(self, run: Path, work: Callable[[], None], *, number: signal.Signals) -> tuple[str, int, str]:
        if self.chance.random() < 0.5:
            wait = self.chance.uniform(0, self.seconds)
            child = forked(work)
            child.worked(wait)
            os.kill(child.process, number)
            return f"after {wait:.3f} s", *child.ended()
        at = self.chance.randint(1, self.calls)

        def tripped() -> None:
            Trip(run, at, lambda: os.kill(os.getpid(), number)).install()
            work()

        return f"at call {at} of {self.calls}", *forked(tripped).ended()

    def full_disk(self, run: Path, work: Callable[[], None]) -> tuple[str, int, str]:
        at, some = self.chance.randint(1, self.calls), round(self.largest ** self.chance.random())
        room = self.chance.choice((0, some))

        def tripped() -> None:
            Trip(run, at, partial(fill, self.disk, room)).install()
            work()

        end = forked(tripped).ended()
        mount(self.disk, DISK, "remount")
        return f"{room} bytes left at call {at} of {self.calls}", *end

    def file_size_limit(self, run: Path, work: Callable[[], None]) -> tuple[str, int, str]:
        # Files are of very different sizes: a limit that is uniform in its logarithm meets all of them.
        size = round(self.largest ** self.chance.random() * 1.2)

        def narrow() -> None:
            limited(size)
            work()

        return f"no file beyond {size} bytes", *forked(narrow).ended()

    def failing_call(self, run: Path, work: Callable[[], None]) -> tuple[str, int, str]:
        at, lasting = self.chance.randint(1, self.calls), self.chance.random() < 0.5

        def tripped() -> None:
            Trip(run, at, fail, lasting).install()
            work()

        return f"call {at} of {self.calls}{' and all after it' if lasting else ''}", *forked(tripped).ended()

    def started_again(self, run: Path) -> dict[str, Any]:
        """The same command, undisturbed: it must finish with the same result, or refuse and change nothing."""
        before = hashes(run)
        code, text = forked(partial(cosep_command, self.command(run))).ended()
        if code == 0:
            wrong = differences(run, self.wanted)
            return {"outcome": "same" if not wrong else f"differs in {', '.join(wrong)}"}
        bad = complaint(code, text) or ("files changed" if hashes(run) != before else "")
        return {"outcome": f"refused badly: {bad}" if bad else "refused", "message": text.strip()[-2000:]}

    def readers(self, run: Path) -> dict[str, Any]:
        """A damaged finished run is loaded, reported and started again; the worst outcome, and each one's."""
        before = hashes(run)
        outcomes: dict[str, str] = {}
        messages: dict[str, str] = {}

        def load() -> None:
            from cosep.errors import CosepError

            try:
                os.write(2, loaded_digest(run).encode())
            except CosepError as error:
                raise SystemExit(bool(os.write(2, f"cosep: {error}\n".encode()))) from None

        ways = {"load": load, "report": partial(cosep_command, ["report", str(run)])}
        for way, work in ways.items():
            code, text = forked(work).ended()
            if code == 0:
                right = text == self.wanted["loaded"] if way == "load" else self.right_page(run)
                outcomes[way] = "same" if right else "differs"
            else:
                bad = complaint(code, text) or ("files changed" if hashes(run) != before else "")
                outcomes[way], messages[way] = f"refused badly: {bad}" if bad else "refused", text.strip()[-2000:]
        again = self.started_again(run)
        outcomes["prune"], messages["prune"] = again["outcome"], again.get("message", "")
        failed = [f"{way} {outcome}" for way, outcome in outcomes.items() if outcome not in ("same", "refused")]
        refused = "refused" if "refused" in outcomes.values() else "same"
        return {"outcome": "; ".join(failed) or refused, "ways": outcomes, "message": messages}

    def right_page(self, run: Path) -> bool:
        return (run / "report.html").read_bytes() == self.page


def train_base(path: Path) -> None:
    """A network worth pruning: a few epochs on the embedded digits."""
    from safetensors.torch import save_model

    from cosep.config import DeviceConfig
    from cosep.data import load_data
    from cosep.recovery.training import TrainConfig, train
    from cosep.runs.fabric import launched
    from cosep.zoo import load_model

    data = load_data("digits", batch_size=64)
    build = partial(load_model, "digits_cnn", classes=10)
    net = train(build, data.train, TrainConfig(epochs=4), fabric=launched(DeviceConfig(accelerator="cpu")))
    save_model(net, str(path))


def table(records: list[dict[str, Any]]) -> Iterator[str]:
    """Counts of each kind, as Markdown."""
    yield "| fault | times | finished with the same result | refused, nothing changed | wrong |"
    yield "|---|---:|---:|---:|---:|"
    rows = [(kind, [r for r in records if r["kind"] == kind]) for kind in KINDS]
    for name, of_kind in [*rows, ("all", records)]:
        if of_kind:
            counts = Counter(r["outcome"] if r["outcome"] in ("same", "refused") else "wrong" for r in of_kind)
            wrong = sum(is_wrong(r) for r in of_kind)
            yield f"| {name} | {len(of_kind)} | {counts['same']} | {counts['refused']} | {wrong} |"


def is_wrong(record: dict[str, Any]) -> bool:
    return record["outcome"] not in ("same", "refused") or bool(record.get("disturbed_badly"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="scratch folder; faults.json in it has every fault")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--weights", type=Path, help="of a digits_cnn to prune; else one is trained, for 4 epochs")
    given = parser.parse_args()
    if PRIVATE not in os.environ and subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0:
        # Its own mounts, so that a full disk can be a real one and nobody else sees it.
        os.execvpe("unshare", ["unshare", "-rm", sys.executable, *sys.argv], {**os.environ, PRIVATE: "1"})
    import torch

    import cosep.cli.app
    import cosep.pipeline
    import cosep.reporting.page  # noqa: F401
    from cosep.runs import search

    torch.set_num_threads(1)
    out = given.out.resolve()
    shutil.rmtree(out / "failures", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    search.STEPS = SEARCH
    shutil.rmtree(out / "disk", ignore_errors=True)
    (out / "disk").mkdir()
    real_disk = PRIVATE in os.environ and mount(out / "disk", DISK)
    if given.weights is None:
        train_base(out / "base.safetensors")
    else:
        shutil.copy(given.weights, out / "base.safetensors")
    benches = [Bench(out, chain, given.seed + number) for number, chain in enumerate(CHAINS)]
    for bench in benches:
        bench.prepare()
    kinds = [kind for kind in given.kinds if kind != "full disk" or real_disk]
    records = []
    for number in range(given.times):
        record = benches[number // len(kinds) % len(benches)].fault(number, kinds[number % len(kinds)])
        records.append(record)
        if is_wrong(record):
            print(json.dumps(record), flush=True)
    print("\n".join(table(records)))
    wrong = sum(map(is_wrong, records))
    print(f"{len(records)} faults, {wrong} wrong")
    facts: dict[str, Any] = {
        "times": given.times,
        "seed": given.seed,
        "real_full_disk": real_disk,
        "wrong": wrong,
        "chains": {},
    }
    for bench in benches:
        print(f"{bench.chain}: undisturbed {bench.seconds:.2f} s of a processor and {bench.calls} calls")
        facts["chains"][bench.chain] = {"seconds_undisturbed": round(bench.seconds, 3), "calls": bench.calls}
    text = json.dumps({**facts, "faults": records}, indent=1).replace(str(out), "DIR")
    (out / "faults.json").write_text(text + "\n")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
