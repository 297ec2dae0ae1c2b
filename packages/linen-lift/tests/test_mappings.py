"""Variables in mappings that are no dicts: read, copied, and never changed."""

import collections
import types

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn

X = jnp.ones((2, 4))


@jax.tree_util.register_pytree_node_class
class Frozen(collections.UserDict):
    """As Flax's `FrozenDict`: a pytree, which refuses changes."""

    made = False

    def __init__(self, content):
        super().__init__(content)
        self.made = True

    def __setitem__(self, key, value):
        if self.made:
            raise ValueError("It is immutable.")
        self.data[key] = value

    def unfreeze(self):
        raise AssertionError("The name is enough.")

    def tree_flatten(self):
        return [self.data[k] for k in sorted(self.data)], tuple(sorted(self.data))

    @classmethod
    def tree_unflatten(cls, keys, values):
        return cls(dict(zip(keys, values, strict=True)))


@jax.tree_util.register_pytree_node_class
class Table(Frozen):
    """A pytree of its own: the value of a variable."""

    unfreeze = property()


class Counter(nn.Module):
    @nn.compact
    def __call__(self):
        n = self.variable("state", "n", lambda: 0)
        n.value += 1
        return n.value


class Around(nn.Module):
    @nn.compact
    def __call__(self):
        return Counter(name="counter")()


KINDS = [
    dict,
    collections.UserDict,
    collections.OrderedDict,
    types.MappingProxyType,
    lambda x: collections.ChainMap({}, x),
    Frozen,
    nn.freeze,
]


def plain(tree):
    if isinstance(tree, collections.abc.Mapping):
        return {k: plain(v) for k, v in tree.items()}
    return tree


@pytest.mark.parametrize("inner", KINDS)
@pytest.mark.parametrize("outer", KINDS)
def test_what_is_given_does_not_change(outer, inner):
    given = {"state": outer({"counter": inner({"n": 4}), "other": inner({"n": 7})})}
    out, new = Around().apply(given, mutable="state")
    assert (out, new) == (5, {"state": {"counter": {"n": 5}, "other": {"n": 7}}})
    assert type(new["state"]) is type(new["state"]["other"]) is dict
    assert plain(given) == {"state": {"counter": {"n": 4}, "other": {"n": 7}}}


@pytest.mark.parametrize("inner", KINDS)
@pytest.mark.parametrize("outer", KINDS)
def test_unfreeze_copies_any_mapping(outer, inner):
    given = outer({"a": inner({"b": 1}), "c": 2})
    found = nn.unfreeze(given)
    assert found == {"a": {"b": 1}, "c": 2}
    assert type(found) is type(found["a"]) is dict
    found["a"]["b"] = 3
    assert given["a"]["b"] == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mutable", [False, "params"])
def test_parameters_of_a_lifted_class(kind, mutable):
    params = kind({"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)})
    model = nn.jit(nn.Dense)(3)
    out = model.apply({"params": params}, X, mutable=mutable)
    out = out[0] if mutable else out
    assert (out == 5).all()


def scale(scope, x):
    return x * scope.get_variable("params", "scale")


def sign_of_gradient(scope, x):
    def forward(scope, x):
        return nn.lift.vjp(scale, scope, x)

    def backward(pull_back, cotangent):
        params, x = pull_back(cotangent)
        return {"params": {"scale": jnp.sign(params["params"]["scale"])}}, x

    return nn.lift.custom_vjp(scale, forward, backward)(scope, x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mutable", [False, "params"])
def test_derivatives_in_variables_of_any_kind(kind, mutable):
    def along(scope, x):
        tangents = {"params": kind({"scale": 1.0})}
        return nn.lift.jvp(scale, scope, (x,), (0.0,), tangents)[1]

    def of(fn, params):
        out = nn.scope.apply(fn, mutable=mutable)({"params": params}, 7.0)
        return out[0] if mutable else out

    params = kind({"scale": jnp.float32(3)})
    assert of(along, params) == 7
    if jax.tree_util.all_leaves((params,)):
        return  # JAX has no derivatives in what it takes for a leaf
    assert jax.grad(lambda params: of(sign_of_gradient, params))(params)["scale"] == 1


def test_a_registered_mapping_is_a_value():
    class Holds(nn.Module):
        @nn.compact
        def __call__(self):
            return self.variable("state", "table", lambda: Table({"a": 1})).value["a"]

    variables = Holds().init({})
    assert type(variables["state"]["table"]) is Table
    out, new = Holds().apply(variables, mutable="state")
    assert out == 1
    assert type(new["state"]["table"]) is Table
