"""What the page says of the rebuild: layer by layer, the damage that set the widths, and the sizes that were tried."""

from __future__ import annotations

from typing import Any

from cosep.records import LayerRebuild, RebuildRecord, known
from cosep.reporting.records import Report

TOWARDS = {"output": "its own output", "sum": "the sum it ends in"}


def rebuild_document(report: Report) -> dict[str, Any] | None:
    """The rebuild in words and a row for each layer; None where no weights were solved anew."""
    record = report.rebuild
    if record is None:
        return None
    return {
        "words": rebuild_in_words(record),
        "layers": [
            [
                layer.layer,
                TOWARDS.get(layer.towards, layer.towards),
                known(layer.error_before),
                known(layer.error_after),
                layer.rows,
                layer.columns,
                layer.reason,
            ]
            for layer in record.layers
        ],
    }


def rebuild_in_words(record: RebuildRecord) -> list[str]:
    """Sentences that say how much of the uncut network's work the rebuilt one does."""
    solved = sum(layer.applied for layer in record.layers)
    said = [f"{solved} of {len(record.layers)} layers were solved anew, towards what the uncut network has there."]
    measured = [layer for layer in record.layers if layer.applied and _finite(layer)]
    if measured:
        before, after = (
            sum(getattr(layer, name) for layer in measured) / len(measured) for name in ("error_before", "error_after")
        )
        said.append(
            f"Their mean squared error against it, relative to its variance and on images that no fit has seen, fell "
            f"from {before:.3g} to {after:.3g}."
        )
    refined = [block for block in record.blocks if block.applied]
    if refined:
        before, after = (
            sum(getattr(b, name) for b in refined) / len(refined) for name in ("error_before", "error_after")
        )
        said.append(
            f"Then the layers of {len(refined)} of {len(record.blocks)} blocks were refined together, by gradient "
            f"steps over the same images: the error of what a block gives, measured likewise, fell from {before:.3g} "
            f"to {after:.3g} in the mean."
        )
    if record.divergence is not None and record.divergence_cut is not None:
        said.append(
            f"The outputs' divergence from the uncut network's (KL, temperature 4) is {record.divergence:.3g}; only "
            f"cut, with any BatchNorm measured again, it was {record.divergence_cut:.3g}."
        )
    return [*said, *(f"{note[:1].upper()}{note[1:]}." for note in record.notes)]


def damage_document(report: Report) -> list[list[Any]]:
    """Group, channels, channels kept and damage at half the width, the largest damage first."""
    outcomes = {outcome.group: outcome for outcome in report.groups}
    rows = [
        [group, outcomes[group].width, outcomes[group].kept, harm]
        for group, harm in report.damage.items()
        if group in outcomes
    ]
    return sorted(rows, key=lambda row: (-row[3], row[0]))


def tried_document(report: Report) -> list[list[float]]:
    """Share of the MACs and points lost of every size that was tried, the smallest first."""
    return sorted([each.share, each.drop] for each in report.tried)


def _finite(layer: LayerRebuild) -> bool:
    return known(layer.error_before) is not None and known(layer.error_after) is not None
