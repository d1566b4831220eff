"""Figures as files, and the two measures of agreement against scipy and by hand."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import markdown
import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from cosep.config import preset, replace_settings
from cosep.errors import ConfigError
from cosep.reporting.agreement import Agreement, Density, jaccard, spearman, thirds
from cosep.reporting.figures import STYLE, _neighbour_map, write_figures
from cosep.reporting.folders import agreements_of, read_run, read_runs
from cosep.reporting.literature import networks, published
from tests.reporting.made import record, without_evidence


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Fewer pixels: what is drawn does not hang on them."""
    monkeypatch.setitem(STYLE, "savefig.dpi", 60)


DENSITY = Density(3, (0, 1), 0.0, 4.0, ((1, 2, 3, 4), (4, 3, 2, 1)), (1.0, 2.0), (0.5, 0.5), 0.6, 0.7)


def agreement(kept, also, scores=(1.0, 2.0, 3.0)):
    return Agreement("g", tuple(scores), tuple(scores), tuple(kept), tuple(also), DENSITY)


def test_spearman_is_scipys_also_with_ties():
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 9, 60), generator.integers(0, 9, 60)
    assert spearman(a.tolist(), b.tolist()) == pytest.approx(spearmanr(a, b).statistic)
    assert np.isnan(spearman([1.0, 1.0], [1.0, 2.0]))


def test_jaccard_counts_what_both_keep_of_what_either_keeps():
    found = [agreement((0, 1, 2), (1, 2, 3)), agreement((0,), (0,))]
    assert jaccard(each.overlap for each in found) == pytest.approx(3 / 5)


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (2, [1, 1]), (3, [1, 1, 1]), (9, [3, 3, 3])])
def test_groups_are_split_into_early_middle_and_late(count, sizes):
    assert [len(part) for part in thirds([agreement((0,), (0,))] * count).values()] == sizes


def test_all_figures_of_a_real_run_are_drawn_twice_and_said_in_words(real_run, trained, tmp_path):
    data, base = trained
    run = read_run(real_run)
    config = replace_settings(preset(), {"observe": {"images": 300}})
    agreements = agreements_of(base, data.calibration, config, [plan.group for plan in run.plan.groups])
    assert [a.group for a in agreements] == [plan.group for plan in run.plan.groups]
    assert all(0 <= a.density.gaussian <= 2 and sum(map(sum, a.density.counts)) > 20 for a in agreements)
    paths = write_figures([run], tmp_path, agreements=agreements)
    names = {"retention", "separability-matrix", "projection", "gaussian-histogram", "densities"}
    assert {path.name for path in paths} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")} | {
        "figures.md"
    }
    for path in paths:
        assert path.stat().st_size > (3_000 if path.suffix != ".md" else 500), path
    text = (tmp_path / "figures.md").read_text()
    assert re.search(r"Spearman 0\.\d{3} over 160 channels; Jaccard early", text)
    assert re.search(r"\d+ of 160 channels kept", text)


def test_the_projection_may_be_t_sne_which_keeps_neighbours_together_and_is_the_same_every_time(real_run, tmp_path):
    run = read_run(real_run)
    _, plan, evidence = next(found for found in run.groups() if found[2])
    near = _neighbour_map(evidence)
    assert near.shape == (plan.width, 2)
    assert np.array_equal(near, _neighbour_map(evidence))
    # Three kinds of channels, ten of each, in a random order: each one's five neighbours are of its own kind.
    chance = torch.Generator().manual_seed(0)
    kinds = torch.randperm(30, generator=chance) % 3
    profiles = torch.eye(3)[kinds] + 0.05 * torch.randn(30, 3, generator=chance)
    places = _neighbour_map(replace(evidence, profiles=profiles.half()))
    apart = np.linalg.norm(places[:, None] - places, axis=2)
    assert (kinds.numpy()[apart.argsort(axis=1)[:, 1:6]] == kinds.numpy()[:, None]).all()
    write_figures([run], tmp_path, projection="tsne")
    assert "placed by t-SNE" in (tmp_path / "figures.md").read_text()


def test_the_tables_of_the_paper_are_all_there_and_agree_with_its_summary():
    summary = json.loads((Path(__file__).parents[2] / "experiments" / "paper.json").read_text())["headline"]
    tables = networks()
    assert sum(map(len, tables.values())) == 49
    for row in summary:
        table = {found.method: found for found in tables.get(f"{row['dataset']}/{row['model']}", ())}
        if table:
            own, random = table["CoSeP"], table["Random Pruning"]
            assert (own.base, own.pruned, own.speedup, own.std, own.automatic) == (
                row["base"], row["cosep"], row["speedup"], row["cosep_std"], True,
            )  # fmt: skip
            assert (random.pruned, random.speedup, random.automatic) == (row["random"], row["speedup"], False)
            assert all(other.base - 4 < other.pruned < other.base + 1 for other in table.values())
    assert published("vgg19", "cifar100:DIR") == ()


def test_a_run_of_one_of_the_papers_networks_stands_among_the_published_ones(tmp_path):
    run = record()
    write_figures([replace(run, about={"model": "resnet56", "data": "cifar10:DIR"})], tmp_path)
    assert (tmp_path / "among-published.svg").exists()
    text = (tmp_path / "figures.md").read_text()
    gain, left = 100 * run.report.change.accuracy, 100 * run.report.change.macs
    assert f"{run.name}: {gain:+.2f} points at {left:.1f} % of the MACs" in text
    assert "HRank: -0.09 at 50.0 %" in text
    write_figures([run], tmp_path / "other")
    assert not (tmp_path / "other" / "among-published.svg").exists()


def test_a_name_stays_a_name_whatever_markdown_or_html_it_would_be(tmp_path):
    name = "<script>x</script> *a* _b_ `c` [d](http://e) ![f](g) &lt;h \\i # |j|"
    run = replace(record(), name=name, about={"model": "resnet56", "data": "cifar10:DIR"})
    write_figures([run], tmp_path)
    seen = {"tags": set(), "text": ""}

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            seen["tags"].add(tag)

        def handle_data(self, data):
            seen["text"] += data

    Reader().feed(markdown.markdown((tmp_path / "figures.md").read_text()))
    assert seen["tags"] == {"h1", "h2", "p", "img"}
    assert name in seen["text"]


def test_runs_with_other_m_make_the_figure_of_accuracy_against_m(tmp_path):
    select = {"degree": 3, "representative": "weighted"}
    few = record(name="few", settings={"seed": 0, "select": select, "profile": {"max_classes": 2}})
    write_figures([record(), few], tmp_path)
    assert (tmp_path / "accuracy-against-m.svg").exists()
    assert "M = 2: 91.00 %" in (tmp_path / "figures.md").read_text()


def test_names_with_formulas_and_foreign_letters_are_drawn_into_the_same_files_every_time(tmp_path):
    name = "$\\frac{1}$ <b> \u05e9\u05dc\u05d5\u05dd \u4f60\u597d"
    run = record(class_names=[name] * 4, group_names={0: name}, name=name)
    one, other = (write_figures([run], tmp_path / place) for place in "ab")
    assert "&lt;b&gt;" in one[-1].read_text()  # as text, not as markup
    assert "<b>" not in one[-1].read_text()
    for a, b in zip(one, other, strict=True):
        assert a.read_bytes() == b.read_bytes(), a.name


def test_a_group_without_evidence_cannot_be_asked_for(tmp_path):
    with pytest.raises(ConfigError, match=r"no evidence of a group 'nosuch'\. Groups with evidence: layer0"):
        write_figures([record()], tmp_path, group="nosuch")
    paths = write_figures([without_evidence(record())], tmp_path)
    assert [path.stem for path in paths] == ["retention", "retention", "figures"]


def test_runs_of_the_same_name_are_told_apart(real_run, tmp_path):
    shutil.copytree(real_run, tmp_path / "other" / real_run.name)
    names = [run.name for run in read_runs([real_run, tmp_path / "other" / real_run.name])]
    assert names[1] == f"other/{real_run.name}"
    assert names[0] != names[1]
