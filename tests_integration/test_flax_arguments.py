"""Names of Flax NNX take the arguments that they take there."""

import inspect

import jax
import pytest

import nnx_transforms as ours

theirs = pytest.importorskip("flax.nnx")

NAMES = """
A BatchNorm Bidirectional Conv ConvTranspose Data Dropout EMA Einsum Embed FlatState
GRUCell GroupNorm InstanceNorm LSTMCell LayerNorm Linear LinearGeneral LoRA LoRALinear
LoRAParam Metric ModelAndOptimizer MultiHeadAttention MultiMetric OptimizedLSTMCell
Optimizer PReLU Pytree RMSNorm RNN Rngs Sequential SimpleCell SpectralNorm TrainState
WeightNorm as_abstract as_pure avg_pool capture clone combine_masks data dataclass
dot_product_attention eval_shape filter_state filterlib find_duplicates flip_sequences
fork_rngs from_flat_state get_abstract_model graph graphdef grad has_data initializers
is_data iter_graph iter_modules jit jit_partial logical_axis_rules make_attention_mask
make_causal_mask map_state max_pool merge_context merge_state metrics min_pool ones_init
prefix pure recursive_map relu remat replace_by_pure_dict reseed scan set_metadata split
split_rngs split_state state statelib static switch to_flat_state to_pure_dict
transform_metadata traversals unpack use_eager_sharding using_eager_sharding
var_defaults variables vars_as view view_info vmap with_attributes with_partitioning
with_rngs with_vars zeros_init
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_a_name_takes_what_flax_takes(name):
    found = getattr(ours, name)
    due = getattr(theirs, name, None)
    assert inspect.ismodule(due) == inspect.ismodule(found) or due is None
    if not callable(due) or not callable(found):
        return
    takes = inspect.signature(found).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in takes):
        return
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    given = {
        p.name for p in inspect.signature(due).parameters.values() if p.kind in by_name
    }
    assert given - {"graph", "graph_updates"} <= {p.name for p in takes}


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("library", [theirs, ours])
def test_eval_shape_describes_what_the_function_closes_over(library, jitted):
    model = library.Linear(2, 3, rngs=library.Rngs(0))
    kernel = model.kernel.get_value()

    def described(model):
        state = ours.eval_shape(lambda: library.split(model)[1])
        one, other = ours.eval_shape(lambda: (model, {"again": model}))
        assert other["again"] is one and one is not model
        variable = ours.eval_shape(lambda: model.kernel)
        leaves = jax.tree.leaves((state, library.state(one), variable))
        assert [leaf.shape for leaf in leaves] == [(3,), (2, 3), (3,), (2, 3), (2, 3)]
        assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)

    (ours.jit(described) if jitted else described)(model)
    assert model.kernel.get_value() is kernel
