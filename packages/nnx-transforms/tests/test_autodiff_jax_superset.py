"""Derivatives of functions of plain pytrees behave as JAX's own."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnx_transforms import Dict, Param
from nnx_transforms.transforms.checkpoint import remat
from nnx_transforms.transforms.grad import grad, value_and_grad
from nnx_transforms.transforms.jacobian import hessian, jacfwd, jacrev
from nnx_transforms.transforms.jvp import jvp, linearize
from nnx_transforms.transforms.vjp import vjp

OURS = {
    "grad": grad,
    "value_and_grad": value_and_grad,
    "jacfwd": jacfwd,
    "jacrev": jacrev,
    "hessian": hessian,
}

shapes = st.sampled_from([(), (2,), (2, 3), (1, 2), (0,)])
dtypes = st.sampled_from([jnp.float32, jnp.bfloat16, jnp.complex64, jnp.int32])


@st.composite
def arrays(draw, dtypes=dtypes):
    random = np.random.default_rng(draw(st.integers(0, 99)))
    shape, dtype = draw(shapes), draw(dtypes)
    if dtype == jnp.int32:
        return jnp.asarray(random.integers(-3, 4, shape), dtype)
    values = random.normal(size=shape)
    if dtype == jnp.complex64:
        values = values + 1j * random.normal(size=shape)
    return jnp.asarray(values, dtype)


def sorted_by_key(mapping):
    # Arguments are rebuilt from their leaves, so that the function sees a dict in the
    # order of its keys, as under jax.jit; jax.grad passes on undifferentiated dicts as
    # they are. Dicts in that order are the same to both.
    return dict(sorted(mapping.items()))


def trees(leaves):
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=2),
            st.tuples(inner),
            st.dictionaries(st.sampled_from("ab"), inner, max_size=2).map(
                sorted_by_key
            ),
            st.none(),
        ),
        max_leaves=3,
    )


floats = arrays(st.sampled_from([jnp.float32]))
numbers = st.floats(-2, 2, width=32)


def total(x):
    return sum((jnp.sum(jnp.sin(v) * jnp.abs(v)) for v in jax.tree.leaves(x)), 0.0)


def same_tree(x):
    return jax.tree.map(lambda v: jnp.cos(v) * 2, x)


# Functions of a list of pytrees, by what they return.
FUNCTIONS = {
    "scalar": lambda *args: total(args),
    "product": lambda *args: total(args[0]) * (1.0 + total(args[1:])),
    "constant": lambda *args: 1.0,
    "integer": lambda *args: jnp.array(1),
    "vector": lambda *args: jnp.stack([total(a) for a in args]),
    "tree": lambda *args: {"k": [same_tree(a) for a in args], "n": None},
    "identity": lambda *args: args,
    "none": lambda *args: None,
    "raises": lambda *args: args[99],
    "pair": lambda *args: (total(args), {"aux": args, "text": 1}),
    "list_pair": lambda *args: [total(args[:1]), args],
}
functions = st.sampled_from(sorted(FUNCTIONS))


def outcome(call):
    """What a call returned, or the type and message of its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "returned", call()
    except Exception as error:
        return "raised", error


def assert_same_outcome(ours, theirs, messages=True):
    kind, got = outcome(ours)
    want_kind, want = outcome(theirs)
    assert kind == want_kind, (got, want)
    if kind == "raised":
        assert type(got) is type(want), (got, want)
        if messages:
            assert str(got) == str(want)
    else:
        assert_same(got, want)


def assert_same(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert type(a) is type(b)
        if not isinstance(a, jax.Array | np.ndarray):
            assert a == b
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert getattr(a, "weak_type", False) == getattr(b, "weak_type", False)
        if a.dtype != jax.dtypes.float0:
            np.testing.assert_array_equal(a, b)


@st.composite
def argument_lists(draw, leaves=None):
    inner = arrays() if leaves is None else leaves
    return draw(st.lists(trees(st.one_of(inner, numbers)), min_size=1, max_size=3))


argnums = st.one_of(
    st.integers(-3, 3),
    st.lists(st.integers(-1, 2), max_size=2, unique=True).map(tuple),
    st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True),
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(OURS)),
    functions,
    argument_lists(),
    argnums,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_derivatives(name, function, args, argnums, has_aux, holomorphic, allow_int):
    f = FUNCTIONS[function]
    options = {"argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic}
    if name not in ("jacfwd", "hessian"):
        options["allow_int"] = allow_int
    if isinstance(argnums, tuple | list):
        positions = [n % len(args) for n in argnums]
        if len(set(positions)) < len(positions):
            return  # A repeated argument: JAX lets that pass.
    ours, theirs = OURS[name], getattr(jax, name)
    assert_same_outcome(
        lambda: ours(f, **options)(*args), lambda: theirs(f, **options)(*args)
    )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(OURS)), argument_lists(floats), argnums)
def test_derivatives_of_real_functions(name, args, argnums):
    ours, theirs = OURS[name], getattr(jax, name)
    f = FUNCTIONS["product"]
    if isinstance(argnums, tuple | list):
        positions = [n % len(args) for n in argnums]
        if len(set(positions)) < len(positions):
            return
    assert_same_outcome(
        lambda: ours(f, argnums)(*args), lambda: theirs(f, argnums)(*args)
    )


@settings(max_examples=100, deadline=None)
@given(functions, argument_lists(), st.booleans(), st.booleans())
def test_vjp(function, args, has_aux, right):
    f = FUNCTIONS[function]

    def use(transform):
        out, pull, *aux = transform(f, *args, has_aux=has_aux)
        cotangent = zero_tangent(out) if right else (out, 1)
        return out, pull(cotangent), aux

    assert_same_outcome(lambda: use(vjp), lambda: use(jax.vjp))


def zero_tangent(tree):
    def zero(x):
        x = jnp.asarray(x)
        if jnp.issubdtype(x.dtype, jnp.inexact):
            return jnp.cos(x.real).astype(x.dtype)
        return np.zeros(x.shape, jax.dtypes.float0)

    return jax.tree.map(zero, tree)


@settings(max_examples=100, deadline=None)
@given(functions, argument_lists(), st.booleans(), st.sampled_from("rights"))
def test_jvp_and_linearize(function, args, has_aux, kind):
    f = FUNCTIONS[function]
    tangents = {
        "r": tuple(map(zero_tangent, args)),
        "i": tuple(map(zero_tangent, args)),
        "g": list(map(zero_tangent, args)),
        "h": tuple(map(zero_tangent, args))[1:],
        "t": None,
        "s": tuple(args),
    }[kind]
    # The `jvp` of JAX 0.10 takes an array of two for the pair.
    if not (has_aux and function == "vector"):
        assert_same_outcome(
            lambda: jvp(f, tuple(args), tangents, has_aux=has_aux),
            lambda: jax.jvp(f, tuple(args), tangents, has_aux=has_aux),
        )

    def use(transform):
        out, push, *aux = transform(f, *args, has_aux=has_aux)
        return out, push(*tangents), aux

    assert_same_outcome(lambda: use(linearize), lambda: use(jax.linearize))


@settings(max_examples=80, deadline=None)
@given(functions, argument_lists(), st.booleans(), st.integers(-2, 2), st.booleans())
def test_remat(function, args, compiled, static, use_static):
    f = FUNCTIONS[function]
    options = {"prevent_cse": compiled}
    if use_static:
        options["static_argnums"] = static

    def use(transform):
        g = transform(f, **options)
        return (jax.jit(g) if compiled and not use_static else g)(*args)

    assert_same_outcome(lambda: use(remat), lambda: use(jax.checkpoint))


@settings(max_examples=30, deadline=None)
@given(argument_lists(floats))
def test_gradients_through_remat(args):
    f = FUNCTIONS["product"]
    for policy in (
        None,
        jax.checkpoint_policies.everything_saveable,
        jax.checkpoint_policies.dots_saveable,
    ):
        assert_same_outcome(
            lambda: grad(remat(f, policy=policy))(*args),
            lambda: jax.grad(jax.checkpoint(f, policy=policy))(*args),
        )


@pytest.mark.parametrize("name", OURS)
def test_keyword_arguments_are_not_differentiated(name):
    ours, theirs = OURS[name], getattr(jax, name)
    f = lambda x, *, scale=1.0, **more: x * scale + more.get("shift", 0.0)
    assert_same_outcome(
        lambda: ours(f)(2.0, scale=3.0, shift=1.0),
        lambda: theirs(f)(2.0, scale=3.0, shift=1.0),
    )
    assert_same_outcome(lambda: ours(f)(x=2.0), lambda: theirs(f)(x=2.0))
    assert_same_outcome(
        lambda: ours(f, "a")(2.0), lambda: theirs(f, "a")(2.0), messages=False
    )
    assert_same_outcome(lambda: ours(f, (0, 5))(2.0), lambda: theirs(f, (0, 5))(2.0))


def test_arguments_that_are_no_arrays_pass():
    f = lambda x, mode, g: g(x) if mode == "on" else x
    want = jax.grad(f)(2.0, "on", jnp.sin)
    assert grad(f)(2.0, "on", jnp.sin) == want
    _, pull = vjp(lambda x: f(x, "on", jnp.sin), 2.0)
    assert pull(1.0)[0] == want


def test_objects_only_in_the_output():
    value, aux = grad(lambda x: (x**2, Param(x)), has_aux=True)(3.0)
    assert float(value) == 6.0
    assert float(aux.value) == 3.0
    out = remat(lambda x: {"p": Param(x)})(3.0)
    assert float(out["p"].value) == 3.0


def test_pull_backs_are_pytrees():
    _, pull = vjp(jnp.sin, 2.0)
    got = jax.jit(lambda pull, ct: pull(ct))(pull, 1.0)[0]
    assert float(got) == pytest.approx(float(jnp.cos(2.0)))


@pytest.mark.parametrize("given", [(), (1.0, 2.0)])
def test_a_pullback_takes_the_cotangent_of_the_output_alone(given):
    model = Dict(w=Param(jnp.array(3.0)))
    _, pull = vjp(lambda m: m.w.value**2, model)
    with pytest.raises(TypeError, match=f"one cotangent.*given {len(given)} arguments"):
        pull(*given)
    assert float(pull(1.0)[0].w.value) == 6.0
