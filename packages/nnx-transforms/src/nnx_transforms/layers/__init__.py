# ruff: noqa: F403
"""Layers to write real models with, imported when one of their names is used."""

from typing import TYPE_CHECKING

from nnx_transforms.lazy import lazily

_NAMES = {
    "activations": "Identity PReLU celu elu gelu glu hard_sigmoid hard_silu hard_swish "
    "hard_tanh identity leaky_relu log1mexp log_sigmoid log_softmax logmeanexp "
    "logsumexp mish one_hot relu relu6 selu sigmoid silu soft_sign softmax softplus "
    "sparse_plus sparse_sigmoid squareplus standardize swish tanh",
    "attention": "MultiHeadAttention",
    "attention_functions": "dot_product_attention dot_product_attention_weights",
    "cells": "GRUCell LSTMCell OptimizedLSTMCell RNNCellBase SimpleCell",
    "convolution": "Conv ConvTranspose",
    "dtypes": "canonicalize_dtype promote_dtype",
    "initializers": "initializers ones_init zeros_init",
    "linear": "Einsum Embed Linear LinearGeneral default_bias_init default_embed_init "
    "default_kernel_init",
    "lora": "LoRA LoRALinear LoRAParam",
    "masks": "combine_masks make_attention_mask make_causal_mask",
    "normalization": "BatchNorm GroupNorm InstanceNorm LayerNorm RMSNorm",
    "options": "first_from",
    "pooling": "avg_pool max_pool min_pool pool",
    "recurrent": "RNN Bidirectional flip_sequences",
    "rotary": "RoPE dot_product_attention_with_rope",
    "sequential": "Sequential",
    "stochastic": "Dropout",
    "weight_normalization": "SpectralNorm WeightNorm",
}

if TYPE_CHECKING:
    # For what reads the source only: type checkers, the reference.
    from nnx_transforms.layers import initializers as initializers
    from nnx_transforms.layers.activations import *
    from nnx_transforms.layers.attention import *
    from nnx_transforms.layers.attention_functions import *
    from nnx_transforms.layers.cells import *
    from nnx_transforms.layers.convolution import *
    from nnx_transforms.layers.dtypes import *
    from nnx_transforms.layers.initializers import ones_init as ones_init
    from nnx_transforms.layers.initializers import zeros_init as zeros_init
    from nnx_transforms.layers.linear import *
    from nnx_transforms.layers.lora import *
    from nnx_transforms.layers.masks import *
    from nnx_transforms.layers.normalization import *
    from nnx_transforms.layers.options import *
    from nnx_transforms.layers.pooling import *
    from nnx_transforms.layers.recurrent import *
    from nnx_transforms.layers.rotary import *
    from nnx_transforms.layers.sequential import *
    from nnx_transforms.layers.stochastic import *
    from nnx_transforms.layers.weight_normalization import *
else:
    __all__ = [name for names in _NAMES.values() for name in names.split()]
    __getattr__, __dir__ = lazily(__name__, _NAMES)
