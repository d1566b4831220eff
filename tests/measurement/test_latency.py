import json
import statistics
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cosep.errors import ConfigError
from cosep.measurement import Measurement, compare, latency, measure


class Sleeper(nn.Module):
    """A model that takes the next of the given milliseconds of a clock of our own."""

    calls: list = []  # noqa: RUF012  (shared by all copies on purpose)
    now = 0.0

    def __init__(self, name, *milliseconds):
        super().__init__()
        self.name, self.milliseconds, self.turn = name, milliseconds, 0

    def forward(self, x):
        Sleeper.calls.append(self.name)
        Sleeper.now += self.milliseconds[self.turn % len(self.milliseconds)] / 1e3
        self.turn += 1
        return x


@pytest.fixture
def clock(monkeypatch):
    Sleeper.calls.clear()
    module = sys.modules["cosep.measurement.latency"]  # its function of the same name hides it in the package
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: Sleeper.now))


@pytest.mark.usefixtures("clock")
def test_the_median_the_spread_and_the_speedup_are_those_of_the_clock():
    # Round 2 is disturbed: both take five times as long, which must not show in the median nor in any ratio.
    models = {"before": Sleeper("a", 8, 40, 8), "after": Sleeper("b", 2, 10, 2)}
    times = latency(models, torch.ones(4, 3), repeats=3, warmup=0)
    assert times["before"].median_ms == pytest.approx(8)
    assert times["after"].median_ms == pytest.approx(2)
    assert times["after"].p10_ms == pytest.approx(2)
    assert times["after"].p90_ms == pytest.approx(2 + 0.8 * 8)
    assert [times["after"].speedup_p10, times["after"].speedup, times["after"].speedup_p90] == pytest.approx([4] * 3)
    assert times["before"].speedup == 1
    assert times["after"].throughput == pytest.approx(2000)


@pytest.mark.usefixtures("clock")
def test_models_take_turns_after_the_warmup():
    latency({"a": Sleeper("a", 0), "b": Sleeper("b", 0)}, torch.ones(1, 3), repeats=4, warmup=2)
    assert "".join(Sleeper.calls) == "aabb" + "abbaabba"


@pytest.mark.usefixtures("clock")
def test_the_mean_is_over_all_times_and_the_deviation_over_the_seeds():
    # Two rounds with each of three seeds: the seeds' means are 2, 4 and 9 ms.
    times = latency({"net": Sleeper("a", 1, 3, 3, 5, 9, 9)}, torch.ones(1, 3), repeats=2, warmup=0, seeds=3)["net"]
    assert times.mean_ms == pytest.approx(5)
    assert times.sd_ms == pytest.approx(statistics.stdev([2, 4, 9]))
    assert (times.seeds, times.repeats) == (3, 2)
    alone = latency({"net": Sleeper("a", 1, 3)}, torch.ones(1, 3), repeats=2, warmup=0)["net"]
    assert (alone.mean_ms, alone.sd_ms) == pytest.approx((2, statistics.stdev([1, 3])))


def test_each_seed_has_an_input_of_its_own_of_the_examples_shape():
    seen = []

    class Watcher(nn.Module):
        def forward(self, x):
            seen.append(x)
            return x

    latency({"net": Watcher()}, torch.ones(2, 3), repeats=2, warmup=0, seeds=3)
    assert [tuple(x.shape) for x in seen] == [(2, 3)] * 6
    assert torch.equal(seen[0], torch.ones(2, 3))
    assert torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[2], seen[4])


def test_on_a_gpu_the_time_is_that_between_two_events_of_an_idle_device(monkeypatch):
    """A GPU of our own: its stream does the work when it is waited for, and events note the stream's time."""
    log, stream = [], SimpleNamespace(now=0.0, waiting=[])

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            stream.waiting.append((0.0, self))

        def synchronize(self):
            log.append("wait")
            for cost, event in stream.waiting:
                stream.now += cost
                if event is not None:
                    event.at = stream.now
            stream.waiting.clear()

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append(f"idle {device}"))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    call = sys.modules["cosep.measurement.latency"]._Call(
        lambda: stream.waiting.append((0.25, None)), torch.device("cuda:1")
    )
    assert call.seconds() == pytest.approx(0.25)  # though the call itself returned at once
    assert log == ["idle cuda:1", "wait"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_timed_to_the_end_of_its_work():
    net = nn.Linear(2048, 2048).cuda()
    small, large = (latency({"net": net}, torch.ones(n, 2048), repeats=20)["net"] for n in (1, 2**15))
    assert (large.device, large.mean_ms > 2 * small.mean_ms) == ("cuda:0", True)


def test_conditions_are_named():
    net = nn.Conv2d(3, 4, 3)
    times = latency({"net": net}, torch.ones(2, 3, 8, 8), repeats=2, warmup=1, threads=1, memory_format="channels_last")
    found = times["net"]
    assert (found.batch, found.threads, found.memory_format, found.device, found.runtime, found.repeats) == (
        2, 1, "channels_last", "cpu", "torch", 2,
    )  # fmt: skip
    assert "a batch of 2, 1 thread, channels_last, torch on cpu" in str(found)


def test_the_callers_models_and_threads_are_left_alone():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    before, threads = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_num_threads()
    latency({"net": net}, torch.ones(2, 3, 8, 8), repeats=2, threads=1, memory_format="channels_last")
    assert torch.get_num_threads() == threads
    assert net.training
    assert net[0].weight.is_contiguous()
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_threads_are_given_back_after_a_failure():
    threads = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        latency({"net": nn.Linear(3, 2)}, torch.ones(2, 4), threads=threads + 1)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repeats": 0}, "repeats is 0; it must be at least 1"),
        ({"warmup": -1}, "warmup is -1; it must be at least 0"),
        ({"threads": 0}, "threads is 0; it must be at least 1"),
        ({"memory_format": "nhwc"}, "memory_format is 'nhwc'; it must be one of 'contiguous', 'channels_last'"),
        ({"memory_format": "channels_last"}, r"needs \(batch, channels, height, width\)"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        latency({"net": nn.Linear(3, 2)}, torch.ones(2, 3), **settings)


def test_nothing_to_time_is_refused():
    with pytest.raises(ConfigError, match="no model"):
        latency({}, torch.ones(2, 3))


def test_a_measurement_survives_a_json_file():
    net = nn.Linear(3, 2)
    times = latency({"net": net}, torch.ones(2, 3), repeats=2)
    found = Measurement(macs=6, parameters=8, bytes=32, accuracy=0.5, latency=times["net"])
    assert Measurement.from_document(json.loads(json.dumps(found.to_document()))) == found


def test_measure_gathers_the_figures_of_a_model():
    batches = [(torch.eye(2), torch.tensor([0, 1]))]
    net = nn.Linear(2, 2, bias=False)
    nn.init.eye_(net.weight)
    assert measure(net, torch.ones(1, 2), batches) == Measurement(
        macs=4, parameters=4, bytes=16, accuracy=1.0, by_class=(1.0, 1.0)
    )
    assert measure(net, torch.ones(1, 2)).accuracy is None


def test_a_comparison_gives_what_is_left_and_only_what_was_measured():
    before = Measurement(macs=100, parameters=50, bytes=200, accuracy=0.75)
    after = Measurement(macs=25, parameters=10, bytes=100, accuracy=0.5)
    found = compare(before, after)
    assert (found.macs, found.parameters, found.bytes, found.accuracy) == (0.25, 0.2, 0.5, -0.25)
    assert found.speedup is None
    assert compare(Measurement(macs=0, parameters=0, bytes=0), after).macs is None


@pytest.mark.usefixtures("clock")
def test_latencies_under_other_conditions_are_not_compared():
    nets = {"a": Sleeper("a", 4), "b": Sleeper("b", 1)}
    single, batch = latency(nets, torch.ones(1, 3), repeats=3), latency(nets, torch.ones(2, 3), repeats=3)
    figures = {"macs": 1, "parameters": 1, "bytes": 1}
    assert (
        compare(Measurement(**figures, latency=single["a"]), Measurement(**figures, latency=batch["b"])).speedup is None
    )
    paired = compare(Measurement(**figures, latency=single["a"]), Measurement(**figures, latency=single["b"]))
    assert paired.speedup == pytest.approx(4)
