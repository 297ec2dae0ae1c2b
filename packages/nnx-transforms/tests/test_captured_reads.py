"""What a compiled function reads of objects that it closes over is what they hold."""

import functools
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnx_transforms as nnx

X = jnp.arange(6.0).reshape(3, 2)


class Scale(nnx.Module):
    """A variable, an array that is an attribute, and a part."""

    def __init__(self):
        self.w, self.b = nnx.Param(jnp.array(2.0, jnp.float32)), jnp.array(1.0)
        self.inner = nnx.Dict(c=nnx.Variable(jnp.array(0.5)))

    def __call__(self, x):
        return self.w.value * x + self.b - self.inner.c.value


def edits_of(scale):
    def part():
        scale.inner.c.value = scale.inner.c.value * 3

    def attribute():
        scale.b = scale.b + 1

    def all_of_them():
        nnx.update(scale, jax.tree.map(lambda x: x + 1, nnx.state(scale)))

    def write():
        scale.w.value = jnp.array(7.0)

    return [write, part, attribute, all_of_them]


def traced_by(jitted, *args):
    """Whether a call traced the function."""
    jitted(*args)
    return bool(nnx.explain_recompile(jitted))


@pytest.mark.parametrize("options", [{}, {"donate_argnums": 0}, {"static_argnums": 1}])
def test_a_call_without_objects(options):
    scale = Scale()
    predict = nnx.jit(lambda x, n: scale(x) * n, **options)
    for edit in [lambda: None, *edits_of(scale)]:
        edit()
        np.testing.assert_allclose(predict(X + 0, 2), scale(X) * 2, rtol=1e-6)
        assert not traced_by(predict, X + 0, 2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"donate_state": True},
        {"in_shardings": None, "out_shardings": None},
        {"static_argnames": "n"},
    ],
)
def test_a_call_with_objects(options):
    scale, other = Scale(), Scale()

    @functools.partial(nnx.jit, **options)
    def step(model, x, n):
        model.w.value += 1
        return model(x) * scale(x) * n

    for edit in [lambda: None, *edits_of(scale)]:
        edit()
        found = step(other, X, n=2)
        np.testing.assert_allclose(found, other(X) * scale(X) * 2, rtol=1e-6)
        step(other, X, n=2)
        assert not nnx.explain_recompile(step)


def test_explanation_names_what_was_written():
    scale = Scale()
    predict = nnx.jit(lambda x: scale(x))
    predict(X)
    scale.inner.c.value = jnp.array(0.0)
    predict(X)
    assert str(nnx.explain_recompile(predict)) == (
        "<captured Scale>/inner/c: compiled in -> another array"
    )


def test_values_that_are_pytrees_and_keys():
    box = nnx.Dict(
        tree=nnx.Variable({"a": [jnp.ones(2), jnp.ones(2)]}),
        key=nnx.Variable(jax.random.key(0)),
    )

    def f(x):
        noise = jax.random.normal(box.key.value, (2,))
        return box.tree.value["a"][1] * x + noise

    jitted = nnx.jit(f)
    np.testing.assert_allclose(jitted(3.0), f(3.0), rtol=1e-6)
    box.key.value = jax.random.key(1)
    np.testing.assert_allclose(jitted(3.0), f(3.0), rtol=1e-6)
    box.tree.value["a"][1] = jnp.zeros(2)
    np.testing.assert_allclose(jitted(3.0), f(3.0), rtol=1e-6)
    box.tree.value = {"a": [jnp.ones(2), jnp.full(2, 4.0)]}
    np.testing.assert_allclose(jitted(3.0), f(3.0), rtol=1e-6)


def test_the_function_runs_once_for_each_change():
    scale, runs = Scale(), []

    def f(x):
        runs.append(1)
        return scale(x)

    predict = nnx.jit(f)
    for number, edit in enumerate([lambda: None, *edits_of(scale)], 1):
        edit()
        for _ in range(3):
            predict(X)
        assert len(runs) == number


def test_what_is_not_read_may_change():
    class Trainer:
        def __init__(self):
            self.model, self.rate = Scale(), 0.5

        def make(self):
            def step(model, x):
                model.w.value -= self.rate * model(x).mean()
                return model.w.value

            return nnx.jit(step)

    trainer = Trainer()
    step = trainer.make()
    for number in range(4):
        traced = traced_by(step, trainer.model, X)
        assert traced == (number == 0)


def test_an_object_that_is_defined_later():
    scale = None

    @nnx.jit
    def predict(x):
        return x if scale is None else scale(x)

    assert predict(X) is not None
    scale = Scale()
    y = jnp.ones(5)
    for edit in [lambda: None, *edits_of(scale)]:
        edit()
        np.testing.assert_allclose(predict(y), scale(y), rtol=1e-6)


def test_a_jitted_function_within_another_one():
    scale = Scale()
    inner = nnx.jit(lambda x: scale(x))
    outer = nnx.jit(lambda x: inner(x) + 1)
    for edit in [lambda: None, *edits_of(scale)]:
        edit()
        np.testing.assert_allclose(outer(X), scale(X) + 1, rtol=1e-6)
        np.testing.assert_allclose(inner(X), scale(X), rtol=1e-6)


@pytest.mark.parametrize("transform", [jax.jit, nnx.jit, lambda f: f])
def test_writes_between_two_calls_in_a_trace(transform):
    @transform
    def twice(w, x):
        model = nnx.Param(w)
        inner = nnx.jit(lambda x: model.value * x)
        first = inner(x)
        model.value = model.value * 2
        return first, inner(x)

    first, second = twice(jnp.array(3.0), X)
    np.testing.assert_allclose(first, 3 * X)
    np.testing.assert_allclose(second, 6 * X)


def test_writes_between_two_calls_to_an_argument():
    @nnx.jit
    def twice(model, x):
        inner = nnx.jit(lambda x: model(x))
        first = inner(x)
        model.w.value *= 2
        return first, inner(x)

    scale = Scale()
    due = scale(X)
    first, second = twice(scale, X)
    np.testing.assert_allclose(first, due)
    np.testing.assert_allclose(second, scale(X))
    assert float(scale.w.value) == 4


def test_a_method_that_closes_over_another_object():
    scale = Scale()

    class Outer(nnx.Module):
        def __init__(self):
            self.k = nnx.Param(jnp.array(2.0))

        @nnx.jit
        def __call__(self, x):
            return self.k.value * scale(x)

    outer = Outer()
    for edit in [lambda: None, *edits_of(scale)]:
        edit()
        np.testing.assert_allclose(outer(X), 2 * scale(X), rtol=1e-6)


def test_gradients_of_what_closes_over_objects():
    scale = Scale()
    loss = nnx.jit(lambda x: (scale(x) ** 2).sum())
    for edit in [lambda: None, *edits_of(scale)]:
        edit()
        due = jax.grad(lambda x: (scale(x) ** 2).sum())(X)
        np.testing.assert_allclose(nnx.grad(loss)(X), due, rtol=1e-6)
        np.testing.assert_allclose(jax.grad(loss)(X), due, rtol=1e-6)


def test_ahead_of_time_is_what_it_was_then():
    scale = Scale()
    predict = nnx.jit(lambda x: scale(x))
    before = scale(X)
    compiled = predict.lower(X).compile()
    scale.w.value = jnp.array(7.0)
    np.testing.assert_allclose(compiled(X), before)
    np.testing.assert_allclose(predict(X), scale(X))
    np.testing.assert_allclose(predict.lower(X).compile()(X), scale(X))


def test_what_can_not_be_taken_apart_stays_a_constant():
    class Odd(nnx.Module):
        def __init__(self):
            self.w, self.odd = nnx.Param(jnp.array(2.0)), None

    scale, odd = Scale(), Odd()
    loop = []
    loop.append(loop)
    object.__setattr__(odd, "odd", loop)
    predict = nnx.jit(lambda x: odd.w.value * scale(x))
    for edit in [lambda: None, *edits_of(scale)]:
        edit()
        np.testing.assert_allclose(predict(X), 2 * scale(X), rtol=1e-6)


# Static functions among the arguments


class Gated(nnx.Module):
    """A static function, in one of several places, reads another object."""

    def __init__(self, scale, where):
        self.w = nnx.Param(jnp.ones(2))
        if where == "attribute":
            self.f = lambda x: scale(x)
        elif where == "tuple":
            self.f = nnx.static((None, lambda x: scale(x)))
        elif where == "reference":
            self.f = weakref.ref(scale)
        else:
            self.w.set_metadata("f", lambda x: scale(x))

    def __call__(self, x):
        f = getattr(self, "f", None) or self.w.f
        f = f() if isinstance(f, weakref.ref) else f[1] if isinstance(f, tuple) else f
        return f(x) * self.w.value


def call(model, x):
    return model(x)


_scanned = nnx.scan(
    lambda model, x: (model, model(x)),
    in_axes=(nnx.Carry, 0),
    out_axes=(nnx.Carry, 0),
)
_kept = nnx.remat(lambda model, x: model(x))
TRANSFORMS = {
    "jit": lambda: nnx.jit(call),
    "donated": lambda: nnx.jit(call, donate_state=True),
    "remat": lambda: nnx.remat(call),
    "remat in jit": lambda: nnx.jit(lambda model, x: _kept(model, x)),
    "scan": lambda: lambda model, x: _scanned(model, x)[1],
    "scan in jit": lambda: nnx.jit(lambda model, x: _scanned(model, x)[1]),
    "vmap": lambda: nnx.vmap(call, in_axes=(None, 0)),
    "vmap in jit": lambda: nnx.jit(nnx.vmap(call, in_axes=(None, 0))),
    "cond": lambda: lambda m, x: nnx.cond(True, call, lambda m, x: x, m, x),
    "grad": lambda: nnx.grad(lambda m, x: (m(x) * m.w.value).sum(), argnums=1),
    "loop": lambda: nnx.jit(lambda m, x: nnx.fori_loop(0, 1, lambda i, x: m(x), x)),
}


@pytest.mark.parametrize("where", ["attribute", "tuple", "reference", "metadata"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_static_functions_read_what_objects_hold_now(where, name):
    scale = Scale()
    model = Gated(scale, where)
    transformed = TRANSFORMS[name]()
    for edit in [lambda: None, *edits_of(scale)]:
        edit()
        for _ in range(2):
            due = jnp.full_like(X, scale.w.value) if name == "grad" else scale(X)
            np.testing.assert_allclose(transformed(model, X), due, rtol=1e-6)


@pytest.mark.parametrize("how", ["global", "jax", "method", "weak reference"])
def test_reading_the_original_of_an_argument_warns(how):
    class Model(nnx.Module):
        def __init__(self):
            self.w, reference = nnx.Param(jnp.ones(2)), weakref.ref(self)
            self.apply = {
                "global": lambda x: model.scaled(x),
                "jax": jax.checkpoint(self.scaled),
                "method": self.scaled,
                "weak reference": lambda x: reference().scaled(x),
            }[how]

        def scaled(self, x):
            return self.w.value * x

    model = Model()

    @nnx.jit
    def step(model, x):
        return nnx.grad(lambda model: model.apply(x).sum())(model)

    if how == "method":  # It follows the object.
        np.testing.assert_allclose(step(model, X).w.value, X.sum(0))
        return
    match = "'step' reads the caller's own variable at 'args/0/w'"
    with pytest.warns(UserWarning, match=match) as found:
        assert not step(model, X).w.value.any()
    assert found[0].filename == __file__
    step(model, X)  # once for each program


def test_objects_of_a_trainer_that_are_arguments_as_well():
    class Trainer(nnx.Module):
        def __init__(self):
            self.model, self.rate = Scale(), nnx.Variable(jnp.array(0.5, jnp.float32))

        def step(self, x):
            def loss(model):
                return self.rate.value * model(x).sum()

            return nnx.jit(nnx.grad(loss))(self.model)

    trainer = Trainer()
    for f in (trainer.step, nnx.jit(trainer.step)):
        np.testing.assert_allclose(f(X).w.value, 0.5 * X.sum())


def test_a_rate_that_an_optimizer_closes_over():
    rate = nnx.Variable(jnp.array(1.0))
    model = nnx.Dict(w=nnx.Param(jnp.array(0.0)))
    optimizer = nnx.Optimizer(model, optax.sgd(lambda count: rate.value))

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(lambda model: 1.0 * model.w.value)(model))

    for value in (1.0, 10.0, 0.0):
        rate.value = jnp.array(value)
        before = float(model.w.value)
        step(model, optimizer)
        assert float(model.w.value) == before - value


def test_a_teacher_that_does_not_change_costs_no_trace():
    teacher = Scale()
    model = Gated(teacher, "attribute")

    @nnx.jit
    def step(model, x):
        model.w.value -= 0.1 * model(x).mean()

    for number in range(4):
        assert traced_by(step, model, X) == (number == 0)
