"""Names of Flax NNX, each used in a program that runs on Flax and on this library."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_transforms as ours

optax = pytest.importorskip("optax")
theirs = pytest.importorskip("flax.nnx")

X = np.linspace(-1.0, 1.0, 12, dtype="float32").reshape(4, 3)
Y = np.sin(X[:, :2])
LABELS = np.array([0, 1, 1, 0])
LOGITS = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.5], [0.3, 0.1]], "float32")


def model_of(nnx, records=False):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.last = nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            x = self.first(x)
            if records:
                self.sow(nnx.Intermediate, "hidden", x)
                x = self.perturb("shift", x)
            return self.last(self.dropout(self.norm(x)))

    return Model(nnx.Rngs(0, dropout=1))


def loss(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


def quiet_of(nnx, records=False):
    """The model in evaluation, which draws nothing."""
    model = model_of(nnx, records)
    return nnx.view(model, deterministic=True, use_running_average=True)


def values(nnx, state):
    return nnx.to_pure_dict(state)


# States


def state_functions(nnx):
    state = nnx.state(model_of(nnx), nnx.Param)
    flat = nnx.to_flat_state(state)
    doubled = nnx.map_state(lambda path, leaf: leaf.replace(2 * leaf[...]), state)
    first = nnx.filter_state(doubled, nnx.filterlib.PathIn(("first", "kernel")))
    a, b = nnx.split_state(doubled, lambda path, leaf: "bias" in path, ...)
    restored = nnx.restore_int_paths({"layers": {"0": 1, "x": {"12": 3}}})
    pure = jax.tree.map(jnp.zeros_like, values(nnx, state))
    nnx.replace_by_pure_dict(state, pure)
    return (
        list(flat.paths),
        values(nnx, first),
        values(nnx, nnx.merge_state(a, b)),
        values(nnx, nnx.from_flat_state(dict(flat))),
        values(nnx, state),
        values(nnx, nnx.statelib.diff(doubled, first)),
        jax.tree.map(jnp.sum, dict(nnx.as_pure(doubled)["first"])),
        restored,
    )


def flat_states(nnx):
    flat = nnx.to_flat_state(nnx.state(model_of(nnx)))
    params, rest = flat.split(nnx.Param, ...)
    stats = flat.filter(nnx.BatchStat)
    return (
        [flat[0][0], len(flat), list(dict(flat)) == list(flat.paths)],
        [list(part.paths) for part in (params, rest, stats)],
        list(flat.merge(params, stats).paths),
        jax.tree.map(jnp.shape, values(nnx, stats.to_nested_state())),
    )


def nested_mappings(nnx):
    nested = {"a": {"b": 1, "c": {}}, "d": 2}
    t = nnx.traversals
    kept = t.flatten_mapping(nested, keep_empty_nodes=True)
    return (
        t.flatten_mapping(nested, sep="/"),
        t.flatten_mapping(nested, is_leaf=lambda path, xs: path == ("a",)),
        t.flatten_to_sequence(nested),
        t.unflatten_mapping(kept),
        t.unflatten_mapping({"a/b": 1}, sep="/"),
    )


def unpacked(nnx):
    model = nnx.Sequential(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), nnx.relu)
    whole = nnx.unpack(model)
    kernel, rest = nnx.unpack(model, nnx.PathContains("kernel"), ...)

    def total(kernel, rest, x):
        return (nnx.merge(kernel, rest)(x) ** 2).sum()

    grads = nnx.grad(total)(kernel, rest, X)
    moved = jax.tree.map(lambda a, b: a - 0.1 * b, kernel, grads)
    again = nnx.jit(lambda *states: nnx.unpack(nnx.merge(*states)))(moved, rest)
    nnx.update(model, again)
    del whole["layers"]
    return (
        [len(whole), len(again), list(rest["layers"][0]), "layers" in moved],
        grads.layers[0]["kernel"][...],
        nnx.vmap(total, in_axes=(None, None, 0))(moved, rest, X),
        [nnx.merge(nnx.unpack(model))(X), model(X)],
        [isinstance(x, nnx.GraphState) for x in (grads, again, nnx.state(model))],
    )


# Graphs


def shared(nnx):
    inner = nnx.Dict(w=nnx.Param(jnp.ones(2)))
    return nnx.Dict(a=inner, b=nnx.List([inner, inner.w]), c=nnx.Param(jnp.zeros(1)))


def duplicates(nnx):
    node = shared(nnx)
    return (
        sorted(nnx.find_duplicates(node)),
        nnx.find_duplicates(node, only=nnx.Param),
        [key for key, _ in nnx.iter_children(node)],
        [path for path, _ in nnx.iter_modules(model_of(nnx))],
        [key for key, _ in nnx.iter_module_children(model_of(nnx))],
    )


def mapped_recursively(nnx):
    node = shared(nnx)
    seen = []

    def change(path, value):
        if isinstance(value, nnx.Variable):
            seen.append(path)
            return type(value)(value[...] + 1)
        return value

    twin = nnx.recursive_map(change, node)
    keeps = nnx.recursive_map(lambda path, x: x, node)
    return (
        sorted(seen),
        twin.b[1] is twin.a.w and twin.b[0] is twin.a,
        keeps.c is node.c and keeps is not node,
        twin.a.w[...],
    )


def merged_live(nnx):
    node = shared(nnx)
    twin = nnx.clone(node, variables=False)
    twin.c[...] = jnp.full(1, 7.0)
    return node.c[...], twin is node, twin.a is node.a


def tools_for_variables(nnx):
    node = shared(nnx)
    nnx.set_metadata(node, only=nnx.Param, unit="m")
    twin = nnx.with_vars(node, allow_duplicates=True)
    return node.c.unit, twin.b[1] is twin.a.w, nnx.var_defaults().hijax


def variables_in_trees(nnx):
    v = nnx.Param(jnp.ones(2), unit="m", scale=2)
    v.del_metadata("unit")
    tree = {"a": [v, 2, "x"], "b": jnp.zeros(3)}
    found = [type(x).__name__ for x in nnx.has_data(tree)]
    path: nnx.filterlib.PathParts = ("first", "kernel")
    kernel = nnx.filter_state(nnx.state(model_of(nnx)), nnx.filterlib.PathIn(path))
    pure = jax.tree.map(jnp.shape, nnx.as_pure(tree)["a"][0])
    return (
        [v.has_metadata("unit"), v.get_metadata("scale"), found, nnx.has_data([2])],
        [pure, values(nnx, kernel)],
    )


def quantized(nnx):
    """Variables that keep another value than they show."""

    class Scaled(nnx.Param):
        def get_value(self, **part):
            return super().get_value(**part) * 0.5

    class Quantized(Scaled):
        def set_value(self, value, **part):
            super().set_value(jnp.round(jnp.asarray(value) / 0.5), **part)

    class Mixed(Scaled):
        def get_value(self, **part):
            return super().get_value(**part) + 1

    v, mixed = Quantized(jnp.array([2.0, 4.0, 6.0])), Mixed(jnp.array([2.0]))
    read = [v.get_value(), v[...], v[1], 2 * v, v @ v, 1 - v, -v, abs(v)]
    read += [jnp.sin(v), jax.jit(jnp.sum)(v), len(v), *v, mixed[...], mixed + v]
    read += [v.get_raw_value(), jnp.where(v[...] > 1, v, 0)]
    v[...] = jnp.array([0.6, 1.1, 5.0])
    v[0] = 7.2
    v.set_value(3.3, index=2)
    read += [v[...], v.get_raw_value()]
    layer = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    layer.kernel = Quantized(jnp.ones((2, 3)))

    @nnx.jit
    def step(layer, x):
        grads = nnx.grad(lambda layer: (layer(x) ** 2).sum())(layer)
        layer.kernel[...] = layer.kernel[...] + 0.9
        return grads, layer(x)

    grads, out = step(layer, X[:, :2])
    kernel = grads["kernel"].get_raw_value()
    return read, kernel, out, layer.kernel.get_raw_value(), layer.kernel[...]


# Modules


def views(nnx):
    model = model_of(nnx)
    quiet = quiet_of(nnx)
    only = nnx.with_attributes(model, only=nnx.Dropout, deterministic=True)
    view = nnx.view(model, deterministic=True, raise_if_not_found=False)
    with pytest.raises(ValueError, match="unknown"):
        nnx.view(model, unknown=1)
    return (
        quiet(X),
        view.dropout.deterministic,
        model.dropout.deterministic,
        view.first.kernel is model.first.kernel,
        only.dropout.deterministic,
        only.norm.use_running_average,
    )


def described(nnx):
    class Noise(nnx.Module):
        def set_view(
            self, amount: float | None = 0.5, mode: str | None = None, **kwargs
        ):
            """Sets how it draws.

            Args:
              amount: how much, with:
                a colon.
              mode: its name.

            Returns:
              Nothing.
            """
            return kwargs

    model = nnx.Dict(noise=Noise(), drop=nnx.Dropout(0.5), norm=quiet_of(nnx).norm)
    text = nnx.view_info(model)
    arguments = [
        line.partition(":")[0] for line in text.splitlines() if line[:4].strip()
    ]
    words = nnx.view_info(model, only=Noise).split()  # one library keeps lines
    return words[:-1] if nnx is ours else words, [a for a in arguments if "*" not in a]


def nothing_to_do(nnx):
    empty = nnx.Sequential()
    return empty(), empty(X), empty(X, X), empty(x=X)


def containers(nnx):
    """Lists and dicts are modules."""

    class Layers(nnx.List):
        def __init__(self, layers):
            super().__init__()
            for layer in layers:
                self.append(layer)

        def last(self):
            return self[-1]

    model = nnx.Dict(
        drop=nnx.Dropout(0.5, deterministic=False),
        layers=Layers([nnx.Dropout(0.25, deterministic=False), nnx.Dropout(0.5)]),
    )
    model.layers.eval()
    modes = [model.drop.deterministic, model.layers[0].deterministic]
    model.set_attributes(rate=0.75)
    whole = nnx.Sequential(nnx.Dropout(0.5), nnx.relu)
    return (
        [isinstance(x, nnx.Module) for x in (model, model.layers, whole.layers)],
        [modes, model.drop.rate, model.layers.last().__class__.__name__],
        [
            [(path, type(m).__name__) for path, m in nnx.iter_modules(x)]
            for x in (model, whole)
        ],
        [key for key, _ in nnx.iter_module_children(model)],
    )


def captured(nnx):
    model = quiet_of(nnx, records=True)
    out, hidden = nnx.capture(model, nnx.Intermediate)(X)
    both = nnx.capture(nnx.jit(lambda m, x: m(x)), nnx.Intermediate, nnx.Perturbation)
    _, again, shifts = both(model, X)
    _, outputs = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(
        X
    )

    def from_shift(model, shifts):
        out, seen = nnx.capture(model.__call__, nnx.Intermediate, init=shifts)(X)
        return loss(lambda x: out, X, Y), seen

    gradient, _ = nnx.grad(from_shift, argnums=1, has_aux=True)(model, shifts)
    left = [hasattr(model, name) for name in ("hidden", "shift")]
    parts = hidden, again, shifts, outputs, gradient
    return [out, left, *(values(nnx, part) for part in parts)]


# Training


def trained(nnx, tx, make=quiet_of, **options):
    model = make(nnx)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x, y):
        value, grads = nnx.value_and_grad(loss)(model, x, y)
        optimizer.update(model, grads, **({"value": value} if options else {}))
        return value

    losses = [step(model, optimizer, X, Y) for _ in range(3)]
    return values(nnx, nnx.state(model, nnx.Param)), losses, optimizer.step[...]


def kept_model(nnx):
    model = quiet_of(nnx)
    optimizer = nnx.ModelAndOptimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    grads = nnx.grad(loss)(model, X, Y)
    optimizer.update(grads)
    return optimizer.model is model, values(nnx, nnx.state(model, nnx.Param))


def gradient_by_jax(nnx):
    """The gradient of a pytree is one: a module."""
    model = quiet_of(nnx)
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    pure = nnx.Dict(first=model.first, last=model.last)

    def of(pure, x):
        return jnp.mean(pure["last"](pure["first"](x)) ** 2)

    small = nnx.Optimizer(pure, optax.adam(0.1), wrt=nnx.Param)
    for _ in range(2):
        small.update(pure, jax.grad(of)(pure, X))
    with pytest.raises(TypeError):
        optimizer.update(model)  # no gradients
    return values(nnx, nnx.state(model, nnx.Param))


def state_mask(nnx):
    params = nnx.state(quiet_of(nnx), nnx.Param)
    mask = nnx.map_state(lambda path, leaf: path[-1] == "kernel", params)
    labels = nnx.map_state(lambda path, leaf: path[0], params)
    parts = {"first": optax.sgd(0.1), "last": optax.adam(0.1), "norm": optax.sgd(0.0)}
    decayed = optax.masked(optax.add_decayed_weights(0.5), nnx.as_pure(mask))
    divided = optax.multi_transform(parts, nnx.as_pure(labels))
    return trained(nnx, optax.chain(decayed, divided))


def flat_labels(nnx):
    def labels(params):
        flat = nnx.to_flat_state(params)
        return nnx.from_flat_state([(path, path[0]) for path, _ in flat])

    parts = {"first": optax.sgd(0.1), "last": optax.adam(0.1), "norm": optax.sgd(0.0)}
    return trained(nnx, optax.multi_transform(parts, labels))


def moments(nnx):
    """What is put into the state of the optimizer is what the next step takes."""
    model = quiet_of(nnx)
    optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(loss)(model, X, Y))
    mu = optimizer.opt_state[0].mu
    kernel = mu["first"]["kernel"]
    mu["first"]["kernel"] = type(kernel)(jnp.full((3, 4), 5.0))
    mu.last.bias[...] = jnp.ones(2)
    optimizer.update(model, nnx.grad(loss)(model, X, Y))
    nu = values(nnx, optimizer.opt_state[0].nu)
    return [values(nnx, nnx.state(model, nnx.Param)), values(nnx, mu)["last"], nu]


def plateau(nnx):
    tx = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1))
    return trained(nnx, tx, value=True)


def averaged(nnx):
    model = quiet_of(nnx)
    ema = nnx.EMA(model, decay=0.75, only=nnx.Param)
    follower = ema.apply_to(model)

    @nnx.jit
    def step(model, ema, k):
        params = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p: p + k, params))
        ema.update(model)

    for k in range(3):
        step(model, ema, float(k))
    return (
        follower(X),
        values(nnx, nnx.state(ema.params)),
        follower.first.kernel is ema.params["first"]["kernel"],
        follower.norm.mean is model.norm.mean,
    )


def train_states(nnx):
    class State(nnx.TrainState):
        epoch: int

    graphdef, params, rest = nnx.split(quiet_of(nnx), nnx.Param, ...)
    tx = optax.adam(0.1)
    state = State.create(graphdef, params=params, tx=tx, epoch=0)

    @jax.jit
    def step(state):
        def of(params):
            return loss(nnx.merge(state.graphdef, params, rest), X, Y)

        return state.apply_gradients(jax.grad(of)(state.params), epoch=state.epoch + 1)

    state = step(step(state))
    out, _ = state.apply("params", rest)(X)
    return out, state.step, state.epoch, values(nnx, state.params)


def metrics(nnx):
    seen = nnx.MultiMetric(
        accuracy=nnx.metrics.Accuracy(),
        loss=nnx.metrics.Average("loss"),
        spread=nnx.metrics.Welford("loss"),
    )
    before = [np.isnan(seen.accuracy.compute()), list(seen.compute())]

    @nnx.jit
    def update(seen, logits, labels, loss):
        seen.update(logits=logits, labels=labels, loss=loss)

    for k in range(3):
        update(seen, LOGITS, LABELS, LABELS * float(k))
    seen.loss.update(loss=5)
    found = seen.compute()
    names = type(found["spread"]).__annotations__
    spread = [getattr(found["spread"], name) for name in names]
    seen.reset()
    binary = nnx.metrics.Accuracy(threshold=0.5)
    binary.update(logits=LOGITS[:, 0], labels=LABELS, mask=np.array([1, 1, 1, 0]))
    return before, found["accuracy"], found["loss"], spread, binary.compute()


def own_metric(nnx):
    class Largest(nnx.Metric):
        def __init__(self):
            self.value = nnx.metrics.MetricState(jnp.array(0.0))

        def update(self, *, values, **_):
            self.value[...] = jnp.maximum(self.value[...], jnp.max(values))

        def compute(self):
            return self.value[...]

        def reset(self):
            self.value[...] = jnp.array(0.0)

    both = nnx.MultiMetric(top=Largest(), mean=nnx.metrics.Average())
    nnx.jit(lambda m: m.update(values=X))(both)
    return both.compute()


# Transformations


def scanned_layers(nnx):
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(3, 3, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.linear(x))

    @nnx.split_rngs(splits=2)
    @nnx.vmap(in_axes=0)
    def make(rngs):
        return Block(rngs)

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def forward(x, block):
        return block(x)

    blocks = make(nnx.Rngs(0, dropout=1))
    return forward(X, blocks), forward(X, blocks), blocks.dropout.rngs.count[...]


def axes_of_metadata(nnx):
    inside = []

    def make(x):
        return nnx.Param(x, out_sharding=("model",), eager_sharding=False)

    def look(v, total, factor):
        inside.append(v.get_metadata("out_sharding"))
        return total + (factor * v[...]).sum()

    named = nnx.transform_metadata(partition="layers")
    over = {"in_axes": (0, nnx.Carry, None), "out_axes": nnx.Carry}
    run = nnx.transform_metadata(look, partition="layers", **over, graph=True)
    stacks = nnx.vmap(named(make))(jnp.ones((2, 3))), jax.vmap(named(make))(X)
    alone = nnx.transform_metadata(make, out_axes=1, partition=None)(jnp.ones(3))
    total = nnx.scan(run, **over)(stacks[0], jnp.array(0.0), 2.0)
    shardings = [v.get_metadata("out_sharding") for v in (*stacks, alone)]
    return shardings, inside[0], total


def modes(nnx):
    model = shared(nnx)
    graphdef, params = nnx.split(model, nnx.Param, graph=True)
    twin = nnx.clone(nnx.merge(graphdef, params), graph=True)
    found = [path for path, x in nnx.iter_graph(twin, graph=True) if nnx.is_data(x)]
    own = nnx.clone(model, arrays=True, graph=True)
    state = nnx.compat.state(own, nnx.PathContains("c", exact=False))
    with nnx.set_graph_mode(True), nnx.set_graph_updates(True):
        nnx.jit(lambda m: nnx.update(m, nnx.state(twin)), graph_updates=True)(own)
    return sorted(found, key=str), values(nnx, state), own.c[...]


def generic(nnx):
    class Box(nnx.Module, typing.Generic[nnx.A]):
        def __init__(self, content: nnx.A):
            self.content = nnx.data(content)

    return Box[int](jnp.ones(2)).content


def prefixes(nnx):
    model = nnx.Dict(w=nnx.Param(jnp.arange(3.0)), b=nnx.BatchStat(jnp.array(2.0)))
    axes = nnx.prefix(model, {nnx.Param: 0, ...: None})
    tree = {"a": nnx.Param(jnp.array(2)), "b": nnx.BatchStat(jnp.arange(5))}
    by_path = nnx.prefix(tree, lambda path, x: 0 if "b" in path else None)
    of_model = nnx.vmap(lambda m: m.w[...] * m.b[...], in_axes=(axes,), graph=True)
    of_tree = nnx.vmap(lambda t: t["a"][...] * t["b"][...], in_axes=(by_path,))
    return of_model(model), of_tree(tree)


def bound(nnx):
    counter = nnx.Dict(n=nnx.Variable(jnp.array(0)))

    def add(counter, k):
        counter.n[...] += k
        return counter.n[...]

    first = nnx.cached_partial(nnx.jit(add), counter)
    return first(1), first(2), counter.n[...]


PROGRAMS = [
    state_functions,
    flat_states,
    nested_mappings,
    unpacked,
    duplicates,
    mapped_recursively,
    merged_live,
    tools_for_variables,
    variables_in_trees,
    quantized,
    views,
    described,
    nothing_to_do,
    containers,
    captured,
    kept_model,
    gradient_by_jax,
    state_mask,
    flat_labels,
    moments,
    plateau,
    averaged,
    train_states,
    metrics,
    own_metric,
    scanned_layers,
    axes_of_metadata,
    modes,
    generic,
    bound,
]


def assert_same(found, due, path=""):
    if isinstance(due, dict):
        assert found.keys() == due.keys(), path
        for key in due:
            assert_same(found[key], due[key], f"{path}/{key}")
    elif isinstance(due, list | tuple):
        assert len(found) == len(due), path
        for key, (a, b) in enumerate(zip(found, due, strict=True)):
            assert_same(a, b, f"{path}/{key}")
    elif hasattr(due, "dtype"):
        np.testing.assert_allclose(found, due, rtol=2e-5, atol=1e-6, err_msg=path)
        assert np.asarray(found).dtype == due.dtype, path
    else:
        assert found == due, path


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_results(program):
    assert_same(program(ours), program(theirs))


def mapped_records(nnx, record):
    """What examples record, one by one, and its gradients."""
    model = quiet_of(nnx, records=True)
    _, shifts = nnx.capture(record, nnx.Perturbation)(model)

    @nnx.vmap(in_axes=(None, 0, 0))
    def gradients(model, shifts, x):
        def of(model, shifts, x):
            out, seen = nnx.capture(model, nnx.Intermediate, init=shifts)(x)
            return jnp.sum(out**2), seen

        grads, seen = nnx.grad(of, argnums=1, has_aux=True)(model, shifts, x)
        return nnx.merge_state(grads, seen)

    return [values(nnx, state) for state in (shifts, gradients(model, shifts, X))]


def test_records_of_examples():
    def live(model):
        axes = ours.StateAxes({ours.Intermediate: 0, ...: None})
        return ours.vmap(lambda model, x: model(x), in_axes=(axes, 0))(model, X)

    def by_states(model):
        # Its states hold the live variables.
        graphdef, records, rest = theirs.split(model, theirs.Intermediate, ...)
        run = lambda records, rest, x: theirs.merge(graphdef, records, rest)(x)
        return theirs.vmap(run, in_axes=(0, None, 0))(records, rest, X)

    assert_same(mapped_records(ours, live), mapped_records(theirs, by_states))


def test_prefixes_where_flax_takes_trees():
    by_model, by_tree = prefixes(ours)
    assert by_model.tolist() == [0.0, 2.0, 4.0]
    assert by_tree.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("spelled", ["sharding", "out_sharding"])
def test_stacked_layers_name_the_new_axis(spelled):
    init = ours.with_metadata(ours.initializers.ones, **{spelled: (None, "model")})

    @ours.vmap(transform_metadata={ours.PARTITION_NAME: "layers"})
    def make(key):
        return ours.Dict(w=ours.Param(init(key, (2, 3))))

    stack = make(jax.random.split(jax.random.key(0), 4))
    assert stack.w.get_metadata(spelled) == ("layers", None, "model")
