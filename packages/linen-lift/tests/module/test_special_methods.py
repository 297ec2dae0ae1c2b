"""Operators and other special methods of modules."""

import copy
import pickle

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn

KEY, X = jax.random.key(0), jnp.ones((2, 4))


class Linear(nn.Module):
    @nn.compact
    def __matmul__(self, x):
        return nn.Dense(3)(x)

    @nn.compact_name_scope
    def __getitem__(self, x):
        return nn.Dense(2)(x)

    @nn.compact
    def __lt__(self, x):  # one that every object has
        return x * self.param("w", nn.initializers.ones, (4,))

    def __len__(self):
        return 7


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        linear = Linear()
        return linear @ x, linear[x], linear < x


class WithSetup(nn.Module):
    def setup(self):
        self.linear = Linear()

    def __call__(self, x):
        return self.linear @ x, self.linear[x], self.linear < x


DENSE = {"bias": (3,), "kernel": (4, 3)}
BELOW = {"Dense_0": {"bias": (2,), "kernel": (4, 2)}}


@pytest.mark.parametrize(("cls", "name"), [(Net, "Linear_0"), (WithSetup, "linear")])
def test_a_special_method_can_be_compact(cls, name):
    variables = cls().init(KEY, X)
    expected = {"Dense_0": DENSE, "__getitem__": BELOW, "w": (4,)}
    assert jax.tree.map(jnp.shape, variables["params"]) == {name: expected}
    assert [out.shape for out in cls().apply(variables, X)] == [(2, 3), (2, 2), (2, 4)]


def test_a_special_method_by_name():
    variables = Linear().init(KEY, X, method="__matmul__")
    assert jax.tree.map(jnp.shape, variables["params"]) == {"Dense_0": DENSE}
    assert Linear().apply(variables, X, method=Linear.__matmul__).shape == (2, 3)


def test_submodules_belong_to_the_module_of_the_operator():
    class Plain(nn.Module):
        def __matmul__(self, x):
            return nn.Dense(3)(x)

    class Around(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Plain() @ x

    with pytest.raises(nn.errors.AssignSubModuleError, match="in Plain at path"):
        Around().init(KEY, X)


def test_interceptors_see_operators():
    seen = []

    def note(call, args, kwargs, context):
        seen.append(context.method_name)
        return call(*args, **kwargs)

    variables = Net().init(KEY, X)
    with nn.intercept_methods(note):
        Net().apply(variables, X)
        assert len(Linear()) == 7
    assert [name for name in seen if name.startswith("__")] == [
        "__call__",
        "__matmul__",
        "__call__",
        "__call__",
        "__call__",
        "__lt__",
        "__len__",
    ]


class Own(nn.Module):
    """Overrides what Python itself calls; it is no method of the module then."""

    def __post_init__(self):
        super().__post_init__()

    def __getattr__(self, name):
        return super().__getattr__(name)

    def __repr__(self):
        return "Own"

    def __copy__(self):
        return self.clone()

    def __deepcopy__(self, memo):
        return self.clone()

    def __call__(self, x):
        return x


def test_what_python_calls_is_no_method():
    seen = []

    def note(call, args, kwargs, context):
        seen.append(context.method_name)
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        own = copy.deepcopy(copy.copy(pickle.loads(pickle.dumps(Own()))))
        assert repr(own) == "Own"
        assert not hasattr(own, "missing")
        own.apply({}, X)
    assert seen == ["__call__"]
