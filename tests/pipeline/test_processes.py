import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_model

import cosep
from cosep.data import load_data
from cosep.storage.artifacts import read_documents
from tests.pipeline import two_processes

SCRIPT = Path(two_processes.__file__)


def test_two_processes_find_the_statistics_and_the_plan_of_one(base, tmp_path):
    weights = tmp_path / "base.safetensors"
    save_model(base, str(weights))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*command, SCRIPT, weights, tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = load_file(tmp_path / "found.safetensors")

    data = load_data("digits", batch_size=64, eval_batch_size=100)
    alone = cosep.observe(base, data.calibration, two_processes.LAYERS, classes=10)
    for name, moments in alone.items():
        for part in ("mean", "scatter"):
            torch.testing.assert_close(found[f"{name}/{part}"], getattr(moments, part), rtol=1e-12, atol=1e-12)
    result = cosep.prune(
        base, data.calibration, None, config=two_processes.settings(), train=data.train, holdout=data.holdout
    )
    plan, report = read_documents(tmp_path / "run")
    assert [g.kept for g in plan.groups] == [g.kept for g in result.plan.groups]
    assert plan.layout == result.plan.layout
    assert report["recovery"]["updates"] == result.report.recovery.updates
    # What was rebuilt is what one process makes of the same images, up to rounding.
    for what, config in (("rebuilt", two_processes.untrained()), ("few", two_processes.few_images())):
        alone = cosep.prune(base, data.calibration, None, config=config, holdout=data.holdout).model
        for name, tensor in load_file(tmp_path / f"{what}.safetensors").items():
            torch.testing.assert_close(tensor, alone.state_dict()[name], rtol=1e-2, atol=1e-3)
    # Steps down a slope spread rounding over the weights; what the network computes is the same.
    alone = cosep.prune(base, data.calibration, None, config=two_processes.untrained(refine=1), holdout=data.holdout)
    assert any(block.applied for block in alone.report.rebuild.blocks)
    scores = []
    for weights in (None, load_file(tmp_path / "refined.safetensors")):
        alone.model.load_state_dict(weights or alone.model.state_dict())
        with torch.no_grad():
            scores.append(torch.cat([alone.model.eval()(x) for x, _ in data.holdout]))
    assert float((scores[0] - scores[1]).std()) < 0.02 * float(scores[0].std())
    # Where one process finds that the network cannot be run in steps, both go layer by layer, to the same weights.
    made = [json.loads((tmp_path / f"counting-{rank}.json").read_text()) for rank in (0, 1)]
    assert all("layer by layer" in each["notes"][0] for each in made)
    assert "another process found that out" in made[0]["notes"][0]
    assert made[0]["digest"] == made[1]["digest"]
    # What one would decide otherwise, by images with other labels, is decided by the first one.
    decided = [json.loads((tmp_path / f"undecided-{rank}.json").read_text()) for rank in (0, 1)]
    assert decided[0] == decided[1]
    assert len(decided[0]["tried"]) == 2
    # Both processes ended with the same weights: their updates were shared.
    assert len(set(found["digests"].flatten().tolist())) == 1
    # A thread of the process group that lived on could abort its process while the interpreter shuts down.
    if two_processes.TASKS.exists():
        for rank in (0, 1):
            threads = (tmp_path / f"threads-{rank}.txt").read_text()
            assert threads
            assert "gloo" not in threads
