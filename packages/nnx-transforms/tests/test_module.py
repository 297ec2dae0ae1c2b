import abc
import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphcore as gc
import nnx_transforms as nnx
from nnx_transforms.modules.module import Module


class Block(Module):
    def __init__(self):
        self.rate = 0.5
        self.deterministic = False
        self.kernel = gc.Param(jnp.ones(2))


class Norm(Module):
    def __init__(self):
        self.use_running_average = False


class Model(Module):
    def __init__(self):
        self.blocks = [Block(), Block()]
        self.first = self.blocks[0]
        self.norm = Norm()
        self.table = {"inner": Norm()}
        self.me = self


def test_sow_appends_to_a_tuple_and_keeps_the_variable():
    m = Module()
    m.sow(gc.Intermediate, "xs", 1)
    variable = m.xs
    m.sow(gc.Intermediate, "xs", 2)
    assert m.xs is variable
    assert type(variable) is gc.Intermediate
    assert variable.value == (1, 2)


def test_sow_reduces_with_given_functions():
    m = Module()
    for x in range(4):
        m.sow(gc.Cache, "total", x, reduce_fn=lambda a, b: a + b, init_fn=lambda: 10)
    assert m.total.value == 16


def test_sow_takes_the_name_of_a_variable_type():
    m = Module()
    m.sow("cache", "last", 1)
    assert type(m.last) is gc.Cache


@pytest.mark.parametrize("method", ["sow", "perturb"])
@pytest.mark.parametrize(
    ("taken", "found"), [(3, "int"), (gc.Param(1.0), "Param"), (None, "NoneType")]
)
def test_a_taken_name_is_refused_and_kept(method, taken, found):
    m = Module()
    m.xs = taken
    args = ("xs", 1.0) if method == "perturb" else (gc.Intermediate, "xs", 1.0)
    with pytest.raises(ValueError, match=f"Module/xs.*found a {found}"):
        getattr(m, method)(*args)
    assert m.xs is taken


def test_sow_does_not_shadow_methods():
    m = Module()
    with pytest.raises(ValueError, match="Module/train"):
        m.sow(gc.Intermediate, "train", 1)
    assert "train" not in vars(m)


def test_sow_is_popped_like_any_variable():
    m = Model()
    m.blocks[1].sow(gc.Intermediate, "xs", jnp.array(1.0))
    popped = gc.pop(m, gc.Intermediate)
    assert popped.flat_state().paths == (("blocks", 1, "xs"),)
    assert not hasattr(m.blocks[1], "xs")


def test_the_gradient_of_a_perturbation_is_that_of_the_value():
    class Net(Module):
        def __call__(self, x):
            return jnp.sum(self.perturb("hidden", jnp.sin(x)) ** 2)

    net, x = Net(), jnp.array([0.3, 1.1])
    assert float(net(x)) == pytest.approx(float(jnp.sum(jnp.sin(x) ** 2)))
    assert type(net.hidden) is gc.Perturbation
    assert not net.hidden.value.any()
    graphdef, state = gc.split(net)
    grad = jax.grad(lambda s: gc.merge(graphdef, s)(x))(state)
    np.testing.assert_allclose(grad.hidden.value, 2 * jnp.sin(x), rtol=1e-6)


def test_perturb_says_which_shape_its_variable_has():
    m = Module()
    m.perturb("hidden", jnp.ones(3))
    with pytest.raises(ValueError, match=r"'hidden', .* \(3,\), .* got one of \(4,\)"):
        m.perturb("hidden", jnp.ones(4))
    with pytest.raises(ValueError, match=r"\(3,\), .* got one of \{'a': \(3,\)\}"):
        m.perturb("hidden", {"a": jnp.ones(3)})


def test_perturb_takes_pytrees():
    m = Module()
    value = {"a": jnp.ones(2), "b": (jnp.zeros(3),)}
    m.perturb("p", value)
    m.p.value = jax.tree.map(lambda x: x + 1, m.p.value)
    out = m.perturb("p", value)
    assert out["a"].tolist() == [2, 2]
    assert out["b"][0].tolist() == [1, 1, 1]


def test_iter_modules_lists_each_once_with_itself_last():
    m = Model()
    listed = list(m.iter_modules())
    assert [path for path, _ in listed] == [
        ("blocks", 0),
        ("blocks", 1),
        ("norm",),
        ("table", "inner"),
        (),
    ]
    assert listed[-1][1] is m
    assert len({id(module) for _, module in listed}) == len(listed)


def test_iter_children_lists_attributes_only():
    m = Model()
    assert [name for name, _ in m.iter_children()] == ["first", "me", "norm"]


def test_set_attributes_by_filter():
    m = Model()
    m.set_attributes(gc.PathContains(1), rate=0.1)
    assert [b.rate for b in m.blocks] == [0.5, 0.1]
    m.set_attributes(Block, Norm, rate=0.2, use_running_average=True)
    assert [b.rate for b in m.blocks] == [0.2, 0.2]
    assert m.norm.use_running_average
    assert not hasattr(m, "rate")


def test_set_attributes_raises_before_it_changes_anything():
    m = Model()
    with pytest.raises(ValueError, match=r"\['no_such'\]"):
        m.set_attributes(rate=0.1, no_such=1)
    assert [b.rate for b in m.blocks] == [0.5, 0.5]
    m.set_attributes(rate=0.1, no_such=1, raise_if_not_found=False)
    assert [b.rate for b in m.blocks] == [0.1, 0.1]


def test_set_attributes_undoes_what_it_did_when_an_attribute_refuses():
    class Picky(Module):
        @property
        def rate(self):
            return 1

    m = Model()
    m.zz = Picky()
    with pytest.raises(AttributeError):
        m.set_attributes(rate=0.1)
    assert [b.rate for b in m.blocks] == [0.5, 0.5]


def test_a_default_of_the_class_is_not_left_behind_by_a_refused_change():
    class Defaulted(Module):
        rate = 0.5

    class Picky(Module):
        @property
        def rate(self):
            return 1

    m = Module()
    m.a = Defaulted()
    m.z = Picky()
    before = nnx.graphdef(m)
    with pytest.raises(AttributeError):
        m.set_attributes(rate=0.1)
    assert m.a.rate == 0.5 and "rate" not in vars(m.a)
    assert nnx.graphdef(m) == before


def test_set_attributes_from_another_trace_changes_nothing():
    m = Model()

    @jax.jit
    def change(x):
        m.train(rate=0.1)
        return x

    with pytest.raises(gc.TraceContextError):
        change(1.0)
    assert [b.rate for b in m.blocks] == [0.5, 0.5]


def test_train_and_eval_switch_modes_and_set_more():
    m = Model()
    m.eval(rate=0.0)
    assert all(b.deterministic and b.rate == 0.0 for b in m.blocks)
    assert m.norm.use_running_average and m.table["inner"].use_running_average
    m.train()
    assert not any(b.deterministic for b in m.blocks)
    assert not m.norm.use_running_average
    m.train(deterministic=True)
    assert all(b.deterministic for b in m.blocks)


def test_lists_and_dicts_are_modules_that_can_be_copied_and_compiled():
    layers = nnx.List([Block()]) + [nnx.Dict(norm=Norm())]
    twin = pickle.loads(pickle.dumps(layers))
    assert nnx.jit(lambda m: m)(layers) is layers
    for made in (layers, twin, copy.deepcopy(layers), nnx.clone(layers)):
        made.eval()
        assert made[0].deterministic and made[1].norm.use_running_average
        assert isinstance(made, nnx.Module) and isinstance(made, gc.List)
        assert isinstance(made[1], nnx.Module) and isinstance(made[1], gc.Dict)


def test_an_annotation_may_say_that_an_attribute_is_data():
    class Block(nnx.Module):
        bias: nnx.Data[nnx.Param | None]

        def __init__(self, use_bias):
            self.bias = nnx.Param(jnp.zeros(2)) if use_bias else None

    assert len(nnx.state(Block(True))) == 1 and len(nnx.state(Block(False))) == 0


@pytest.mark.parametrize("bases", [(nnx.Module,), (nnx.Module, abc.ABC)])
def test_a_class_that_lacks_an_abstract_method_makes_no_modules(bases):
    class Mean(*bases):
        @abc.abstractmethod
        def __call__(self, x): ...

        @property
        @abc.abstractmethod
        def size(self): ...

    class Sized(Mean):
        size = 3

    class Zero(Sized):
        def __call__(self, x):
            return 0 * x

    with pytest.raises(TypeError, match="abstract"):
        Mean()
    with pytest.raises(TypeError, match="__call__"):
        Sized()
    assert Zero()(1) == 0
