"""Which of torch's operations do what to channels, by their ATen names; what stands in no table is not understood."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


POINTWISE = _words(
    """
    add sub rsub mul div relu relu6 hardtanh silu gelu sigmoid hardsigmoid hardswish tanh leaky_relu elu celu selu
    softplus mish clamp clamp_min clamp_max exp log log1p expm1 pow sqrt rsqrt abs neg square reciprocal erf sin cos
    minimum maximum where masked_fill threshold log_sigmoid log_sigmoid_forward addcmul addcdiv lerp sign floor ceil
    round hardshrink softshrink _prelu_kernel prelu rrelu_with_noise eq ne gt ge lt le logical_and logical_or
    logical_not bitwise_not isnan isfinite nan_to_num native_dropout bernoulli rand_like randn_like zeros_like
    ones_like full_like empty_like fill zero _to_copy to clone contiguous alias detach lift_fresh dropout
    feature_dropout logit softsign xlogy
    """
)
PRODUCTS = frozenset({"mul", "div", "where", "masked_fill", "_prelu_kernel", "prelu", "fill", "zero"})
IDENTITY = frozenset(
    {"_to_copy", "to", "clone", "contiguous", "alias", "detach", "lift_fresh", "_conj", "resolve_conj"}
)
RESHAPES = frozenset(
    {"view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze", "unsqueeze", "flatten", "unflatten"}
)
MOVES = frozenset({"permute", "transpose", "t", "flip", "roll", "repeat", "channel_shuffle", "native_channel_shuffle"})
SPATIAL = _words(
    """
    max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d
    adaptive_max_pool3d upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
    replication_pad2d replication_pad3d max_unpool2d grid_sampler_2d fractional_max_pool2d
    """
)
REDUCTIONS = _words(
    """
    mean sum amax amin max min var std var_mean std_mean prod logsumexp linalg_vector_norm norm argmax argmin any all
    _softmax _log_softmax _safe_softmax softmax log_softmax cumsum
    """
)
KEEPS_SHAPE = frozenset({"_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "cumsum"})
BATCH_NORMS = _words(
    """
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm
    miopen_batch_norm batch_norm _batch_norm_with_update _batch_norm_no_update _batch_norm_impl_index
    """
)
CONVOLUTIONS = frozenset({"convolution", "_convolution", "convolution_overrideable"})
MATRIX_PRODUCTS = frozenset({"mm", "addmm", "linear"})
BATCHED_PRODUCTS = frozenset({"bmm"})
# Attention as one operation: queries, keys and values (..., heads, tokens, size) come first.
ATTENTION = _words(
    """
    scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math_for_mps
    """
)
PICKS = _words("split split_with_sizes chunk unbind slice select unsafe_split unsafe_chunk")
MAKERS = frozenset({"new_empty", "new_zeros", "new_ones", "new_full"})
# Methods and functions by their Python names.
EXITS = frozenset(
    {"numpy", "tolist", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "__deepcopy__", "__reduce_ex__"}
)
DROPOUTS = _words(
    """
    dropout dropout_ dropout1d dropout2d dropout3d feature_dropout feature_dropout_ alpha_dropout alpha_dropout_
    feature_alpha_dropout feature_alpha_dropout_
    """
)
