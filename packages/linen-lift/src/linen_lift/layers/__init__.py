"""Layers to write real models with."""

from . import (
    attention,
    dtypes,
    initializers,
    linear,
    normalization,
    pooling,
    recurrent,
)
from .activations import (
    PReLU,
)
from .attention import (
    MultiHeadAttention,
    MultiHeadDotProductAttention,
    SelfAttention,
    combine_masks,
    dot_product_attention,
    dot_product_attention_weights,
    make_attention_mask,
    make_causal_mask,
)
from .combinators import (
    BatchApply,
    Sequential,
)
from .convolution import (
    Conv,
    ConvLocal,
    ConvTranspose,
)
from .dtypes import (
    promote_dtype,
)
from .initializers import (
    ones_init,
    zeros_init,
)
from .linear import (
    Dense,
    DenseGeneral,
    Einsum,
    Embed,
)
from .normalization import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    RMSNorm,
)
from .pooling import (
    avg_pool,
    max_pool,
    min_pool,
    pool,
)
from .recurrent import (
    RNN,
    Bidirectional,
    ConvLSTMCell,
    GRUCell,
    LSTMCell,
    MGUCell,
    OptimizedLSTMCell,
    RNNCellBase,
    SimpleCell,
)
from .stochastic import (
    Dropout,
)
from .weight_normalization import (
    SpectralNorm,
    WeightNorm,
)

__all__ = [
    "RNN",
    "BatchApply",
    "BatchNorm",
    "Bidirectional",
    "Conv",
    "ConvLSTMCell",
    "ConvLocal",
    "ConvTranspose",
    "Dense",
    "DenseGeneral",
    "Dropout",
    "Einsum",
    "Embed",
    "GRUCell",
    "GroupNorm",
    "InstanceNorm",
    "LSTMCell",
    "LayerNorm",
    "MGUCell",
    "MultiHeadAttention",
    "MultiHeadDotProductAttention",
    "OptimizedLSTMCell",
    "PReLU",
    "RMSNorm",
    "RNNCellBase",
    "SelfAttention",
    "Sequential",
    "SimpleCell",
    "SpectralNorm",
    "WeightNorm",
    "attention",
    "avg_pool",
    "combine_masks",
    "dot_product_attention",
    "dot_product_attention_weights",
    "dtypes",
    "initializers",
    "linear",
    "make_attention_mask",
    "make_causal_mask",
    "max_pool",
    "min_pool",
    "normalization",
    "ones_init",
    "pool",
    "pooling",
    "promote_dtype",
    "recurrent",
    "zeros_init",
]
