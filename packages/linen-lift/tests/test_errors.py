"""Every error, with the collection, name and path in its message."""

import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import linen_lift as nn
from linen_lift import errors
from linen_lift.scope import DenyList, apply, bind, in_filter, init

KEY = jax.random.key(0)
X = jnp.ones((2, 3))
ones = nn.initializers.ones


def raised(error, fn, *words):
    with pytest.raises(error) as info:
        fn()
    message = str(info.value)
    for word in words:
        assert word in message, f"{word!r} not in {message!r}"
    assert isinstance(info.value, nn.LinenLiftError)
    # As it is when it comes out of another process.
    again = pickle.loads(pickle.dumps(info.value))
    assert type(again) is type(info.value) and str(again) == message
    return info.value


def at(path, fn):
    """Runs `fn` with a scope at a path."""

    def run(scope):
        for name in path.strip("/").split("/"):
            scope = scope.push(name)
        return fn(scope)

    return run


class Block(nn.Module):
    fn: Any

    @nn.compact
    def __call__(self):
        return self.fn(self)


class Outer(nn.Module):
    """Calls a function of a module at the path /block."""

    fn: Any

    @nn.compact
    def __call__(self):
        return Block(self.fn, name="block")()


def test_every_error_is_tested():
    source = "".join(p.read_text() for p in Path(__file__).parent.glob("test_error*"))
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, nn.LinenLiftError)
        and not name.startswith("_")
    ]
    for name in classes:
        assert f"errors.{name}" in source or name == "LinenLiftError", name


# --- scopes --------------------


def test_invalid_rng():
    draw = at("a/b", lambda s: s.make_rng("dropout"))
    raised(
        errors.InvalidRngError,
        lambda: apply(draw)({}, rngs={"noise": KEY}),
        '"dropout"',
        '"/a/b"',
        "noise",
    )
    raised(errors.InvalidRngError, lambda: bind({}, {"noise": 3}), '"noise"')


def test_scope_collection_not_found():
    assert '"w"' in str(errors.ScopeCollectionNotFound("params", "w", "/a"))
    raised(
        errors.ScopeCollectionNotFound,
        lambda: apply(at("a/b", lambda s: s.param("w", ones, ())))({}),
        '"params"',
        '"w"',
        "/a/b/w",
        "(collections with something: none)",
    )
    params_alone = {"Dense_0": {"kernel": jnp.ones((2, 3))}}
    raised(
        errors.ScopeCollectionNotFound,
        lambda: nn.Dense(3).apply(params_alone, jnp.ones((1, 2))),
        "(collections with something: Dense_0)",
        "{'params': ...}",
    )
    raised(
        errors.ScopeCollectionNotFound,
        lambda: apply(at("a", lambda s: s.variable("state", "n", lambda: 0)))({}),
        '"state"',
        '"n"',
        "/a/n",
    )


def test_scope_param_not_found():
    raised(
        errors.ScopeParamNotFoundError,
        lambda: apply(at("a", lambda s: s.param("w", ones, ())))(
            {"params": {"a": {"v": 1}}}
        ),
        '"params"',
        '"w"',
        "/a/w",
    )


def test_scope_variable_not_found():
    variables = {"state": {"a": {"v": 1}}}
    get = at("a", lambda s: s.variable("state", "n", lambda: 0))
    raised(
        errors.ScopeVariableNotFoundError,
        lambda: apply(get)(variables),
        '"state"',
        '"n"',
        "/a/n",
    )
    without_init = at("a", lambda s: s.variable("state", "n"))
    raised(
        errors.ScopeVariableNotFoundError,
        lambda: apply(without_init, mutable=True)(variables),
        "init_fn",
        "/a/n",
    )


def test_scope_param_shape():
    variables = {"params": {"a": {"w": jnp.ones(3)}}}
    raised(
        errors.ScopeParamShapeError,
        lambda: apply(at("a", lambda s: s.param("w", ones, (4,))))(variables),
        '"params"',
        '"w"',
        "/a/w",
        "has shape (3,)",
        "makes shape (4,)",
    )


def test_modify_scope_variable():
    raised(
        errors.ModifyScopeVariableError,
        lambda: apply(at("a", lambda s: s.put_variable("state", "n", 1)))({}),
        '"state"',
        '"n"',
        "/a/n",
        "mutable=['state']",
    )


def test_name_in_use():
    def twice(scope):
        scope.param("w", ones, ())
        scope.param("w", ones, ())

    raised(
        errors.NameInUseError,
        lambda: init(at("a", twice))(KEY),
        '"params"',
        '"w"',
        "/a/w",
    )

    def modules(module):
        nn.Dense(2, name="x")
        nn.Dense(2, name="x")

    words = 'submodule "x" at path', "/block/x"
    raised(errors.NameInUseError, lambda: Outer(modules).init(KEY), *words)

    def mixed(module):
        module.param("x", ones, ())
        nn.Dense(2, name="x")

    raised(errors.NameInUseError, lambda: Outer(mixed).init(KEY), '"x"', "/block/x")

    class InSetup(nn.Module):
        inner: nn.Module

        def setup(self):
            self.param("inner", ones, ())

        def __call__(self):
            return self.inner(X)

    raised(
        errors.NameInUseError,
        lambda: InSetup(nn.Dense(2)).init(KEY),
        '"params"',
        '"inner"',
        "/inner",
    )

    class WithNameScope(nn.Module):
        @nn.compact_name_scope
        def run(self):
            return nn.Dense(2)(X)

        @nn.compact
        def __call__(self):
            self.param("run", ones, ())
            return self.run()

    words = 'name scope "run"', '"/"'
    raised(errors.NameInUseError, lambda: WithNameScope().init(KEY), *words)

    below_a_variable = at("a/b/c", lambda s: s.put_variable("state", "n", 1))
    variables = {"state": {"a": {"b": 1}}}
    raised(
        errors.NameInUseError,
        lambda: apply(below_a_variable, mutable=True)(variables),
        'submodule "b"',
        '"/a"',
    )


def test_invalid_scope():
    kept = []
    apply(at("a", kept.append))({})
    raised(errors.InvalidScopeError, lambda: kept[0].get_variable("p", "w"), '"/a"')

    def child_alone(scope):
        with scope.push("b").temporary() as child:
            pass
        assert not scope.has_variable("p", "w")
        child.has_variable("p", "w")

    raised(errors.InvalidScopeError, lambda: apply(child_alone)({}), '"/b"')


def test_jax_transform():
    def depends(module):
        return jax.vmap(lambda x: module.param("w", lambda key: x))(X)

    def writes(module):
        v = module.variable("state", "n", lambda: 0.0)

        def body(x):
            v.value = x
            return x

        return jax.vmap(body)(jnp.ones(2))

    for leak, col, name in (
        (depends, '"params"', '"w"'),
        (writes, '"state"', '"n"'),
    ):
        raised(
            errors.JaxTransformError,
            lambda leak=leak: Outer(leak).init(KEY),
            col,
            name,
            "/block",
            "leak",
        )
        raised(
            errors.JaxTransformError,
            lambda leak=leak: jax.jit(Outer(leak).init)(KEY),
            name,
        )


def test_invalid_filter():
    raised(errors.InvalidFilterError, lambda: in_filter(DenyList(3), "params"), "3")
    raised(errors.InvalidFilterError, lambda: apply(lambda s: 0, mutable=3), "3")


@pytest.mark.parametrize(
    ("variables", "word"),
    [(3, "int"), ({3: {}}, "3"), ({"params": 5}, '"params"'), ({"p": {3: 1}}, '"p"')],
)
def test_invalid_variables_type(variables, word):
    raised(
        errors.ApplyScopeInvalidVariablesTypeError,
        lambda: apply(lambda s: 0)(variables),
        word,
    )


def test_invalid_variables_structure():
    raised(
        errors.ApplyScopeInvalidVariablesStructureError,
        lambda: nn.Dense(2).apply({"params": {"params": {"kernel": 1}}}, X),
        '"params"',
        "kernel",
        "/params",
    )


def test_lazy_init():
    class Data(nn.Module):
        @nn.compact
        def __call__(self, x):
            return self.variable("stats", "mean", x.mean).value

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Data(name="data")(x)

    raised(
        errors.LazyInitError,
        lambda: Net().lazy_init(KEY, jax.ShapeDtypeStruct((2,), jnp.float32)),
        '"stats"',
        '"mean"',
        "/data/mean",
    )


def test_partitioning_unspecified():
    boxed = nn.with_partitioning(ones, ("model",))
    Many = nn.vmap(nn.Dense, {"params": 0}, {"params": True})
    raised(
        errors.PartitioningUnspecifiedError,
        lambda: Many(2, bias_init=boxed).init(KEY, X),
        "Partitioned",
        "PARTITION_NAME",
    )


def test_branch_variables():
    def run(module):
        child = nn.Dense(2, name="dense")
        return nn.cond(True, lambda m, x: m(x), lambda m, x: x[:, :2], child, X)

    raised(
        errors.BranchVariablesError,
        lambda: Outer(run).init(KEY),
        '"params"',
        '"bias"',
        "/block/dense/bias",
        "Branch 1",
    )

    def other_way(module):
        child = nn.Dense(2, name="dense")
        return nn.cond(True, lambda m, x: x[:, :2], lambda m, x: m(x), child, X)

    raised(
        errors.BranchVariablesError,
        lambda: Outer(other_way).init(KEY),
        '"bias"',
        "/block/dense/bias",
        "Branch 0",
    )


def test_broadcast_variable():
    def body(module, c, x):
        module.variable("state", "first", lambda: x)
        return c, x

    def run(module):
        loop = nn.scan(body, variable_broadcast="state", split_rngs={"params": False})
        return loop(module, 0.0, jnp.ones(3))

    raised(
        errors.BroadcastVariableError,
        lambda: Outer(run).init(KEY),
        '"state"',
        '"first"',
        "/block/first",
    )


class Pair(nn.Module):
    a: nn.Module

    @nn.compact
    def __call__(self, x):
        f = lambda mdl, x: mdl.a(x) + nn.Dense(2, name="own")(x)
        return nn.vjp(f, self, x)[0]


def test_multiple_scopes():
    class Net(nn.Module):
        @nn.compact
        def __call__(self):
            return Pair(nn.Dense(2, name="shared"), name="pair")(X)

    raised(
        errors.MultipleScopesError,
        lambda: Net().init(KEY),
        '"/shared", "/pair"',
        "multi_scope=True",
    )


# --- modules --------------------


def test_assign_submodule():
    class Net(nn.Module):
        def setup(self):
            self.inner = Inner()

        def __call__(self):
            return self.inner()

    class Inner(nn.Module):
        def __call__(self):
            return nn.Dense(2)

    raised(errors.AssignSubModuleError, lambda: Net().init(KEY), "Dense", "/inner")

    class Declares(Inner):
        def __call__(self):
            return self.param("w", ones, ())

    Inner = Declares
    error = raised(
        errors.DeclareVariableError, lambda: Net().init(KEY), 'parameter "w"', "/inner"
    )
    assert isinstance(error, ValueError)

    class Unbound(nn.Module):
        def make(self):
            return nn.Dense(2)

    raised(errors.AssignSubModuleError, Unbound().make, "Dense", "unbound")


def test_set_attribute_in_setup():
    class Inner(nn.Module):
        width: int = 3

        def setup(self):
            self.width = 4

        def __call__(self):
            return 0

    raised(
        errors.SetAttributeInModuleSetupError,
        lambda: Outer(lambda m: Inner(name="inner")()).init(KEY),
        '"width"',
        "Inner",
        "/block/inner",
    )


def test_set_attribute_of_a_frozen_module():
    def assigns(module):
        module.state = 3

    raised(
        errors.SetAttributeFrozenModuleError,
        lambda: Outer(assigns).init(KEY),
        '"state"',
        "Block",
        "/block",
    )
    raised(
        errors.SetAttributeFrozenModuleError,
        lambda: setattr(nn.Dense(2).bind({}), "features", 3),
        '"features"',
        "Dense",
    )
    raised(
        errors.SetAttributeFrozenModuleError,
        lambda: delattr(nn.Dense(2).bind({}), "features"),
        '"features"',
    )


def test_several_compact_methods_are_no_error():
    class Net(nn.Module):
        @nn.compact
        def encode(self, x):
            return nn.Dense(2, name="down")(x)

        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, name="up")(self.encode(x))

    try:
        params = Net().init(KEY, X)["params"]
    except errors.MultipleMethodsCompactError:  # the name is still there
        pytest.fail("refused")
    assert sorted(params) == ["down", "up"]
    encoded = Net().apply({"params": params}, X, method="encode")
    assert encoded.shape == (2, 2)


@pytest.mark.parametrize("name", ["name", "parent"])
def test_reserved_attributes(name):
    raised(
        errors.ReservedModuleAttributeError,
        lambda: type("Net", (nn.Module,), {"__annotations__": {name: int}}),
        "Net",
        f'"{name}"',
    )


@pytest.mark.parametrize("method", [3, "missing", nn.Dense, nn.Dense(2)])
def test_invalid_method(method):
    raised(
        errors.ApplyModuleInvalidMethodError,
        lambda: nn.Dense(2).apply({}, X, method=method),
        "Dense",
        str(method) if method != nn.Dense else "Dense",
    )

    class Silent(nn.Module):
        pass

    raised(errors.ApplyModuleInvalidMethodError, lambda: Silent().init(KEY), "Silent")


def test_unbound_compact_call():
    raised(
        errors.CallCompactUnboundModuleError, lambda: nn.Dense(2)(X), "Dense.__call__"
    )
    for use in (
        lambda: nn.remat(nn.Dense)(2)(X),
        lambda: nn.vjp(lambda m, x: m(x), nn.Dense(2), X),
    ):
        raised(errors.CallCompactUnboundModuleError, use, "Dense")


def test_unbound_use():
    for use in (
        lambda m: m.variables,
        lambda m: m.path,
        lambda m: m.make_rng(),
        lambda m: m.has_rng("params"),
        lambda m: m.get_variable("params", "kernel"),
        lambda m: m.sow("intermediates", "x", 1),
        lambda m: m.perturb("x", 1),
    ):
        error = raised(errors.UnboundModuleError, lambda: use(nn.Dense(2)), "Dense")
        assert isinstance(error, ValueError)


def test_perturbation_not_found():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return self.perturb("h", x)

    raised(
        errors.PerturbationNotFoundError,
        lambda: Net().apply({"perturbations": {}}, X),
        '"h"',
        '"perturbations"',
    )
    assert (Net().apply({}, X) == X).all()


def test_classes_of_errors_are_those_that_code_catches():
    class NoCall(nn.Module):
        pass

    with pytest.raises(AttributeError, match="__call__"):
        NoCall().init(KEY)
    with pytest.raises(AttributeError, match="missing"):
        nn.Dense(2).apply({}, X, method="missing")
    with pytest.raises(nn.errors.ApplyModuleInvalidMethodError):
        nn.Dense(2).apply({}, X, method=lambda: 1)
    with pytest.raises(ValueError, match="test"):
        nn.Dense(2).init({"params": "test"}, X)
    with pytest.raises(nn.errors.ScopeParamNotFoundError, match="/"):
        bind({"params": {"other": 1}}).push("a").param("w", ones, ())


def test_unbound_setup():
    class Net(nn.Module):
        def setup(self):
            self.dense = nn.Dense(2)

    raised(errors.CallSetupUnboundModuleError, lambda: Net().dense, "Net.dense")
    raised(errors.CallSetupUnboundModuleError, Net().setup, "Net.setup")
    assert not hasattr(Net(), "dense")
    with pytest.raises(AttributeError, match="nothing"):
        nn.Dense(2).nothing


def test_unbind_unbound():
    raised(errors.CallUnbindOnUnboundModuleError, nn.Dense(2).unbind, "Dense")


def test_share_scope_unbound():
    raised(
        errors.CallShareScopeOnUnboundModuleError,
        lambda: nn.share_scope(nn.Dense(2), nn.Dense(3)),
        "Dense",
    )


def test_class_instead_of_instance():
    raised(errors.InvalidInstanceModuleError, lambda: nn.Dense.init(KEY, X), "init")
    raised(
        errors.InvalidInstanceModuleError,
        lambda: nn.Dense.init_with_output(KEY, X),
        "init_with_output needs",
    )
    raised(errors.InvalidInstanceModuleError, lambda: nn.Dense.apply({}, X), "apply")
    raised(errors.InvalidInstanceModuleError, lambda: nn.Dense.bind({}, X), "bind")
    raised(
        errors.InvalidInstanceModuleError,
        lambda: nn.init(lambda m: 0, nn.Dense),
        "parentheses",
    )


def test_post_init_without_super():
    class Net(nn.Module):
        def __post_init__(self):
            pass

        @nn.compact
        def __call__(self):
            return 0

    class Old(Net):
        def __init__(self, features):
            self.features = features

    for use in (lambda: Net()(), lambda: Net().init(KEY), lambda: Old(3).init(KEY)):
        raised(errors.IncorrectPostInitOverrideError, use, "__init__", "super()")


def test_properties_that_raise_attribute_errors():
    class Net(nn.Module):
        @property
        def width(self):
            return self.missing

    error = raised(
        errors.DescriptorAttributeError, lambda: Net().width, "Net", '"width"'
    )
    assert "missing" in str(error.__cause__)


# --- lifted transforms --------------------


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("boxed", [False, True])
def test_an_axis_that_a_variable_has_not(axis, boxed):
    init, stored = nn.initializers.ones, jnp.ones(3)
    if boxed:
        init, stored = nn.with_partitioning(init, ()), nn.Partitioned(stored, ("rows",))

    class Scaled(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            return carry * self.param("scale", init, ()), x

    options = {
        "variable_axes": {"params": axis},
        "split_rngs": {"params": True},
        "metadata_params": {nn.PARTITION_NAME: "rows"},
    }
    x, words = jnp.ones((3, 2)), ("/scale", f"axis {axis}", "has 1", "variable_axes")
    for transform in (nn.vmap, nn.scan):
        layers, error = transform(Scaled, **options), errors.VariableAxisError
        raised(error, lambda: layers().init(KEY, x, x), *words)
        variables = {"params": {"scale": stored}}
        raised(error, lambda: layers().apply(variables, x, x), *words)
        outer = Outer(lambda _: layers(name="layer")(x, x))
        raised(error, lambda: outer.init(KEY), "/block/layer/scale")


@pytest.mark.parametrize("axis_name", [None, "rows"])
@pytest.mark.parametrize("shared", [None, nn.Out(None)])
def test_a_shared_variable_that_differs_between_instances(axis_name, shared):
    init = nn.with_partitioning(nn.initializers.normal(), (None, "rows"))
    options = {"variable_axes": {"params": shared}, "axis_name": axis_name}
    layers = nn.vmap(nn.Dense, split_rngs={"params": True}, **options)
    words = '"kernel" in collection "params"', "axis None", "variable_axes", "pmean"
    error = errors.SharedVariableError
    found = raised(error, lambda: layers(2, kernel_init=init).init(KEY, X), *words)
    assert isinstance(found, ValueError)  # as JAX's
    outer = Outer(lambda _: layers(2, name="layer")(X))
    raised(error, lambda: jax.jit(outer.init)(KEY), "/block/layer/kernel")

    class Count(nn.Module):
        @nn.compact
        def __call__(self, x):
            sums = self.variable("stats", "sums", jnp.zeros, x.shape)
            calls = self.variable("stats", "calls", lambda: 0)
            calls.value += 1
            sums.value += x

    counts = nn.vmap(Count, {"stats": None}, axis_name=axis_name)()
    stats = {"stats": {"sums": jnp.zeros(3), "calls": 0}}
    raised(error, lambda: counts.apply(stats, X, mutable="stats"), '"sums"', "/sums")


def test_what_else_goes_wrong_in_a_vmap_is_not_blamed_on_its_variables():
    def refuse(module, x):
        raise ValueError("not today")

    outer = Outer(lambda module: nn.vmap(refuse, {"params": None})(module, X))
    with pytest.raises(ValueError, match="not today"):
        outer.init(KEY)
    whole = nn.vmap(nn.Dense, {"params": None}, {"params": False}, out_axes=None)(2)
    with pytest.raises(ValueError, match=r"out_axes\[0\]"):
        whole.init(KEY, X)


@pytest.mark.parametrize("transform", [nn.scan, nn.vmap, nn.add_metadata_axis])
@pytest.mark.parametrize("axis", [1.5, "x", (0,), nn.lift.In("x"), nn.lift.Out(1.5)])
def test_an_axis_of_variables_is_an_integer(transform, axis):
    with pytest.raises(TypeError, match=r"variable_axes takes .* {'params': .*; got"):
        transform(nn.Dense, variable_axes={"params": axis})(3).init(KEY, X)


@pytest.mark.parametrize("axis", [None, nn.broadcast, nn.lift.In(None)])
def test_scan_has_another_option_for_what_iterations_share(axis):
    with pytest.raises(TypeError, match=r"variable_axes .* in variable_broadcast\."):
        nn.scan(nn.Dense, variable_axes={"params": axis})(3).init(KEY, X, X)


@pytest.mark.parametrize("transform", [nn.vmap, nn.scan])
@pytest.mark.parametrize("option", ["variable_axes", "split_rngs"])
@pytest.mark.parametrize("given", [0, True, "params", ["params"]])
def test_options_by_collection_that_are_no_mapping(transform, option, given):
    with pytest.raises(TypeError, match=f"{option} takes .* {{'params': .*; got"):
        transform(nn.Dense, **{option: given})(3).init(KEY, X, X)


@pytest.mark.parametrize("value", [lambda m: m, lambda m: [m.variable("s", "v", int)]])
@pytest.mark.parametrize("transform", [nn.jit, nn.remat, nn.fold_rngs])
def test_transformed_methods_that_return_modules(transform, value):
    raised(
        errors.TransformedMethodReturnValueError,
        lambda: Outer(transform(value)).init(KEY),
        "<lambda>",
        "/block",
    )


@pytest.mark.parametrize("target", [3, nn.Dense(2), int])
def test_transform_targets(target):
    for transform in (
        nn.jit,
        nn.vmap,
        nn.scan,
        nn.remat,
        nn.map_variables,
        nn.fold_rngs,
        nn.add_metadata_axis,
        nn.named_call,
    ):
        raised(errors.TransformTargetError, lambda: transform(target), str(target)[:9])
    raised(
        errors.TransformTargetError,
        lambda: nn.custom_vjp(target, target, target),
        "custom_vjp",
    )
    run = lambda m: nn.vjp(target, m, 1.0)
    raised(errors.TransformTargetError, lambda: Outer(run).init(KEY), "vjp")
    raised(errors.TransformTargetError, lambda: nn.remat(lambda m: m)(3), "3")
    raised(errors.TransformTargetError, lambda: nn.vjp(lambda m: m, 3), "3")
    raised(
        errors.TransformTargetError, lambda: nn.remat(nn.Dense, methods="nope"), "nope"
    )
