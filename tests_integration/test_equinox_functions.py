"""Equinox modules as functions, their methods, and arrays that are static in them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnx_transforms as nnx


class Scale(eqx.Module):
    w: jax.Array

    @nnx.jit
    def __call__(self, x):
        return (self.w * x).sum()


class Term(eqx.Module):
    field: object


class Grid(eqx.Module):
    w: jax.Array
    points: np.ndarray = eqx.field(static=True)

    def __call__(self, x):
        return (self.w * x * self.points).sum()


@pytest.fixture
def scale():
    return Scale(jnp.arange(3.0))


def test_a_module_is_part_of_its_jitted_method(scale):
    traces = []

    @nnx.jit
    def gradient(term, x):
        traces.append(term)
        return nnx.grad(lambda term: term.field(x))(term)

    x = jnp.ones(3)
    for _ in range(2):
        grads = gradient(Term(scale.__call__), x)
        np.testing.assert_allclose(grads.field.__self__.w, x)
    assert len(traces) == 1


@pytest.mark.parametrize("made", [lambda f: f, lambda f: eqx.Partial(f, x=2.0)])
@pytest.mark.parametrize("argument", [Scale, nnx.Param])
def test_a_module_that_is_jitted_takes_modules_and_objects(made, argument):
    class Product(eqx.Module):
        w: jax.Array

        def __call__(self, other, x=2.0):
            value = other.w if isinstance(other, Scale) else other.value
            return (self.w * value).sum() * x

    jitted = nnx.jit(made(Product(jnp.ones(3))))
    for _ in range(2):
        assert float(jitted(argument(jnp.arange(3.0)))) == 6.0


warns_of_arrays = pytest.mark.filterwarnings("ignore:A JAX array is being set as stat")


@warns_of_arrays
@pytest.mark.parametrize("transform", [nnx.jit, nnx.grad, nnx.remat])
def test_static_arrays_of_modules_may_differ(transform):
    transformed = transform(Grid.__call__)
    points = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([1.0, 2.0, 3.0])
    grids = [Grid(jnp.ones(len(p)), p) for p in points]
    for grid in [*grids, *grids]:
        out = transformed(grid, 2.0)
        if transform is nnx.grad:
            np.testing.assert_allclose(out.w, 2 * grid.points)
        else:
            np.testing.assert_allclose(out, 2 * grid.points.sum())


@warns_of_arrays
def test_static_arrays_of_modules_that_are_attributes_may_differ():
    class Holder(nnx.Module):
        def __init__(self, points):
            self.grid = Grid(jnp.ones(2), points)

    @nnx.jit
    def double(holder):
        grid = holder.grid
        holder.grid = eqx.tree_at(lambda g: g.w, grid, 2 * grid.w)
        return holder.grid(1.0)

    for points in np.array([1.0, 2.0]), np.array([3.0, 4.0]):
        holder = Holder(points)
        assert float(double(holder)) == 2 * points.sum()
        assert float(double(holder)) == 4 * points.sum()
        np.testing.assert_allclose(nnx.clone(holder).grid.w, [4.0, 4.0])


@warns_of_arrays
def test_layers_with_static_arrays_of_their_own_under_remat():
    @nnx.jit
    def loss(layers, x):
        for layer in layers:
            x = nnx.remat(Grid.__call__)(layer, x)
        return x

    layers = [Grid(jnp.ones(2), np.array([1.0, k])) for k in (2.0, 3.0)]
    grads = nnx.grad(loss)(layers, 2.0)
    np.testing.assert_allclose(grads[0].w, [8.0, 16.0])
    np.testing.assert_allclose(grads[1].w, [6.0, 18.0])


def test_a_loop_that_changes_a_number_in_a_module_is_refused():
    with pytest.raises(TypeError, match=r"what is static.*\n  carry/field: 0 -> 1"):
        nnx.fori_loop(0, 3, lambda i, term: Term(term.field + 1), Term(0))
    looped = nnx.fori_loop(
        0, 3, lambda i, term: Term(term.field + 1), Term(jnp.array(0))
    )
    assert int(looped.field) == 3


@pytest.mark.parametrize("held", [lambda net: net, nnx.Param])
def test_compilations_are_explained_by_the_paths_in_a_module(held):
    jitted = nnx.jit(lambda net: jax.tree.leaves(nnx.as_pure(net))[0])
    found = []
    for width, act in [(3, "relu"), (4, "relu"), (4, "tanh")]:
        net = eqx.nn.MLP(2, 2, width, 1, getattr(jax.nn, act), key=jax.random.key(0))
        jitted(held(net))
        found.append({place: new for place, _, new in nnx.explain_recompile(jitted)})
    weight = next(place for place in found[1] if place.endswith("layers/0/weight"))
    assert found[1][weight] == "float32[4,2]"
    assert [place.endswith("/activation") for place in found[2]] == [True]


def apply(net, x):
    return net(x)


@pytest.mark.parametrize("transform", [nnx.jit, nnx.remat])
def test_a_module_may_be_an_argument_before_it_is_complete(transform):
    applied = transform(apply)  # keeps what it was traced for

    class Sized(eqx.Module):
        layer: eqx.nn.Linear
        size: int = eqx.field(static=True)

        def __init__(self):
            self.layer = eqx.nn.Linear(2, 3, key=jax.random.key(0))
            self.size = applied(self, jnp.ones(2)).size

        def __call__(self, x):
            return self.layer(x)

    net = Sized()
    assert nnx.jit(lambda net: net)(net).size == 3


class Holder(eqx.Module):
    value: object


@pytest.mark.parametrize("number", [2.0, np.float32(2), jnp.array(2.0)])
def test_rules_of_a_module_that_holds_a_number_that_is_differentiated(number):
    # JAX hands a rule the number itself.
    square = nnx.custom_vjp(lambda m: Holder(m.value**2), input_updates=False)
    square.defvjp(
        lambda m: (Holder(m.value**2), m),
        lambda m, g: (Holder(2 * m.value * g.value),),
    )
    of_number = lambda x: square(Holder(x)).value
    mapped = lambda x: jax.vmap(of_number, in_axes=None, axis_size=3)(x).sum()
    assert jax.grad(of_number)(number) == nnx.grad(of_number)(number) == 4.0
    assert jax.grad(mapped)(number) == 12.0

    push = nnx.custom_jvp(lambda m: Holder(m.value**2))
    push.defjvp(
        lambda primals, tangents: (
            Holder(primals[0].value ** 2),
            Holder(2 * primals[0].value * tangents[0].value),
        )
    )
    of_number = lambda x: push(Holder(x)).value
    out = jax.jvp(of_number, (number,), (jnp.ones_like(number),))
    assert [*map(float, out)] == [4.0, 4.0]
    assert jax.grad(of_number)(number) == 4.0


class Mean(eqx.Module):
    """Sets one of its fields: what JAX makes of it anew has stand-ins for its names."""

    w: jax.Array
    transform: object = None

    def __init__(self):
        self.w = jnp.array(3.0)

    def __call__(self, x):
        return self.w * x


@pytest.mark.parametrize(
    ("of", "due"),
    [
        (lambda f: nnx.vmap(f)(jnp.ones(2)).sum(), 6.0),
        (lambda f: nnx.grad(f)(1.0), 3.0),
        (lambda f: nnx.jvp(f, (1.0,), (1.0,))[1], 3.0),
        (lambda f: nnx.vjp(f, 1.0)[1](1.0)[0], 3.0),
        (lambda f: nnx.hessian(f)(1.0), 0.0),
        (lambda f: nnx.remat(f)(1.0), 3.0),
        (lambda f: nnx.jit(f)(1.0), 3.0),
        (lambda f: (lambda g, w: g(1.0, *w))(*nnx.closure_convert(f, 1.0)), 3.0),
    ],
)
def test_a_module_that_was_made_anew_is_a_function(of, due):
    module = jax.tree.map(lambda x: x, Mean())
    assert float(of(module)) == due
    assert float(nnx.jit(lambda module: of(module))(module)) == due


def test_it_is_called_by_its_class():
    assert nnx.vmap(jax.tree.map(lambda x: x, Mean())).__name__ == "Mean"


def test_a_module_among_the_arguments_of_stages_has_its_arrays():
    net = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    f = nnx.jit(lambda d, net, x: net(d.net.value(x)[:2]))
    lowered = f.lower(nnx.Dict(net=nnx.Param(net)), net, jnp.ones(2))
    (state, of_net, _), _ = jax.tree.map(lambda x: x.shape, lowered.in_avals)
    assert (of_net.weight, of_net.in_features) == ((3, 2), 2)
    assert state["net"].value.bias == (3,)
