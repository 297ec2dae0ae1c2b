"""A `jax.Ref` in a variable or an attribute: JAX writes it where it is."""

import jax
import jax.numpy as jnp
import pytest

import nnx_transforms as nnx


class Model(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.array(2.0))
        self.seen = nnx.Variable(jax.new_ref(jnp.array(0.0)))


def step(model, x=1.0):
    model.seen.value[...] += x
    model.w.value *= 2
    return model


def scan(model):
    nnx.scan(lambda m, x: (step(m, x), x))(model, jnp.ones(3))


def shared_in_scan(model):
    nnx.scan(lambda m, x: step(m, x).w + 0, in_axes=(None, 0), out_axes=0)(
        model, jnp.ones(3)
    )


def while_loop(model):
    # The condition sees what the iterations write.
    nnx.while_loop(lambda m: m.seen.value[...] < 3, step, model)


def fori_loop(model):
    nnx.fori_loop(0, 3, lambda i, m: step(m), model)


def cond(model):
    for _ in range(3):
        nnx.cond(model.w > 0, lambda m: step(m) and None, lambda m: None, model)


def switch(model):
    nothing, three = lambda m: None, lambda m: step(step(step(m))) and None
    nnx.switch(model.w.astype(int) - 1, [nothing, three], model)


def remat(model):
    nnx.remat(lambda m: step(step(step(m))).w + 0)(model)


def grad(model):
    nnx.grad(lambda m: step(step(step(m))).w ** 2)(model)


TRANSFORMS = [scan, shared_in_scan, while_loop, fori_loop, cond, switch, remat, grad]


@pytest.mark.parametrize("outer", [lambda f: f, nnx.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("transformed", TRANSFORMS, ids=lambda f: f.__name__)
def test_a_ref_is_written_where_it_is(transformed, outer):
    model = Model()
    ref = model.seen.value
    run = outer(transformed)
    for _ in range(2):
        model.w.value = jnp.array(2.0)
        ref[...] = 0.0
        run(model)
        assert model.seen.value is ref
        assert ref[...] == 3.0
        assert model.w.value == 2.0 * 2**3


def test_each_index_of_a_map_has_its_part_of_a_ref():
    model = Model()
    model.w.value = jnp.ones(3)
    model.seen.value = ref = jax.new_ref(jnp.zeros(3))
    nnx.vmap(lambda m, x: scan(m) or step(m, x).w + 0)(model, jnp.arange(3.0))
    assert ref[...].tolist() == [3.0, 4.0, 5.0]


@pytest.mark.parametrize("run", [cond, scan, fori_loop])
def test_another_ref_in_its_place_is_refused(run, monkeypatch):
    def replace(model, x=1.0):
        model.seen.value = jax.new_ref(jnp.array(0.0))
        return model

    monkeypatch.setitem(globals(), "step", replace)
    model = Model()
    ref = model.seen.value
    with pytest.raises((TypeError, ValueError), match=r"mutable array|0/seen.*Ref"):
        run(model)
    assert model.seen.value is ref


class Bare(nnx.Module):
    def __init__(self, value):
        self.seen = jax.new_ref(value)


def add(model, x=1.0):
    model.seen[...] += x


def test_a_ref_in_an_attribute_is_an_input():
    traces = []

    @nnx.jit
    def add_compiled(model, x):
        traces.append(None)
        nnx.fori_loop(0, 2, lambda i, model: add(model, x) or model, model)

    for start in range(3):
        model = Bare(jnp.array(float(start)))
        ref = model.seen
        add_compiled(model, 2.0)
        assert model.seen is ref and ref[...] == start + 4.0
    assert len(traces) == 1
    assert nnx.is_data(ref) and nnx.state(model)["seen"] is ref


def test_each_index_of_a_map_has_its_part_of_a_ref_in_an_attribute():
    model = Bare(jnp.array([1.0, 2.0, 3.0]))
    out = nnx.vmap(lambda m, x: add(m, x) or m.seen[...])(model, jnp.arange(3.0))
    assert out.tolist() == model.seen[...].tolist() == [1.0, 3.0, 5.0]


def test_a_ref_in_two_attributes_is_refused_with_both_paths():
    model = Bare(jnp.zeros(2))
    model.again = model.seen
    with pytest.raises(ValueError, match="only one reference") as caught:
        nnx.jit(add)(model)
    told = " ".join(caught.value.__notes__)
    assert "at 'args/0/again'" in told and "at 'args/0/seen'" in told


@pytest.mark.parametrize("outer", [lambda f: f, nnx.jit], ids=["eager", "jit"])
def test_all_of_a_ref_is_read_and_written_like_a_part(outer):
    log = nnx.Dict(rows=nnx.Variable(jax.new_ref(jnp.zeros(3))))
    ref = log.rows.value

    @outer
    def write(log, x):
        log.rows[...] = x
        log.rows[0] += 1
        return log.rows[...] * 2, log.rows[1]

    for x, held in ((jnp.arange(3.0), [1.0, 1.0, 2.0]), (5, [6.0, 5.0, 5.0])):
        out, part = write(log, x)
        assert log.rows.value is ref
        assert ref[...].tolist() == log.rows[...].tolist() == held
        assert out.tolist() == [2 * y for y in held] and part == held[1]


def test_a_ref_is_written_wherever_jax_lets_it_be():
    rows = nnx.Variable(jax.new_ref(jnp.zeros(3)))
    ref = rows.value

    def write(rows, x=2.0):
        rows[0] = x
        rows[1] += x
        return rows[...] + 0

    by_value = jax.jit(write)(rows)
    assert by_value.tolist() == ref[...].tolist() == [2.0, 2.0, 0.0]
    # One that a function closes over, too.
    nnx.jit(lambda x: write(rows, x))(3.0)
    jax.lax.scan(lambda c, x: (c, write(rows, x)), None, jnp.array([5.0, 7.0]))
    assert ref[...].tolist() == [7.0, 17.0, 0.0]
    leaf = nnx.state(nnx.Dict(rows=rows)).rows
    assert leaf[...].tolist() == [7.0, 17.0, 0.0]
    leaf[...] = 1
    leaf[2] = 4.0
    assert ref[...].tolist() == [1.0, 1.0, 4.0] and leaf.value is ref


@pytest.mark.parametrize(
    "options",
    [{"donate_argnums": 0}, {"donate_argnames": "model"}, {"donate_state": True}],
)
@pytest.mark.parametrize("how", ["called", "inside", "ahead"])
def test_no_ref_is_donated(options, how):
    def run(by):
        model, jitted = Model(), nnx.jit(step, **options)
        w, ref = model.w.value, model.seen.value
        if how == "ahead":
            jitted = jitted.lower(model, by).compile()
        assert jitted(model, by) is model and model.seen.value is ref
        return w, ref[...], jitted(model, by).w.value, ref[...]

    w, first, doubled, seen = (jax.jit(run) if how == "inside" else run)(3.0)
    assert [*map(float, (first, doubled, seen))] == [3.0, 8.0, 6.0]
    assert w.is_deleted() == (how != "inside")
