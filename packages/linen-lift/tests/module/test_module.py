import contextlib
import copy
import functools
import gc
import pickle
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn
from linen_lift import errors

KEY = jax.random.key(0)
X = jnp.ones((2, 3))


class Mlp(nn.Module):
    width: int = 4
    out: int = 2

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.out, name="head")(nn.relu(nn.Dense(self.width)(x)))


class Setup(nn.Module):
    width: int = 4

    def setup(self):
        self.first = nn.Dense(self.width)
        self.others = [nn.Dense(2), nn.Dense(2)]
        self.table = {"a": nn.Dense(2)}
        self.scale = self.param("scale", nn.initializers.ones, ())

    def __call__(self, x):
        h = self.first(x)
        return self.scale * (self.others[0](h) + self.others[1](h) + self.table["a"](h))

    def encode(self, x):
        return self.first(x)


def shapes(variables):
    return jax.tree.map(jnp.shape, variables)


def test_compact_names():
    assert sorted(Mlp().init(KEY, X)["params"]) == ["Dense_0", "head"]


def test_setup_names():
    variables = Setup().init(KEY, X)
    names = ["first", "others_0", "others_1", "scale", "table_a"]
    assert sorted(variables["params"]) == names
    assert (Setup().apply(variables, X, method="encode") == 4).shape == (2, 4)


def test_a_module_is_a_dataclass():
    assert Mlp(3) == Mlp(width=3) != Mlp(4)
    assert hash(Mlp(3)) == hash(Mlp(3))
    assert repr(Mlp(3)) == "Mlp(\n    # attributes\n    width = 3\n    out = 2\n)"
    assert Mlp(3).clone(width=5).width == 5
    assert pickle.loads(pickle.dumps(Mlp(3))) == Mlp(3)
    assert copy.deepcopy(Mlp(3)) == Mlp(3)


def test_keyword_only_fields():
    class KwOnly(nn.Module, kw_only=True):
        width: int = 3
        depth: int

    assert KwOnly(depth=2).width == 3
    with pytest.raises(TypeError):
        KwOnly(2, 3)


def test_fields_are_inherited_in_order():
    class Base(nn.Module):
        a: int

    class Derived(Base):
        b: int = 2

        def total(self):
            return self.a + self.b

    assert Derived(1, 5).total() == 6
    assert Derived(1, name="x").name == "x"


def test_the_second_call_uses_the_same_variables():
    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x):
            block = Mlp(out=3)
            return block(block(x))

    assert shapes(Twice().init(KEY, X)) == {
        "params": {"Mlp_0": shapes(Mlp(out=3).init(KEY, X)["params"])}
    }


def test_names_do_not_depend_on_the_call_before():
    class Varying(nn.Module):
        @nn.compact
        def __call__(self, x, more):
            if more:
                nn.Dense(1)(x)
            return nn.Dense(2)(x)

    model = Varying()
    assert sorted(model.init(KEY, X, True)["params"]) == ["Dense_0", "Dense_1"]
    assert sorted(model.init(KEY, X, False)["params"]) == ["Dense_0"]


def test_keys_do_not_depend_on_other_layers():
    class More(Mlp):
        @nn.compact
        def __call__(self, x):
            extra = nn.Dense(5, name="extra")(x)
            h = nn.relu(nn.Dense(self.width)(x))
            return nn.Dense(self.out, name="head")(h) + extra.sum()

    a, b = Mlp().init(KEY, X)["params"], More().init(KEY, X)["params"]
    for name in a:
        assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), a[name], b[name]))


# --- adoption and sharing --------------------


class Wrap(nn.Module):
    inner: Any

    def __call__(self, x):
        return self.inner(x)


class Sum(nn.Module):
    a: Any
    b: Any

    def __call__(self, x):
        return self.a(x) + self.b(x)


class Pair(NamedTuple):
    left: Any
    right: Any


def test_a_field_gives_its_name():
    dense = nn.Dense(2, name="ignored")
    variables = Wrap(dense).init(KEY, X)
    assert shapes(variables) == {"params": {"inner": {"kernel": (3, 2), "bias": (2,)}}}
    assert dense.scope is None and dense.parent is None and dense.name == "ignored"


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        (lambda d: [d(), d()], ["inner_0", "inner_1"]),
        (lambda d: (d(), d()), ["inner_0", "inner_1"]),
        (lambda d: {"x": d(), "y": [d()]}, ["inner_x", "inner_y_0"]),
        (lambda d: nn.FrozenDict({"x": d(), "y": d()}), ["inner_x", "inner_y"]),
        (lambda d: Pair(d(), d()), ["inner_left", "inner_right"]),
    ],
)
def test_modules_in_containers_of_fields(fields, names):
    class Many(nn.Module):
        inner: Any

        def __call__(self, x):
            is_module = lambda m: isinstance(m, nn.Module)
            return sum(m(x) for m in jax.tree.leaves(self.inner, is_leaf=is_module))

    original = fields(lambda: nn.Dense(2))
    assert sorted(Many(original).init(KEY, X)["params"]) == names
    same = nn.Dense(2)
    assert sorted(Many(fields(lambda: same)).init(KEY, X)["params"]) == names[:1]


def test_a_shared_module_has_one_set_of_variables():
    shared = nn.Dense(2)
    assert sorted(Sum(shared, shared).init(KEY, X)["params"]) == ["a"]
    variables = Sum(Wrap(shared), Wrap(shared)).init(KEY, X)
    assert shapes(variables)["params"] == {
        "a": {"inner": {"kernel": (3, 2), "bias": (2,)}}
    }


def test_sharing_between_parents_in_setup_and_compact():
    class InSetup(nn.Module):
        def setup(self):
            self.shared = nn.Dense(2)
            self.a, self.b = Wrap(self.shared), Wrap(self.shared)

        def __call__(self, x):
            return self.a(x) + self.b(x)

    class InCompact(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = nn.Dense(2)
            return Wrap(shared)(x) + Wrap(shared)(x)

    assert sorted(InSetup().init(KEY, X)["params"]) == ["shared"]
    assert sorted(InCompact().init(KEY, X)["params"]) == ["Dense_0"]


def test_a_module_made_inside_of_a_field_of_another_in_setup():
    class Outer(nn.Module):
        def setup(self):
            self.wrap = Wrap(nn.Dense(2))

        def __call__(self, x):
            return self.wrap(x)

    assert sorted(Outer().init(KEY, X)["params"]["wrap"]) == ["inner"]


def test_a_module_that_is_named_in_setup():
    class Outer(nn.Module):
        def setup(self):
            self.first = nn.Dense(2, name="own")
            self.layers = [nn.Dense(2, name="other"), nn.Dense(2)]
            nn.Dense(2, name="alone")

        def __call__(self, x):
            return self.first(x) + self.layers[0](x) + self.layers[1](x)

    assert sorted(Outer().init(KEY, X)["params"]) == ["layers_1", "other", "own"]


def test_a_default_module_is_not_shared_between_instances():
    class WithDefault(nn.Module):
        inner: nn.Module = nn.Dense(2)

        def __call__(self, x):
            return self.inner(x)

    variables = Sum(WithDefault(), WithDefault()).init(KEY, X)
    assert sorted(variables["params"]) == ["a"]  # one object, one set of variables
    assert WithDefault().inner.scope is None


def test_partials_make_modules():
    make = functools.partial(nn.Dense, 2)

    class Uses(nn.Module):
        @nn.compact
        def __call__(self, x):
            return make()(x) + make(name="b")(x)

    assert sorted(Uses().init(KEY, X)["params"]) == ["Dense_0", "b"]


def test_post_init_can_compute_fields():
    class Computed(nn.Module):
        width: int | None = None

        def __post_init__(self):
            if self.width is None:
                self.width = 7
            self.double = 2 * self.width
            super().__post_init__()

        @nn.compact
        def __call__(self, x):
            return nn.Dense(self.double)(x)

    assert Computed().init_with_output(KEY, X)[0].shape == (2, 14)
    assert nn.remat(Computed)().init_with_output(KEY, X)[0].shape == (2, 14)


# --- variables --------------------


class Counter(nn.Module):
    @nn.compact
    def __call__(self):
        n = self.variable("state", "n", lambda: jnp.zeros((), jnp.int32))
        if not self.is_initializing():
            n.value += 1
        return n.value


def test_variables_are_updated():
    variables = Counter().init(KEY)
    assert variables == {"state": {"n": 0}}
    out, updated = Counter().apply(variables, mutable=["state"])
    assert out == 1 and updated == {"state": {"n": 1}}
    assert variables == {"state": {"n": 0}}


def test_reading_and_writing_by_name():
    class Direct(nn.Module):
        def __call__(self):
            assert self.is_mutable_collection("cache")
            assert not self.has_variable("cache", "x")
            assert self.get_variable("cache", "x", 3) == 3
            self.put_variable("cache", "x", 4)
            return self.get_variable("cache", "x"), self.path, self.variables

    out, updated = Direct().apply({}, mutable="cache")
    assert out == (4, (), {"cache": {"x": 4}}) and updated == {"cache": {"x": 4}}


def test_sow_appends_if_somebody_wants_it():
    class Sows(nn.Module):
        def __call__(self, x):
            stored = self.sow("intermediates", "h", x)
            self.sow("intermediates", "h", 2 * x)
            add = lambda a, b: a + b
            self.sow("sums", "s", x, reduce_fn=add, init_fn=lambda: 0.0)
            self.sow("sums", "s", x, reduce_fn=add, init_fn=lambda: 0.0)
            return stored

    assert Sows().apply({}, 1.0) is False
    out, updated = Sows().apply({}, 1.0, mutable=["intermediates", "sums"])
    assert out is True
    assert updated == {"intermediates": {"h": (1.0, 2.0)}, "sums": {"s": 2.0}}
    assert "intermediates" not in Sows().init(KEY, 1.0)


def test_captured_intermediates():
    variables = Mlp().init(KEY, X)
    out, updated = Mlp().apply(variables, X, capture_intermediates=True)
    found = updated["intermediates"]
    assert (found["__call__"][0] == out).all()
    assert (found["head"]["__call__"][0] == out).all()
    assert found["Dense_0"]["__call__"][0].shape == (2, 4)
    only = lambda module, method: module.name == "head"
    _, updated = Mlp().apply(variables, X, capture_intermediates=only)
    assert sorted(updated["intermediates"]) == ["head"]
    _, updated = Mlp().apply(
        variables, X, capture_intermediates=True, mutable=["state"]
    )
    assert sorted(updated) == ["intermediates"]


def test_nothing_is_captured_inside_of_transforms_that_are_not_lifted():
    class Steep(nn.Module):
        @nn.compact
        def __call__(self, x):
            dense = nn.Dense(4, name="dense")
            slopes = jax.vmap(jax.grad(lambda x: dense(x).sum()))(x)
            return slopes + dense(x) @ jnp.ones((4, 1))

    variables = Steep().init(KEY, X)
    out, updated = Steep().apply(variables, X, capture_intermediates=True)
    found = updated["intermediates"]
    assert (found["__call__"][0] == out).all()
    (dense,) = found["dense"]["__call__"]
    assert (dense == X @ variables["params"]["dense"]["kernel"]).all()


def test_perturbations_have_the_gradient_of_intermediates():
    class Perturbed(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = self.perturb("h", nn.Dense(3)(x))
            return (h**2).sum()

    variables = Perturbed().init(KEY, X)
    assert variables["perturbations"]["h"].shape == (2, 3)
    without = {"params": variables["params"]}
    assert Perturbed().apply(without, X) == Perturbed().apply(variables, X)
    grads = jax.grad(lambda v: Perturbed().apply(v, X))(variables)
    h = nn.Dense(3).apply({"params": variables["params"]["Dense_0"]}, X)
    assert jnp.allclose(grads["perturbations"]["h"], 2 * h)


def test_streams_inside():
    class Draws(nn.Module):
        def __call__(self):
            return self.has_rng("noise"), self.make_rng("noise"), self.make_rng()

    has, noise, params = Draws().apply({}, rngs={"noise": KEY, "params": KEY})
    assert has and noise == params  # same root, same path, same count


# --- other ways in --------------------


def test_methods():
    variables = Setup().init(KEY, X)
    expected = Setup().apply(variables, X, method=Setup.encode)
    for method in (
        "encode",
        lambda m, x: m.encode(x),
        Setup().encode,
        lambda m, x: m.first(x),
    ):
        assert (Setup().apply(variables, X, method=method) == expected).all()
    assert (Setup().apply(variables, X, method="first") == expected).all()


def test_functions_of_a_module():
    f = lambda module, x: module.encode(x)
    variables = Setup().init(KEY, X)
    assert (
        nn.apply(f, Setup())(variables, X)
        == Setup().apply(variables, X, method="encode")
    ).all()
    assert "params" in nn.init(f, Setup())(KEY, X)
    out, made = nn.init_with_output(f, Setup())(KEY, X)
    assert out.shape == (2, 4) and sorted(made["params"]["first"]) == ["bias", "kernel"]
    out, mutated = nn.apply(lambda m: m(), Counter(), mutable="state")(
        Counter().init(KEY)
    )
    assert mutated == {"state": {"n": 1}}


def test_bind_and_unbind():
    variables = Setup().init(KEY, X)
    bound = Setup().bind(variables)
    assert (bound.encode(X) == Setup().apply(variables, X, method="encode")).all()
    assert (bound(X) == Setup().apply(variables, X)).all()
    module, again = bound.unbind()
    assert module == Setup() and module.scope is None
    assert shapes(again) == shapes(variables)
    dense, own = bound.others[1].unbind()
    assert dense == nn.Dense(2)
    assert (own["params"]["kernel"] == variables["params"]["others_1"]["kernel"]).all()
    assert dense.apply(own, jnp.ones(4)).shape == (2,)
    counting = Counter().bind(Counter().init(KEY), mutable="state")
    assert (counting(), counting(), counting.variables["state"]["n"]) == (1, 2, 2)
    outer = Sum(Wrap(nn.Dense(2)), nn.Dense(2))
    variables = outer.init(KEY, X)
    unbound, _ = outer.bind(variables).unbind()
    assert unbound == outer
    # Names were for the places where the modules were.
    named = Sum(Wrap(nn.Dense(2, name="c")), nn.Dense(2, name="b"), name="a")
    unbound, again = named.bind(variables).unbind()
    assert unbound == outer
    assert (unbound.apply(again, X) == outer.apply(variables, X)).all()


def test_clone_and_copy():
    class Copies(nn.Module):
        @nn.compact
        def __call__(self, x):
            a = nn.Dense(2, name="a")
            b = a.copy(name="b")
            c = a.copy()
            return a(x) + b(x) + c(x) + a.clone(parent=self, name="d")(x)

    names = ["Dense_0", "a", "b", "d"]
    assert sorted(Copies().init(KEY, X)["params"]) == names


def test_lazy_init_of_modules():
    lazy = Mlp().lazy_init(KEY, jax.ShapeDtypeStruct((2, 3), jnp.float32))
    assert jax.tree.all(
        jax.tree.map(lambda a, b: (a == b).all(), lazy, Mlp().init(KEY, X))
    )


def test_apply_inside_of_a_module_is_independent():
    class Nested(nn.Module):
        @nn.compact
        def __call__(self, x):
            inner = Mlp(parent=None)
            variables = self.param("inner", lambda key: inner.init(key, x)["params"])
            return inner.apply({"params": variables}, x)

    variables = Nested().init(KEY, X)
    assert sorted(variables["params"]["inner"]) == ["Dense_0", "head"]


def test_properties_trigger_setup():
    class Props(nn.Module):
        def setup(self):
            self.dense = nn.Dense(2)

        @property
        def width(self):
            return self.dense.features

        def __call__(self, x):
            return self.width * self.dense(x)

    variables = Props().init(KEY, X)
    assert Props().bind(variables).width == 2


def test_nowrap_methods_make_modules_for_their_caller():
    class Factory(nn.Module):
        @nn.nowrap
        def make(self, name=None):
            return nn.Dense(2, name=name)

        @nn.compact
        def __call__(self, x):
            return self.make()(x) + self.make("b")(x)

    assert sorted(Factory().init(KEY, X)["params"]) == ["Dense_0", "b"]
    assert Factory().make().scope is None


def test_compact_name_scopes():
    class Two(nn.Module):
        @nn.compact_name_scope
        def up(self, x):
            return nn.Dense(4)(nn.Dense(5)(x))

        @nn.compact_name_scope
        def down(self, x):
            return self.param("w", nn.initializers.ones, ()) * nn.Dense(3)(x)

        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(self.down(self.up(x) + self.up(x)))

    variables = Two().init(KEY, X)
    dense = lambda i, o: {"kernel": (i, o), "bias": (o,)}
    assert shapes(variables)["params"] == {
        "up": {"Dense_1": dense(3, 5), "Dense_0": dense(5, 4)},
        "down": {"Dense_0": dense(4, 3)},
        "w": (),
        "Dense_0": dense(3, 1),
    }


def test_share_scope_into_the_parent():
    class Lora(nn.Module):
        def setup(self):
            self.base = nn.Dense(2)
            nn.share_scope(self, self.base)

        @nn.compact
        def __call__(self, x):
            a = self.param("a", nn.initializers.ones, (x.shape[-1], 1))
            b = self.param("b", nn.initializers.zeros, (1, 2))
            return self.base(x) + x @ a @ b

    class Model(nn.Module):
        lora: bool = True

        @nn.compact
        def __call__(self, x):
            return (Lora if self.lora else nn.Dense)(
                *(() if self.lora else (2,)), name="layer"
            )(x)

    variables = Model().init(KEY, X)
    assert sorted(variables["params"]["layer"]) == ["a", "b", "bias", "kernel"]
    plain = {k: variables["params"]["layer"][k] for k in ("kernel", "bias")}
    out = Model(False).apply({"params": {"layer": plain}}, X)
    assert (Model().apply(variables, X) == out).all()


def test_share_scope_with_an_outside_module():
    class Base(nn.Module):
        def setup(self):
            self.dense = nn.Dense(2)

        def __call__(self, x):
            return self.dense(x)

    class Around(nn.Module):
        inner: nn.Module

        def setup(self):
            nn.share_scope(self, self.inner)

        def __call__(self, x):
            return 2 * self.inner(x)

    expected = Base().init(KEY, X)
    assert shapes(Around(Base()).init(KEY, X)) == shapes(expected)
    assert (Around(Base()).apply(expected, X) == 2 * Base().apply(expected, X)).all()


def test_merge_param():
    assert nn.merge_param("x", 1, None) == nn.merge_param("x", None, 1) == 1
    for pair in ((1, 2), (None, None)):
        with pytest.raises(ValueError, match='"x"'):
            nn.merge_param("x", *pair)


def test_nothing_is_kept_alive():
    class Probe:
        pass

    class Holds(nn.Module):
        probe: Any

        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(x)

    probe = Probe()
    module, dead = Holds(probe), weakref.ref(probe)
    variables = module.init(KEY, X)
    module.apply(variables, X)
    nn.remat(Holds)(probe).apply(variables, X)
    del module, probe
    gc.collect()
    assert dead() is None


def test_a_failing_setup_can_run_again():
    flag = [1]

    class Fails(nn.Module):
        def setup(self):
            self.dense = nn.Dense(2)
            if flag:
                flag.pop()
                raise RuntimeError("once")

        def __call__(self, x):
            return self.dense(x)

    class Outer(nn.Module):
        @nn.compact
        def __call__(self, x):
            fails = Fails()
            with contextlib.suppress(RuntimeError):
                fails(x)
            return fails(x)

    assert Outer().init_with_output(KEY, X)[0].shape == (2, 2)


def test_a_module_that_holds_one_in_use_starts_a_tree_of_its_own():
    class Holds(nn.Module):
        part: nn.Module

        def __call__(self, x):
            return self.part(x)

    class Net(nn.Module):
        def setup(self):
            self.dense = nn.Dense(2)

        def __call__(self, x):
            self.dense(x)
            return Holds(self.dense, parent=None).init(KEY, x)

    made, variables = Net().init_with_output(KEY, X)
    assert [*made["params"]] == ["part"] and [*variables["params"]] == ["dense"]


def test_a_function_of_any_number_of_arguments_is_a_method():
    module, x = nn.Dense(2).apply({}, 3, method=lambda *args: args)
    assert (module.features, x) == (2, 3)


def test_a_protocol_does_not_run_setup():
    class Net(nn.Module):
        def setup(self):
            ran.append(self)

    ran = []
    assert not any(hasattr(x, "__jax_array__") for x in (Net(), Net().bind({})))
    assert not ran


def test_a_default_name_is_not_that_of_a_clone():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for name in (None, "given"):
                dense = nn.Dense(3, name=name)
                x = dense(x)
                clone = dense.clone(parent=None)
                assert clone.name == name
            return clone.clone(parent=self, name=None)(x)

    assert sorted(Net().init(KEY, X)["params"]) == ["Dense_0", "Dense_1", "given"]


def test_the_name_of_a_field_is_taken():
    class Net(nn.Module):
        part: nn.Module

        @nn.compact
        def __call__(self):
            nn.Dense(2, name="part")

    with pytest.raises(errors.NameInUseError):
        Net(nn.Dense(2)).init(KEY)


def test_a_name_that_setup_took_stays_taken():
    class Net(nn.Module):
        def setup(self):
            self.variable("a", "v", lambda: 1)

        @nn.compact
        def __call__(self, col):
            self.variable(col, "v", lambda: 2)

    net = Net().bind({}, mutable=True)
    net("b")
    net("b")
    with pytest.raises(errors.NameInUseError):
        net("a")


def test_generic_exceptions_keep_their_type():
    class Raises(nn.Module):
        def __call__(self):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Raises().apply({})
    with pytest.raises(errors.CallCompactUnboundModuleError):
        Mlp()(X)
    assert Mlp().init(KEY, X)  # the stack of running modules is clean again
