"""Models of Flax NNX, as they are, under the transforms of this repository."""

import copy
import gc as collector
import subprocess
import sys
import textwrap
import warnings
import weakref

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx as flax

import graphcore as gc
import nnx_transforms as nnx

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*deprecated:DeprecationWarning",
    "ignore:Variable hooks are deprecated:UserWarning",
)


def read(variable):
    get = getattr(variable, "get_value", None)
    return variable.value if get is None else get()


def write(variable, value):
    variable.set_value(value) if hasattr(variable, "set_value") else setattr(
        variable, "value", value
    )


def leaves(*roots):
    """All values in Flax's own states of these."""
    found = []
    for root in roots:
        for leaf in jax.tree.leaves(flax.state(root)):
            is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            found.append(np.asarray(jax.random.key_data(leaf) if is_key else leaf))
    return found


# Before 0.12, a plain list of modules is what Flax has.
List = getattr(flax, "List", list)


class Counted(flax.Module):
    def __init__(self):
        rngs = flax.Rngs(0)
        self.linear = flax.Linear(2, 3, rngs=rngs)
        self.norm = flax.BatchNorm(3, rngs=rngs)
        self.dropout = flax.Dropout(0.5, rngs=rngs)
        self.count = flax.Variable(jnp.array(0))

    def __call__(self, x):
        write(self.count, read(self.count) + 1)
        return self.dropout(self.norm(self.linear(x)))


class Tied(flax.Module):
    def __init__(self):
        self.a = flax.Param(jnp.array(3.0))
        self.b = self.a


X = jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)


def test_what_a_call_changes_is_there_afterwards():
    model = Counted()
    before = read(model.norm.mean)
    forward = nnx.jit(lambda model, x: model(x))
    first, second = forward(model, X), forward(model, X)
    assert int(read(model.count)) == 2
    assert not jnp.array_equal(before, read(model.norm.mean))
    assert not jnp.array_equal(first, second)  # another dropout mask
    streams = [s for _, s in gc.iter_graph(model) if isinstance(s, flax.RngStream)]
    assert [int(read(stream.count)) for stream in streams][-1] == 2


def test_a_training_step_changes_the_weights():
    model = Counted()
    optimizer = flax.Optimizer(model, optax.sgd(0.1), wrt=flax.Param)
    before = read(model.linear.kernel)

    @nnx.jit
    def step(model, optimizer, x):
        grads = nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model)
        optimizer.update(model, grads)

    step(model, optimizer, X)
    assert not jnp.array_equal(before, read(model.linear.kernel))
    assert int(read(optimizer.step)) == 1


def test_what_a_call_changes_inside_a_value_is_there_afterwards():
    model = flax.Module()
    model.seen = flax.Variable({"a": jnp.zeros(2)})
    step = nnx.jit(lambda m, x: m.seen.__setitem__("b", x))
    step(model, jnp.ones(2))
    assert set(read(model.seen)) == {"a", "b"}
    step = nnx.jit(lambda m, x: m.seen.__setitem__("a", x))
    step(model, jnp.full(2, 3.0))
    assert read(model.seen)["a"].tolist() == [3.0, 3.0]


@pytest.mark.skipif(not hasattr(flax, "Pytree"), reason="modules are no pytrees")
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"a": x}])
def test_a_module_that_is_a_value_is_replaced_by_what_a_call_made_of_it(wrap):
    holder = nnx.Variable(wrap(Counted()))

    def inner(holder):
        return holder.value["a"] if isinstance(holder.value, dict) else holder.value

    step = nnx.jit(lambda holder: inner(holder)(X))
    for _ in range(2):
        step(holder)
    assert int(read(inner(holder).count)) == 2


def test_the_gradient_of_a_tied_weight_counts_both_uses():
    grads = nnx.grad(lambda m: -m.a[...] * m.b[...] * 2.0)(Tied())
    assert isinstance(grads, flax.State)
    assert isinstance(grads["a"], flax.Param)
    assert jax.tree.leaves(grads) == [-12.0]


def test_bare_arrays_are_state():
    class Scaled(flax.Module):
        def __init__(self):
            self.scale = jnp.ones(3)

    model = Scaled()

    def double(model):
        model.scale = model.scale * 2

    compiled = nnx.jit(double)
    compiled(model), compiled(model)
    assert model.scale.tolist() == [4.0] * 3


# Training, compared with Flax bit by bit


class Network(flax.Module):
    def __init__(self, rngs):
        self.conv = flax.Conv(1, 4, (3,), rngs=rngs)
        self.norm = flax.BatchNorm(4, rngs=rngs)
        self.attention = flax.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.lstm = flax.RNN(flax.LSTMCell(4, 4, rngs=rngs))
        self.drop = flax.Dropout(0.25, rngs=rngs)
        shared = flax.Linear(4, 4, rngs=rngs)
        self.blocks = List([shared, flax.Linear(4, 4, rngs=rngs), shared])
        self.head = flax.Linear(4, 4, rngs=rngs)
        self.head.kernel = shared.kernel

    def __call__(self, x):
        x = self.norm(self.conv(x[..., None]))
        x = x + self.attention(x)
        x = self.lstm(x)
        for block in self.blocks:
            x = flax.relu(block(x))
        return self.head(self.drop(x)).mean((1, 2))


def make_training():
    model = Network(flax.Rngs(0, dropout=1))
    optimizer = flax.Optimizer(model, optax.adamw(1e-2), wrt=flax.Param)
    metrics = flax.MultiMetric(
        loss=flax.metrics.Average("loss"), size=flax.metrics.Average("size")
    )
    return model, optimizer, metrics


def training_step(value_and_grad):
    def step(model, optimizer, metrics, x, y):
        def loss(model):
            return jnp.mean((model(x) - y) ** 2)

        value, grads = value_and_grad(loss)(model)
        optimizer.update(model, grads)
        metrics.update(loss=value, size=optax.global_norm(grads))
        return value

    return step


def test_training_is_as_flax_does_it_bit_by_bit():
    ours, theirs = make_training(), make_training()
    modes = [{"graph": True, "graph_updates": True}, {}]
    try:
        jit = flax.jit(training_step(flax.value_and_grad), **modes[0])
    except TypeError:  # a release that has no other mode
        jit = flax.jit(training_step(flax.value_and_grad))
    step = nnx.jit(training_step(nnx.value_and_grad))
    for number in range(3):
        x = jax.random.normal(jax.random.key(number), (3, 5))
        y = jnp.sum(x, axis=1)
        assert float(step(*ours, x, y)) == float(jit(*theirs, x, y))
    for a, b in zip(leaves(*ours), leaves(*theirs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert ours[2].compute() == theirs[2].compute()
    assert ours[0].head.kernel is ours[0].blocks[0].kernel
    # And Flax goes on with the same objects.
    x = jnp.ones((3, 5))
    assert float(jit(*ours, x, x[:, 0])) == float(step(*theirs, x, x[:, 0]))


# Settings and filters of Flax's


def test_vmap_and_scan_take_settings_of_flax():
    @nnx.vmap(in_axes=flax.StateAxes({flax.Param: 0, ...: None}), out_axes=0)
    def output(layer):
        return layer(jnp.ones(2))

    @nnx.vmap(in_axes=0, out_axes=flax.StateAxes({flax.Param: 0, ...: None}))
    def make(key):
        return flax.Linear(2, 2, rngs=flax.Rngs(key))

    layers = make(jax.random.split(jax.random.key(0), 3))
    assert type(layers) is flax.Linear and layers.kernel.shape == (3, 2, 2)
    assert output(layers).shape == (3, 2)

    axes = flax.StateAxes({flax.Param: 0, ...: flax.Carry})
    run = nnx.scan(
        lambda layer, x: layer(x), in_axes=(axes, flax.Carry), out_axes=flax.Carry
    )
    expected = jnp.ones(2)
    for i in range(3):
        expected = expected @ layers.kernel[...][i] + layers.bias[...][i]
    np.testing.assert_allclose(run(layers, jnp.ones(2)), expected, rtol=1e-6)


def test_a_scanned_function_may_sow():
    class Step(flax.Module):
        def __init__(self):
            self.bias = flax.Variable(jnp.array(1.0))

        def __call__(self, x):
            x = x + self.bias[...]
            self.sow(flax.Intermediate, "seen", x)
            return x

    model = Step()
    axes = flax.StateAxes({flax.Intermediate: 0, ...: flax.Carry})
    run = nnx.scan(
        lambda m, x: m(x), in_axes=(axes, flax.Carry), out_axes=flax.Carry, length=3
    )
    assert float(run(model, jnp.array(0.0))) == 3.0
    assert read(model.seen)[0].tolist() == [1.0, 2.0, 3.0]


def test_a_model_is_no_setting():
    models = [lib.Module() for lib in (flax, flax, nnx, nnx)]
    for model, part in zip(models, [flax.Variable(0), jnp.ones(1)] * 2, strict=True):
        model.part = part
    for model in (Tied(), *models):
        for make in (
            lambda m: nnx.jit(lambda m: m, in_shardings=m),
            lambda m: nnx.vmap(lambda m: m, in_axes=(m,)),
            lambda m: nnx.grad(lambda m: m.a[...], argnums=m),
        ):
            with pytest.raises(ValueError, match="nodes are not allowed as prefixes"):
                make(model)


def test_a_scanned_axis_is_named_in_the_metadata():
    init = flax.with_partitioning(flax.initializers.zeros_init(), ("in", "out"))

    @nnx.vmap(out_axes=0, transform_metadata={flax.PARTITION_NAME: "layers"})
    def make(key):
        return flax.Linear(2, 2, kernel_init=init, rngs=flax.Rngs(key))

    mesh = jax.make_mesh((1, 1, 1), ("in", "out", "layers"))
    with jax.set_mesh(mesh), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = make(jax.random.split(jax.random.key(0), 3)).kernel
    metadata = gc.VariableState.from_variable(kernel).get_metadata()
    assert ("layers", "in", "out") in metadata.values()


@pytest.mark.parametrize("wrt", [flax.Param, nnx.Param, flax.OfType(flax.Param)])
def test_filters_of_either_library_select_parameters(wrt):
    model = Counted()
    mine = nnx.Dict(w=nnx.Param(jnp.array(2.0)), n=nnx.BatchStat(1.0))
    both = gc.state((model, mine), wrt).flat_state().paths
    assert (1, "w") in both and (0, "linear", "kernel") in both
    assert (0, "count") not in both and (1, "n") not in both
    grads = nnx.grad(lambda m: m(X).sum(), argnums=flax.DiffState(0, wrt))(model)
    assert set(grads) == {"linear", "norm"}


def test_filters_see_the_variables_themselves():
    model = Counted()
    is_kernel = flax.All(flax.Param, flax.PathContains("kernel"))
    grads = nnx.grad(lambda m: m(X).sum(), wrt=is_kernel)(model)
    assert len(jax.tree.leaves(grads)) == 1
    grads = nnx.grad(
        lambda m: m(X).sum(),
        wrt=lambda path, x: isinstance(x, flax.Param) and path[-1] == "bias",
    )(model)
    assert len(jax.tree.leaves(grads)) == 2


def test_split_rngs_knows_their_random_state():
    theirs, ours = flax.Rngs(0, dropout=1), nnx.Rngs(0, dropout=1)
    with nnx.split_rngs(theirs, splits=3, only="dropout"):
        assert theirs.dropout.key.shape == (3,)
        draws = nnx.vmap(
            lambda rngs: rngs.dropout(),
            in_axes=(flax.StateAxes({"dropout": 0, ...: None}),),
        )(theirs)
    with nnx.split_rngs(ours, splits=3, only="dropout"):
        same = nnx.vmap(
            lambda rngs: rngs.dropout(),
            in_axes=(nnx.StateAxes({"dropout": 0, ...: None}),),
        )(ours)
    assert (draws == same).all()
    assert theirs.dropout.key.shape == ()
    nnx.reseed(theirs, dropout=7)
    assert read(theirs.dropout.key) == nnx.Rngs(dropout=7).dropout()


def test_rules_and_tangents_take_states_of_flax():
    @nnx.custom_vjp
    def f(model, x):
        return model.a[...] * x

    def fwd(model, x):
        return f(model, x), (model, x)

    def bwd(residuals, g):
        _, x = residuals
        tangent, _ = g[0], None
        return jax.tree.map(lambda _: 5.0 * x, tangent[0]), x

    f.defvjp(fwd, bwd)
    tangent = nnx.grad(lambda m: m.a[...] ** 2)(Tied())
    out, dot = nnx.jvp(lambda m: m.a[...] ** 2, (Tied(),), (tangent,))
    assert float(out) == 9.0 and float(dot) == 36.0
    out, pull = nnx.vjp(lambda m: m.a[...] ** 2, Tied())
    (cotangent,) = pull(1.0)
    assert isinstance(cotangent, flax.State) and jax.tree.leaves(cotangent) == [6.0]


def test_modules_of_linen_are_made_where_they_are_mapped():
    linen = pytest.importorskip("flax.linen")
    inner = flax.bridge.ToNNX(linen.Dense(3), rngs=flax.Rngs(0))

    @nnx.split_rngs(splits=5)
    @nnx.vmap(in_axes=(0, None), axis_size=5)
    def forward(inner, x):
        if not hasattr(inner, "kernel"):
            flax.bridge.lazy_init(inner, x)
        return inner(x)

    assert forward(inner, X).shape == nnx.jit(forward)(inner, X).shape == (5, 4, 3)
    assert read(inner.kernel).shape == (5, 2, 3)


def test_control_flow_and_the_rest():
    model = Counted()

    def count(model):
        write(model.count, read(model.count) + 1)

    nnx.cond(True, count, lambda model: None, model)
    nnx.fori_loop(0, 3, lambda i, m: (count(m), m)[1], model)
    nnx.remat(count)(model)
    nnx.checkify(count)(model)
    assert int(read(model.count)) == 6
    shapes = nnx.eval_shape(Counted)
    assert type(shapes) is Counted and shapes.linear.kernel.shape == (2, 3)
    axes = flax.StateSharding({...: None})
    nnx.jit(count, in_shardings=(axes,))(model)
    assert int(read(model.count)) == 7


# Edits


class Parts(flax.Module):
    def __init__(self):
        self.rate = 1
        self.first = self.second = None
        self.child = Tied()
        self.parts = List([flax.Param(jnp.array(1.0))])
        self.weight = flax.Param(jnp.array(1.0), unit="m", axis=1)
        if hasattr(flax, "data"):
            self.plain = flax.data([flax.Param(jnp.array(2.0))])
        else:
            self.plain = [flax.Param(jnp.array(2.0))]


class Other(Tied):
    pass


def set_class(x, kind):
    object.__setattr__(x, "__class__", kind)


class EqualsAll:
    __eq__ = lambda self, other: True
    __hash__ = lambda self: 0


def rename(holder, old, new):
    """As by hand: everything goes, and comes back in the same order."""
    renamed = {new if key == old else key: x for key, x in holder.items()}
    holder.clear()
    holder.update(renamed)


def set_metadata(variable, **metadata):
    if hasattr(variable, "set_metadata"):
        variable.set_metadata(**metadata)
    else:
        for name, value in metadata.items():
            setattr(variable, name, value)


EDITS = {
    "an equal value of another type": lambda m: setattr(m, "rate", True),
    "a new attribute": lambda m: setattr(m, "extra", flax.Param(jnp.array(1.0))),
    "an attribute less": lambda m: delattr(m, "rate"),
    "a child replaced": lambda m: setattr(m, "child", Other()),
    "a tie broken": lambda m: setattr(m.child, "b", flax.Param(jnp.array(3.0))),
    "past setattr": lambda m: vars(m).update(rate=2),
    "a key renamed": lambda m: vars(m).update(rote=vars(m).pop("rate")),
    "another dict": lambda m: object.__setattr__(m, "__dict__", {**vars(m), "rate": 3}),
    "another class": lambda m: set_class(m.child, Other),
    "another class of a variable": lambda m: set_class(m.weight, flax.BatchStat),
    "a longer list": lambda m: m.parts.append(flax.Param(jnp.array(1.0))),
    "a longer plain list": lambda m: m.plain.append(flax.Param(jnp.array(1.0))),
    "a key renamed among equals": lambda m: rename(vars(m), "first", "third"),
    "something that equals all": lambda m: setattr(m, "rate", EqualsAll()),
    "metadata": lambda m: set_metadata(m.weight, unit="km"),
    "metadata of another type": lambda m: set_metadata(m.weight, axis=True),
    "metadata renamed": lambda m: rename(m.weight._var_metadata, "unit", "name"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_every_kind_of_edit_is_seen(edit):
    model, seen = Parts(), []

    @nnx.jit
    def look(model):
        seen.append(gc.graphdef(model))
        return read(model.plain[0]) + read(model.child.b)

    for _ in range(2):
        look(model)
    assert len(seen) == 1
    edit(model)
    for _ in range(2):
        look(model)
    assert len(seen) == 2
    assert seen[1] == gc.graphdef(model) != seen[0]


@pytest.mark.parametrize(
    "edit",
    [
        lambda v: set_metadata(v, unit="m"),
        lambda v: v._var_metadata.update(unit="m"),
        lambda v: object.__setattr__(
            v, "_var_metadata", {**v._var_metadata, "unit": "m"}
        ),
        lambda v: v._var_metadata.update(eager_sharding=not v.eager_sharding),
        lambda v: set_class(v, flax.BatchStat),
    ],
)
def test_edits_of_a_variable_that_has_nothing_but_the_flags_of_flax(edit):
    seen = []

    @nnx.jit
    def look(model):
        seen.append(gc.graphdef(model))
        return read(model.weight)

    model = flax.Module()
    model.weight = flax.Param(jnp.array(2.0))
    if "eager_sharding" not in model.weight._var_metadata:  # Flax before 0.12.1
        model.weight._var_metadata["eager_sharding"] = True
    for _ in range(2):
        look(model)
    edit(model.weight)
    for _ in range(2):
        look(model)
    assert len(seen) == 2 and seen[1] == gc.graphdef(model) != seen[0]


def test_a_variable_replaced_by_its_like_is_read_and_written():
    model = Counted()
    forward = nnx.jit(lambda model, x: model(x))
    forward(model, X)
    old, model.count = model.count, flax.Variable(jnp.array(10))
    forward(model, X)
    assert (int(read(old)), int(read(model.count))) == (1, 11)


def test_plans_are_kept(monkeypatch):
    from graphcore.cache import plans

    model, optimizer, metrics = make_training()
    everything = nnx.jit(lambda *objects: write(optimizer_step(objects[1]), 3))
    optimizer_step = lambda optimizer: optimizer.step
    everything(model, optimizer, metrics)
    monkeypatch.setattr(plans, "make_plan", None)
    everything(model, optimizer, metrics)
    assert int(read(optimizer.step)) == 3


def test_nothing_shows_in_their_pickles_copies_and_treedefs():
    model = Counted()
    model.dropout = flax.Dropout(0.5)  # keys can't be pickled with every JAX
    before = cloudpickle.dumps(model), [*vars(model)]
    nnx.jit(lambda model: None)(model)
    nnx.jit(lambda model: None)(model)
    assert (cloudpickle.dumps(model), [*vars(model)]) == before
    twin = copy.deepcopy(model)
    assert gc.graphdef(twin) == gc.graphdef(model)
    assert type(twin) is Counted and twin.linear is not model.linear
    assert jax.tree.structure(twin) == jax.tree.structure(model)


@pytest.mark.parametrize("points_back", [False, True])
def test_a_dropped_model_goes(points_back):
    model = Counted()
    if points_back:
        model.linear.above = flax.data(model) if hasattr(flax, "data") else model
    forward = nnx.jit(lambda model, x: model(x))
    for _ in range(3):
        forward(model, X)
    alive = weakref.ref(model), weakref.ref(model.linear)
    collector.disable()
    try:
        del model
        if points_back:
            collector.collect()
        assert [reference() for reference in alive] == [None, None]
    finally:
        collector.enable()


def total(model):
    return model(X).sum()


# Transformed functions that call a model among their arguments once.
CALLS = {
    "grad": lambda m: nnx.grad(total)(m),
    "grad by keyword": lambda m: nnx.grad(lambda x, m: x * total(m))(1.0, m=m),
    "jit of a list": lambda m: nnx.jit(lambda ms: total(*ms))([m]),
    "jit of a dict": lambda m: nnx.jit(lambda ms: total(ms["a"]))({"a": m, "x": X}),
    "jit of dicts": lambda m: nnx.jit(lambda ms: total(ms["a"]["b"]))({"a": {"b": m}}),
    "remat": lambda m: nnx.remat(total)(m),
    "scan": lambda m: nnx.scan(lambda c, _: ((c[0], total(c[0])), 0), length=1)(
        (m, jnp.array(0.0)), None
    ),
    "while_loop": lambda m: nnx.while_loop(
        lambda c: c[1] < 1, lambda c: (c[0], c[1] + 1 + 0 * total(c[0])), (m, 0.0)
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_part_of_a_model_may_refer_to_the_model(call):
    model = Counted()
    model.linear.above = flax.data(model) if hasattr(flax, "data") else model
    call(model)
    assert int(read(model.count)) == 1 and model.linear.above is model


def test_an_error_leaves_the_model_as_it_was():
    model = Counted()
    before = leaves(model), gc.graphdef(model)

    @nnx.jit
    def fail(model):
        model(X)
        model.extra = flax.Param(jnp.array(1.0))
        raise KeyError("no")

    with pytest.raises(KeyError):
        fail(model)
    for a, b in zip(leaves(model), before[0], strict=True):
        np.testing.assert_array_equal(a, b)
    assert gc.graphdef(model) == before[1]


@pytest.mark.parametrize(
    ("make", "kind"), [(Counted, "Counted"), (lambda: flax.Param(X), "Param")]
)
def test_an_object_of_another_trace_is_refused(make, kind):
    found = make()

    @jax.jit
    def outer(x):
        return nnx.jit(lambda found, x: x)(found, x)

    with pytest.raises(nnx.TraceContextError, match=kind):
        outer(X)


@pytest.mark.skipif(not hasattr(flax, "var_defaults"), reason="no such variables")
@pytest.mark.parametrize("kind", ["hijax", "ref"])
def test_variables_that_jax_carries_itself_are_refused(kind):
    variable = flax.Param(jnp.array(1.0), **{kind: True})

    class Holder(flax.Module):
        def __init__(self):
            self.weight = variable

    with pytest.raises(ValueError, match=rf"'weight'.*{kind}=False"):
        nnx.jit(lambda m: None)(Holder())


# Adapters


def run(source):
    code = textwrap.dedent(source)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_library_is_not_imported_for_those_who_do_not_use_it():
    run("""
        import sys, nnx_transforms as nnx
        nnx.jit(lambda m, x: None)(nnx.Dict(a=nnx.Param(1)), {"b": [1, 2.0]})
        assert "flax" not in sys.modules
        assert "graphcore.adapters.flax" not in sys.modules
    """)


def test_the_order_of_imports_does_not_matter_and_a_change_of_flax_is_told():
    run("""
        from flax import nnx as flax
        import graphcore as gc
        assert gc.is_graph_node(flax.Linear(1, 1, rngs=flax.Rngs(0)))
        import nnx_transforms as nnx
        assert nnx.split_rngs(flax.Rngs(0), splits=2)
    """)
    # A decorator meets its settings before any object.
    run("""
        import jax.numpy as jnp, nnx_transforms as nnx
        from flax import nnx as flax
        axes = (flax.Carry, 0)
        add = nnx.scan(lambda c, x: (c + x, c), in_axes=axes, out_axes=axes)
        assert add(jnp.array(0.0), jnp.arange(3.0))[0] == 3.0
    """)
    run("""
        from flax import nnx as flax
        import graphcore as gc
        layer = flax.Linear(1, 1, rngs=flax.Rngs(0))
        flax.Variable.from_metadata = classmethod(lambda *args: flax.Param(0.0))
        for _ in range(2):
            try: gc.state(layer)
            except gc.AdapterError as error: assert "0.12" in str(error), error
            else: raise AssertionError
    """)


def test_the_library_may_be_met_where_jax_may_not_move_arrays():
    run("""
        import jax
        from flax import nnx as flax
        import nnx_transforms as nnx
        layer, x = flax.Linear(1, 1, rngs=flax.Rngs(0)), jax.numpy.ones(1)
        with jax.transfer_guard("disallow"):
            assert nnx.jit(lambda layer, x: layer(x))(layer, x).shape == (1,)
    """)


def test_threads_may_meet_the_library_together():
    run("""
        import threading
        from flax import nnx as flax
        import graphcore as gc
        found, start = [], threading.Barrier(4)
        def look():
            layer = flax.Linear(1, 1, rngs=flax.Rngs(0))
            start.wait()
            found.append(gc.is_graph_node(layer) and len(gc.state(layer)))
        threads = [threading.Thread(target=look) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert found == [2] * 4, found
    """)
