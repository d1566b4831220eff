"""What must be known of each kind of layer. A new kind is a file here and a line in the table, or `register`."""

from cosep.layers.attention import written_out
from cosep.layers.bare import bare_axis, forget_computed, resize_bare
from cosep.layers.kind import Channelwise, LayerKind, MixingKind, TensorCut
from cosep.layers.narrow import INNER, TakesPlain, TellsWidth
from cosep.layers.normalisation import is_batchnorm
from cosep.layers.numbering import places_now
from cosep.layers.numbers import HEADS, INNER_WIDTHS, number_of, set_number
from cosep.layers.table import (
    channel_axis,
    cuttable,
    holder,
    kind_of,
    mixing,
    mixing_kind_of,
    register,
    side_size,
)

__all__ = [
    "HEADS",
    "INNER",
    "INNER_WIDTHS",
    "Channelwise",
    "LayerKind",
    "MixingKind",
    "TakesPlain",
    "TellsWidth",
    "TensorCut",
    "bare_axis",
    "channel_axis",
    "cuttable",
    "forget_computed",
    "holder",
    "is_batchnorm",
    "kind_of",
    "mixing",
    "mixing_kind_of",
    "number_of",
    "places_now",
    "register",
    "resize_bare",
    "set_number",
    "side_size",
    "written_out",
]
