"""Functions that are no transforms, given objects of Flax NNX."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphcore as gc
import linen_lift as nn
import nnx_transforms as nt

nnx = pytest.importorskip("flax.nnx")

X = jax.random.normal(jax.random.key(0), (3, 4))
# Flax 0.11 has none; a list does there.
ListOf = {library: getattr(library, "List", list) for library in (nnx, nt)}
captures = pytest.mark.skipif(not hasattr(nnx, "capture"), reason="Flax before 0.12.6")


class Net(nnx.Module):
    """Records one value, and perturbs another."""

    def __init__(self, rngs):
        self.layers = ListOf[nnx]([nnx.Linear(4, 4, rngs=rngs)])
        self.named = nnx.Dict(out=nnx.Linear(4, 2, rngs=rngs))

    def __call__(self, x):
        x = self.perturb("shift", self.layers[0](x))
        self.sow(nnx.Intermediate, "hidden", x)
        return self.out(x)

    def out(self, x):
        return self.named.out(x)


def layers(library, seed):
    """A model of either library, with parameters and statistics."""

    class Model(library.Module):
        def __init__(self, rngs):
            self.dense = library.Linear(4, 4, rngs=rngs)
            self.norms = ListOf[library]([library.BatchNorm(4, rngs=rngs)])

        def __call__(self, x):
            return self.norms[0](self.dense(x))

    return Model(library.Rngs(seed))


class Both(nt.Module):
    """Ours, around one of Flax."""

    def __init__(self):
        self.inner = Net(nnx.Rngs(0))

    def __call__(self, x):
        x = self.inner(x)
        self.sow(nt.Intermediate, "hidden", 2 * x)
        return x


def net():
    return Net(nnx.Rngs(0))


def same(found, due):
    found, due = (dict(gc.State(nt.to_pure_dict(x)).flat_state()) for x in (found, due))
    assert found.keys() == due.keys()
    for path, leaf in due.items():
        np.testing.assert_array_equal(found[path], leaf)


def attributes(model):
    return [sorted(vars(m)) for _, m in nt.iter_modules(model)]


# Recording


@captures
@pytest.mark.parametrize("library", [nnx, nt], ids=["their types", "our types"])
@pytest.mark.parametrize("outputs", [False, True])
def test_capture_collects_what_flax_collects(library, outputs):
    before = attributes(model := net())
    types = "Intermediate", "Perturbation"

    def collected(module, kinds):
        kinds = [getattr(kinds, name) for name in types]
        more = {"method_outputs": kinds[0]} if outputs else {}
        return module.capture(model, *kinds, **more)(X)

    y, *found = collected(nt, library)
    due_y, *due = collected(nnx, nnx)
    np.testing.assert_array_equal(y, due_y)
    for one, other in zip(found, due, strict=True):
        same(one, other)
    assert attributes(model) == before


@captures
def test_capture_of_methods_in_compiled_functions():
    model = net()
    hidden = nt.capture(model.out, nt.Intermediate)(X)[1]
    assert not hidden.flat_state()  # `out` records nothing
    step = nt.jit(lambda model, x: nt.capture(model, nt.Intermediate)(x))
    around = nt.capture(nt.jit(lambda model, x: model(x)), nt.Intermediate)
    due = nt.capture(model, nt.Intermediate)(X)[1].hidden.value[0]
    for f in (step, around):
        np.testing.assert_allclose(f(model, X)[1].hidden.value[0], due, 1e-6)


@captures
def test_capture_puts_nothing_among_the_items_of_a_dict():
    class Branches(nnx.Module):
        def __init__(self):
            self.all = nnx.Dict(a=net(), b=net())

        def __call__(self, x):
            return sum(branch(x) for branch in self.all.values())

    _, found = nt.capture(Branches(), nt.Intermediate)(X)
    assert found.flat_state().paths == (("all", "a", "hidden"), ("all", "b", "hidden"))


@captures
def test_capture_in_a_model_of_both_libraries():
    model = Both()
    for kind in (nt.Intermediate, nnx.Intermediate):
        y, found = nt.capture(model, kind)(X)
        paths = [path for path, _ in found.flat_state()]
        assert paths == [("hidden",), ("inner", "hidden")]
        np.testing.assert_array_equal(found.hidden.value[0], 2 * y)
    assert not hasattr(model, "hidden") and not hasattr(model.inner, "hidden")


@captures
def test_gradients_by_perturbations():
    def gradient(library, model):
        forward = library.capture(lambda model, x: model(x), nnx.Perturbation)
        shifts = forward(model, X)[1]

        def loss(model, shifts):
            record = library.capture(model, nnx.Intermediate, init=shifts)
            return (record(X)[0] ** 2).sum()

        return library.grad(loss, argnums=1)(model, shifts)

    same(gradient(nt, net()), gradient(nnx, net()))


# Metadata and names


def test_metadata_of_variables():
    model = layers(nnx, 0)
    nt.set_metadata(model, only=nt.Param, unit="m")
    assert model.dense.kernel.get_metadata()["unit"] == "m"
    unit = nt.jit(lambda model: model.dense.kernel.get_metadata()["unit"] == "m")
    assert unit(model)
    assert "unit" not in model.norms[0].mean.get_metadata()


@pytest.mark.filterwarnings("ignore:Variable hooks are deprecated")
def test_initializers_of_flax_bring_their_metadata():
    def kernel(library, init):
        return library.Linear(4, 2, kernel_init=init, rngs=library.Rngs(0)).kernel

    ones = jax.nn.initializers.ones
    placed = kernel(nt, nnx.with_partitioning(ones, ("rows", None)))
    assert tuple(nt.get_var_pspec(placed)) == ("rows", None)
    hooked = nnx.with_metadata(ones, on_get_value=lambda _, x: 3 * x, unit="m")
    ours, theirs = kernel(nt, hooked), kernel(nnx, hooked)
    np.testing.assert_array_equal(ours[...], theirs[...])
    assert (ours.unit, float(ours[0, 0])) == ("m", 3)


def test_a_variable_of_flax_is_no_value():
    kernel = nnx.Linear(4, 2, rngs=nnx.Rngs(0)).kernel
    layer = nt.Linear(4, 2, rngs=nt.Rngs(0))
    state = nt.state([kernel])[0]
    for value in (kernel, state):
        with pytest.raises(ValueError, match="cannot be a variable itself, got a "):
            layer.kernel.value = value
        with pytest.raises(ValueError, match="cannot be a variable itself, got a "):
            nt.Param(value)


def test_collection_names_are_those_of_counterparts():
    names = {"Param": "params", "BatchStat": "batch_stats", "Cache": "cache"}
    for name, due in names.items():
        assert nt.variable_name_from_type(getattr(nnx, name)) == due

    class Quick(nnx.Param):
        pass

    assert nt.variable_name_from_type(Quick) == "quick"
    made = nt.bridge.ToLinen(nnx.Linear, args=(4, 2)).init(jax.random.key(0), X)
    assert list(made) == ["params"]


def test_a_table_has_one_column_for_what_means_the_same():
    class Noisy(nt.Module):
        def __init__(self):
            self.theirs = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
            self.ours = nt.Linear(4, 4, rngs=nt.Rngs(0))
            self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(1))

        def __call__(self, x):
            return self.drop(self.theirs(self.ours(x)))

    lines = nt.tabulate(Noisy(), X).splitlines()
    assert lines[0].split() == ["path", "type", "outputs", "Param", "RngState"]
    assert lines[2].split()[-6:] == ["40", "(160", "B)", "2", "(12", "B)"]


# States and filters


def test_weights_move_from_one_library_to_the_other():
    theirs, ours = layers(nnx, 0), layers(nt, 1)
    theirs(X)  # for its statistics
    ours.dense.kernel.unit = "m"
    before = theirs.dense.kernel.get_metadata()
    nt.update(ours, nnx.state(theirs))
    np.testing.assert_allclose(ours(X), theirs(X), 1e-6)
    assert ours.dense.kernel.get_metadata() == {"unit": "m"}
    nt.update(theirs, nt.state(layers(nt, 1)))
    same(nnx.state(theirs), nt.state(layers(nt, 1)))
    assert theirs.dense.kernel.get_metadata() == before
    again = nt.merge(nt.graphdef(ours), nnx.state(theirs, nnx.Param), nt.state(ours))
    assert type(again.dense.kernel) is nt.Param


@pytest.mark.parametrize("library", [nnx, nt], ids=["their update", "our update"])
def test_a_step_by_hand(library):
    @nt.jit
    def step(model):
        grads = nt.grad(lambda model: (model(X) ** 2).mean())(model)
        params = nnx.state(model, nnx.Param)
        library.update(model, jax.tree.map(lambda w, g: w - 0.1 * g, params, grads))
        return grads

    model = layers(nnx, 0)
    before = {k: v[...] for k, v in nt.to_flat_state(nnx.state(model, nnx.Param))}
    grads = dict(nt.to_flat_state(step(model)))
    for path, variable in nt.to_flat_state(nnx.state(model, nnx.Param)):
        due = before[path] - 0.1 * grads[path][...]
        np.testing.assert_allclose(variable[...], due, 1e-5, 1e-6)


@pytest.mark.parametrize(
    "first",
    [
        "nt.state(nt.Dict(w=nt.Param(1.0)), nnx.Param)",
        "nt.filter_state(nnx.state(linear), nt.Param)",
        "nt.to_flat_state(nnx.state(linear)).filter(nt.Param)",
        "nt.State({'w': nt.VariableState(nnx.Param, 1.0)}).filter(nt.Param)",
    ],
)
def test_a_filter_may_be_the_first_to_meet_the_library(first):
    code = f"""
import nnx_transforms as nt
from flax import nnx
linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
assert len({first})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_functions_in_the_place_of_flax_own_do_not_stand_in_the_way():
    """As where a program is moved by replacing the names that it uses."""
    code = """
from flax import nnx
import nnx_transforms
names = "split", "merge", "state", "update", "graphdef", "clone", "pop", "jit", "grad"
for name in names:
    setattr(nnx, name, getattr(nnx_transforms, name))
linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
assert sorted(nnx.state(linear)) == ["bias", "kernel"]
@nnx.jit
def clear(linear):
    linear.kernel[...] *= 0
clear(linear)
assert not linear.kernel[...].any()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Random streams


def test_our_layers_draw_from_streams_of_flax():
    theirs, ours = (x.Rngs(0, dropout=1) for x in (nnx, nt))
    for layer in (
        lambda rngs: nt.Dropout(0.5, rngs=rngs),
        lambda rngs: nt.MultiHeadAttention(
            2, 4, dropout_rate=0.5, deterministic=False, decode=False, rngs=rngs
        ),
    ):
        a, b = layer(theirs), layer(ours)
        for _ in range(2):  # other keys each time, and the count is kept
            y = nt.jit(lambda layer, x: layer(x))(a, X)
            np.testing.assert_allclose(y, b(X), 1e-6)
        assert int(a.rngs.count[...]) == 2
    cell = nt.RNN(nt.LSTMCell(4, 2, rngs=theirs), rngs=theirs)
    assert cell(jnp.ones((2, 5, 4))).shape == (2, 5, 2)


# Inside of functional modules


@pytest.mark.parametrize("seed", [0, 1])
def test_an_object_in_a_functional_module(seed):
    def model(library):
        class Model(library.Module):
            def __init__(self, rngs):
                self.dense = library.Linear(4, 4, rngs=rngs)
                self.norm = library.BatchNorm(4, use_running_average=False, rngs=rngs)
                self.drop = library.Dropout(0.5, rngs=rngs)

            def __call__(self, x):
                return self.drop(self.norm(self.dense(x)))

        return nt.bridge.to_linen(Model)

    theirs, ours = model(nnx), model(nt)
    keys = {"params": jax.random.key(seed), "dropout": jax.random.key(2)}
    variables, due = theirs.init(keys, X), ours.init(keys, X)
    assert sorted(variables) == ["batch_stats", "params"]
    same(nn.unbox(variables), due)
    rngs = {"dropout": jax.random.key(3 + seed)}
    y, after = theirs.apply(variables, X, rngs=rngs, mutable=["batch_stats"])
    due_y, due_after = ours.apply(due, X, rngs=rngs, mutable=["batch_stats"])
    np.testing.assert_allclose(y, due_y, 1e-5, 1e-6)
    assert (np.asarray(y) == 0).any()
    for path, leaf in gc.State(nn.unbox(after)).flat_state():
        due_leaf = dict(gc.State(due_after).flat_state())[path]
        np.testing.assert_allclose(leaf, due_leaf, 1e-5, 1e-6)


# What a compiled function closes over


def test_a_compiled_function_reads_what_a_model_holds_now():
    theirs, ours = layers(nnx, 0), layers(nt, 0)
    theirs.eval()
    ours.eval()
    evaluate = nt.jit(lambda x: (theirs(x), ours(x)))
    for _ in range(3):
        for y, due in zip(evaluate(X), (theirs(X), ours(X)), strict=True):
            np.testing.assert_allclose(y, due, 1e-6)
        nnx.update(theirs, jax.tree.map(lambda v: v + 1, nnx.state(theirs)))
        nt.update(ours, jax.tree.map(lambda v: v + 1, nt.state(ours)))
