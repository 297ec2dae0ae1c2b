"""What code that others wrote does with modules, beyond the usual."""

import copy
import dataclasses
import functools
import sys
import textwrap
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn

KEY, X = jax.random.key(0), jnp.ones((2, 3))
T = TypeVar("T")


def names(model, *args):
    return sorted(model.init(KEY, *args)["params"])


class Scale(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x * self.param("scale", nn.initializers.ones, ())


class Pair(NamedTuple):
    u: Any
    v: Any


class Field(nn.Module):
    inner: Any

    def __call__(self, x):
        for each in jax.tree.leaves(
            self.inner, is_leaf=lambda m: isinstance(m, nn.Module)
        ):
            x = each(x)
        return x


def test_an_attribute_looked_up_before_init():
    class Mixin:
        def __new__(cls, *args, **kwargs):
            self = super().__new__(cls)
            assert not hasattr(self, "_cache")
            return self

    class Net(Mixin, Scale):
        pass

    assert names(Net(), X) == ["scale"]


def test_several_compact_methods_name_from_the_start():
    class Coder(nn.Module):
        @nn.compact
        def encode(self, x):
            return nn.Dense(3)(nn.Dense(3)(x))

        @nn.compact
        def decode(self, x):
            return nn.Dense(3)(x)

        def __call__(self, x):
            return self.decode(self.encode(x))

    variables = Coder().init(KEY, X)
    assert sorted(variables["params"]) == ["Dense_0", "Dense_1"]
    encoded = Coder().apply(variables, X, method="encode")
    decoded = Coder().apply(variables, encoded, method=Coder.decode)
    assert jnp.allclose(decoded, Coder().apply(variables, X))


def test_any_mutable_but_false_gives_a_pair():
    assert Scale().apply({"params": {"scale": 2.0}}, X, mutable=[])[1] == {}
    assert Scale().apply({"params": {"scale": 2.0}}, X).shape == X.shape


def test_interceptors_see_setup():
    class Net(nn.Module):
        def setup(self):
            self.dense = nn.Dense(2)

        def __call__(self, x):
            return self.dense(x)

    seen = []

    def record(next_fun, args, kwargs, context):
        seen.append((type(context.module).__name__, context.method_name))
        return next_fun(*args, **kwargs)

    with nn.intercept_methods(record):
        Net().init(KEY, X)
    assert seen == [("Net", "setup"), ("Net", "__call__"), ("Dense", "__call__")]


def test_value_and_grad_has_the_form_of_jax():
    class Energy(nn.Module):
        @nn.compact
        def __call__(self, x):
            f = lambda m, x: (m(x).sum(), "aux")
            both = nn.value_and_grad(f, Scale(), x, has_aux=True)
            return both, nn.grad(f, Scale(), x, has_aux=True)

    ((out, aux), (grad,)), ((other,), also) = Energy().init_with_output(KEY, X)[0]
    assert float(out) == 6
    assert aux == also == "aux"
    assert (grad == 1).all() and (other == 1).all()


def test_modules_are_copied():
    model = Field(Scale())
    assert names(copy.deepcopy(model), X) == names(model, X)
    default = nn.Dense.__dataclass_fields__["parent"].default
    assert copy.deepcopy(default) is copy.copy(default) is default


def test_a_class_pickled_by_value():
    cloudpickle = pytest.importorskip("cloudpickle")

    class Local(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.width)(x)

    loaded = cloudpickle.loads(cloudpickle.dumps(Local))
    assert names(loaded(3), X) == ["Dense_0"]


def test_a_generic_module():
    class Generic_(nn.Module, Generic[T]):
        width: int

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.width)(x)

    class Outer(nn.Module):
        def setup(self):
            self.inner = Generic_[int](2)

        @nn.compact
        def __call__(self, x):
            return Generic_[str](3)(self.inner(x))

    assert names(Outer(), X) == ["Generic__0", "inner"]


def test_a_field_that_setup_sets():
    class Net(nn.Module):
        dense: nn.Dense = dataclasses.field(init=False)

        def setup(self):
            self.dense = nn.Dense(2)

        def __call__(self, x):
            return self.dense(x)

    assert names(Net(), X) == ["dense"]


def test_attributes_of_an_unbound_module_can_be_set():
    model = nn.Dense(2)
    model.features = 5
    assert model.init(KEY, X)["params"]["bias"].shape == (5,)


def test_bound_methods_as_functions():
    class Net(nn.Module):
        def setup(self):
            self.dense = nn.Dense(3)

        def add(self, x):
            return self.dense(x) + 1

        def sub(self, x):
            return self.dense(x) - 1

        def small(self, x):
            return x.sum() < 10

        def __call__(self, pred, x):
            if self.is_initializing():
                return self.add(x)
            x = nn.cond(pred, self.add, self.sub, self, x)
            x = nn.switch(1, [self.add, self.sub], self, x)
            return nn.while_loop(self.small, lambda m, x: jnp.abs(x) + 1, self, x)

    variables = Net().init(KEY, True, X)
    dense = lambda x: nn.Dense(3).apply({"params": variables["params"]["dense"]}, x)
    for pred in (True, False):
        expected = dense(dense(X) + (1 if pred else -1)) - 1
        while expected.sum() < 10:
            expected = jnp.abs(expected) + 1
        assert jnp.allclose(Net().apply(variables, pred, X), expected)


def test_names_of_modules_in_containers():
    assert names(Field(Pair(Scale(), Scale())), X) == ["inner_u", "inner_v"]
    one = Scale()
    assert names(Field({"foo": one, "bar": one}), X) == ["inner_bar"]
    assert names(Field([Scale(), {"k": Scale()}]), X) == ["inner_0", "inner_1_k"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Sides:
    left: Any
    right: Any


def test_names_of_modules_in_a_dataclass():
    assert names(Field(Sides(Scale(), Scale())), X) == ["inner_left", "inner_right"]
    nested = Sides({"a": Scale()}, [Sides(Scale(), None)])
    assert names(Field(nested), X) == ["inner_left_a", "inner_right_0_left"]

    class Both(nn.Module):
        def setup(self):
            self.pair = Sides(Scale(), Scale())

        def __call__(self, x):
            return self.pair.left(self.pair.right(x))

    assert names(Both(), X) == ["pair_left", "pair_right"]


def test_bound_modules_are_equal_if_their_variables_are_the_same():
    variables = {"params": {"scale": 2.0}}
    bound = Scale().bind(variables)
    assert bound == bound
    assert bound != Scale().bind(variables)
    assert bound != Scale()
    assert Scale() == Scale()

    class Net(nn.Module):
        def setup(self):
            self.a, self.b = Scale(), Scale()

        def __call__(self, x):
            assert self.a == self.a
            assert self.a != self.b
            return x

    Net().apply({}, X)


def test_lists_and_dicts_in_fields_become_immutable():
    class Net(nn.Module):
        widths: Any
        options: Any

        def setup(self):
            self.more = [1, 2]

        def __call__(self):
            return self.widths + (2,), self.options, self.more

    model = Net([3, 4], {"a": [1]})
    widths, options, more = model.apply({})
    assert widths == (3, 4, 2)
    assert isinstance(options, nn.FrozenDict) and options["a"] == (1,)
    assert more == (1, 2)
    assert model.widths == [3, 4]


def test_map_variables_that_creates_and_changes():
    class Counter(nn.Module):
        @nn.compact
        def __call__(self):
            n = self.variable("state", "n", lambda: 0)
            n.value += 1
            return n.value

    Mapped = nn.map_variables(Counter, "state", init=True, mutable=True)
    out, variables = Mapped().init_with_output(KEY)
    assert (out, variables["state"]["n"]) == (2, 2)
    assert Mapped().apply(variables, mutable="state") == (3, {"state": {"n": 3}})


def test_own_fields_come_before_those_of_all_modules():
    class Net(nn.Module):
        width: int
        depth: int = 2

    class Deeper(Net):
        more: int = 1

    assert [f.name for f in dataclasses.fields(Deeper)] == [
        *("width", "depth", "more"),
        *("parent", "name"),
    ]


def test_a_jitted_init():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(x)

        @nn.jit
        def init_with_output(self, rngs, *args, **kwargs):
            return super().init_with_output(rngs, *args, **kwargs)

    out, variables = Net().init_with_output(KEY, X)
    assert out.shape == (2, 2) and list(variables["params"]) == ["Dense_0"]
    assert names(Net(), X) == ["Dense_0"]


def test_module_paths():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(Field(Scale())(x))

    found = Net().module_paths(KEY, X)
    assert {path: type(m).__name__ for path, m in found.items()} == {
        "": "Net",
        "Field_0": "Field",
        "Scale_0": "Scale",
        "Dense_0": "Dense",
    }
    assert all(m.scope is None for m in found.values())


def test_flops_in_the_table():
    table = nn.Dense(4).tabulate(KEY, X, compute_flops=True, compute_vjp_flops=True)
    header, row = (line.split("|") for line in table.splitlines()[3:6:2])
    cells = dict(zip(map(str.strip, header), map(str.strip, row), strict=True))
    assert int(cells["flops"].replace(",", "")) >= 2 * 2 * 3 * 4
    assert int(cells["vjp_flops"].replace(",", "")) > 0


def test_adopted_names_can_be_preserved():
    class Keeps(Field):
        preserve_adopted_names = True

    assert names(Keeps(Scale(name="mine")), X) == ["mine"]
    assert names(Field(Scale(name="mine")), X) == ["inner"]
    with pytest.raises(nn.errors.NameInUseError):
        Keeps([Scale(name="a"), Scale(name="a")]).init(KEY, X)


def test_dir_of_a_bound_module_runs_setup():
    class Net(nn.Module):
        def setup(self):
            self.dense = nn.Dense(2)

    assert "dense" in dir(Net().bind({}))
    assert "dense" not in dir(Net())


def test_pretty_repr():
    text = nn.pretty_repr({"a": {"b": 1}, "c": [2]})
    assert text == "{\n    a: {\n        b: 1,\n    },\n    c: [2],\n}"
    assert nn.pretty_repr(3) == "3"


def test_a_template_cloned_with_all_that_is_in_it():
    class Stack(nn.Module):
        template: Any

        @nn.compact
        def __call__(self, x):
            for _ in range(2):
                x = self.template.clone(parent=self, _deep_clone=True, name=None)(x)
            return x

    params = Stack(Field(Scale())).init(KEY, X)["params"]
    assert sorted(params) == ["Field_0", "Field_1"]


def test_a_bound_module_cannot_be_hashed():
    assert hash(nn.Dense(2, kernel_init=None)) == hash(nn.Dense(2, kernel_init=None))
    with pytest.raises(TypeError, match="/"):
        hash(nn.Dense(2).bind({}))


def test_positions_of_arguments():
    assert nn.freeze(xs={"a": 1}) == nn.FrozenDict(a=1)
    assert nn.unfreeze(x=nn.freeze({"a": 1})) == {"a": 1}
    run = nn.jit(nn.compact(fun=lambda self, x, n: x * n), True, True, (), ("n",))

    class Net(nn.Module):
        __call__ = run

    assert (Net().apply({}, X, n=2) == 2).all()
    options = {"_split_transpose": False, "check_constancy_invariants": False}
    options["split_rngs"] = {"params": True}
    body = lambda m, c, _: (m(c), None)

    class Loop(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.scan(body, {"params": 0}, length=2, **options)(Scale(), x, None)

    assert names(Loop(), X) == ["Scale_0"]


def test_a_name_that_is_declared_once_more():
    class Net(nn.Module):
        size: int
        name: str | None = "unused"

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.size)(x)

    assert Net(2).name is None and Net(2, name="given").name == "given"
    assert sorted(nn.Sequential([Net(2)]).init(KEY, X)["params"]) == ["layers_0"]
    with pytest.raises(nn.errors.ReservedModuleAttributeError):

        class Wrong(nn.Module):
            name: int


def test_a_module_beside_the_one_whose_field_it_is():
    class Around(nn.Module):
        inner: nn.Module

        def __call__(self, x):
            return self.inner(x)

    class Net(nn.Module):
        def setup(self):
            layer = nn.Dense(3)
            self.both = Around(layer), layer

        def __call__(self, x):
            return self.both[0](x) + self.both[1](x)

    assert sorted(Net().init(KEY, X)["params"]) == ["both_1"]


def test_a_module_in_a_partial_stays_shared_in_later_calls():
    class Wrap(nn.Module):
        inner: nn.Module

        @nn.compact
        def __call__(self, x):
            return self.inner(x)

    class Made(nn.Module):
        make: Any

        @nn.compact
        def __call__(self, x):
            return self.make(name="b")(self.make(name="a")(x))

    class Calls(nn.Module):
        count: int

        @nn.compact
        def __call__(self, x):
            made = Made(functools.partial(Wrap, nn.Dense(3, parent=None)), name="made")
            for _ in range(self.count):
                x = made(x)
            return x

    variables = Calls(1).init(KEY, X)
    assert list(variables["params"]["made"]) == ["b"]
    again = Calls(2).init(KEY, X)
    assert jax.tree.structure(again) == jax.tree.structure(variables)
    twice = Calls(2).apply(variables, X)
    assert (twice == Calls(1).apply(variables, Calls(1).apply(variables, X))).all()


def test_methods_of_a_transformed_class_call_each_other():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x * self.param("w", nn.initializers.ones, (2,))

        def twice(self, x):
            return self(self(x))

    Many = nn.vmap(Net, {"params": 0}, {"params": True}, methods=["__call__", "twice"])
    variables = Many().init(KEY, jnp.ones((3, 2)), method="twice")
    assert variables["params"]["w"].shape == (3, 2)


def test_vjp_runs_what_it_creates_once():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            n = self.variable("stats", "n", lambda: jnp.zeros(()))
            n.value += 1
            return x * self.param("w", nn.initializers.ones, ()) + n.value

    class Grads(nn.Module):
        @nn.compact
        def __call__(self, x):
            f = lambda net, x: net(x)
            out, pull_back = nn.vjp(f, Net(), x, vjp_variables=["params", "stats"])
            return out, pull_back(jnp.ones(()))[0]

    (out, grads), variables = Grads().init_with_output(KEY, jnp.float32(2.0))
    assert float(out) == 3.0 and float(variables["stats"]["Net_0"]["n"]) == 1.0
    assert float(grads["params"]["w"]) == 2.0


def test_the_text_of_a_bound_module_shows_its_submodules():
    class Leaf(nn.Module):
        act: Any = jnp.tanh

        def __call__(self, x):
            return self.act(x)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            Leaf(name="leaf")(x)
            return repr(self)

    inner = "    leaf = Leaf(\n        # attributes\n        act = tanh\n    )\n"
    assert Net().apply({}, X) == f"Net(\n    # children\n{inner})"
    assert repr(Net()) == "Net()"


def test_a_name_in_use_is_a_wrong_value():
    scope = nn.scope.Scope({})
    scope.push("a")
    with pytest.raises(ValueError, match='Cannot create submodule "a"'):
        scope.push("a")
    with pytest.raises(TypeError, match="Variables must map"):
        nn.Dense(3).apply(None, X)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="asks for all names at once")
def test_fields_may_name_classes_that_are_defined_further_down():
    space = {"nn": nn}
    exec(
        textwrap.dedent("""
            class Block(nn.Module):
                inner: Later
                name: str | None = None

                def __call__(self, x: Undefined) -> Undefined:
                    return self.inner(x)

            class Later(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return nn.Dense(3)(x)
        """),
        space,
    )
    block = space["Block"](space["Later"](), name="block")
    out, variables = block.init_with_output(KEY, X)
    assert out.shape == (2, 3) and block.name == "block"
    assert list(variables["params"]) == ["inner"]


@pytest.mark.parametrize("name", ["_state", "_bound", "_run_setup", "_init_names"])
def test_names_with_one_underscore_are_the_users(name):
    assert not [n for n in dir(nn.Module) if n.startswith("_") and "__" not in n]

    class Attribute(nn.Module):
        def setup(self):
            setattr(self, name, nn.Dense(2))

        def __call__(self, x):
            return getattr(self, name)(x)

    class Method(nn.Module):
        @nn.compact
        def __call__(self, x):
            return getattr(self, name)(x)

    setattr(Method, name, lambda self, x: nn.Dense(2, name=name)(x))
    for model in (Attribute(), Method(), nn.jit(Attribute)()):
        out, variables = model.init_with_output(KEY, X)
        assert [*variables["params"]] == [name]
        assert jnp.array_equal(model.apply(variables, X), out)
