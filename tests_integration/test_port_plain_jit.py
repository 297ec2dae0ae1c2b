"""The porting tool on functions under plain `jax.jit` that change their arguments."""

import textwrap

import pytest

from nnx_transforms.port import port

HEAD = "import functools\nimport jax\nfrom flax import nnx\n"


def found(program, head=HEAD):
    problems = port(head + textwrap.dedent(program)).problems
    return [problem.name for problem in problems]


JITTED = {
    "decorated": "@jax.jit\ndef f({}):\n    {}",
    "with options": "@functools.partial(jax.jit, static_argnums=0)\ndef f({}):\n    {}",
    "called": "def f({}):\n    {}\ng = jax.jit(f)",
    "called by name": "def f({}):\n    {}\ng = jax.jit(static_argnums=0, fun=f)",
    "given its options first": "def f({}):\n    {}\ng = partial(jax.jit)(f)",
    "a method": "class A:\n  @jax.jit\n  def f({}):\n    {}",
    "imported": "from jax import jit as compiled\n@compiled\ndef f({}):\n    {}",
    "of a module under another name": "import jax as j\n@j.jit\ndef f({}):\n    {}",
    "kept with options": (
        "jit = functools.partial(jax.jit, donate_argnums=0)\n@jit\ndef f({}):\n    {}"
    ),
    "of self": (
        "class A:\n  def __init__(self):\n    self.g = jax.jit(self.f)\n"
        "  def f({}):\n    {}"
    ),
    "under its own name": "def f({}):\n    {}\nf = jax.jit(f)",
    "in a function": "def make():\n  def f({}):\n    {}\n  return jax.jit(f)",
    "in one around": "def f({}):\n    {}\ndef make():\n  return jax.jit(f)",
    "in one around, by a global name": (
        "def f({}):\n    {}\ndef make():\n  global f\n  f = jax.jit(f)"
    ),
    "before another one": "def f({}):\n    {}\ng = jax.jit(f)\ndef f(): pass",
    "in a branch": (
        "if flag:\n  def f({}):\n    {}\nelse:\n  def f(): pass\ng = jax.jit(f)"
    ),
}


@pytest.mark.parametrize("form", JITTED.values(), ids=JITTED)
def test_what_is_returned_as_it_came_or_drawn_from_is_listed(form):
    given = "model, cache, x, rngs"
    body = "return model(x, cache, rngs), cache"
    assert found(form.format(given, body)) == ["f(cache)", "f(rngs)"]
    assert found(form.format("x, *, noise: nnx.Rngs", "return x * 2")) == ["f(noise)"]
    assert found(form.format("x, y", "return [(x, y)]")) == ["f(x)", "f(y)"]


@pytest.mark.parametrize("form", JITTED.values(), ids=JITTED)
def test_what_is_bound_anew_or_only_read_is_not(form):
    assert not found(form.format("state, x", "state = state + x; return state, x * 2"))
    assert not found(form.format("model, x", "return model(x)"))
    assert not found(form.format("rngs", "rngs = nnx.Rngs(rngs); return rngs()"))
    assert not found(form.format("rngs: jax.Array", "return normal(rngs), rngs"))


def test_other_functions_and_programs_are_left_alone():
    body = "def f(cache, rngs):\n    return cache"
    assert not found(f"@nnx.jit\n{body}")
    assert not found(body)
    head = "import jax\nfrom flax import linen\n"
    assert not found(f"@jax.jit\n{body}", head)


OTHERS_OF_THAT_NAME = {
    "an argument": "def make(f): return jax.jit(f)",
    "a variable": "def make():\n  f = other()\n  return jax.jit(f)",
    "in another function": "def make():\n  def f(): pass\n  return jax.jit(f)",
    "a method": "class A:\n  def f(self): pass\n  g = jax.jit(self.f)",
    "an argument of a lambda": "make = lambda f: jax.jit(f)",
    "given to what was given jit": "step = make(jax.jit)\ng = step(f)",
}


@pytest.mark.parametrize(
    "program", OTHERS_OF_THAT_NAME.values(), ids=OTHERS_OF_THAT_NAME
)
def test_a_function_of_the_same_name_elsewhere_is_left_alone(program):
    assert not found(f"def f(cache):\n    return cache\n{program}")


def test_methods_are_not_seen_by_name():
    program = """
    def f(rngs):
        return rngs()
    class A:
        def f(self, cache):
            return cache
        def g(self):
            return jax.jit(f)
    """
    assert found(program) == ["f(rngs)"]


def test_programs_that_import_the_whole_of_flax():
    program = "@jax.jit\ndef f(cache: flax.nnx.Cache):\n    return cache"
    for head in ("import jax\nimport flax.nnx\n", "import jax\nimport flax\n"):
        assert found(program, head) == ["f(cache)"]


def test_the_line_and_the_way_out_are_told():
    (problem,) = port(
        f"{HEAD}@jax.jit\ndef f(\n    x,\n    cache,\n):\n    return 2 * x, cache"
    ).problems
    assert problem.line == 7
    assert "cache = nnx.by_value(cache)" in problem.reason
    assert "nnx.jit" in problem.reason


@pytest.mark.parametrize(
    "source",
    [
        "from numpyro.contrib.module import nnx_module as f, random_nnx_module as g",
        "from numpyro.contrib import module as m\nm.nnx_module; m.random_nnx_module",
    ],
)
def test_functions_of_others_that_split_with_flax_are_listed(source):
    out = port("from flax import nnx\n" + source)
    assert out.source == "import nnx_transforms as nnx\n" + source
    assert {p.name for p in out.problems} == {"nnx_module", "random_nnx_module"}
    assert all("keep in Flax" in problem.reason for problem in out.problems)
    # What someone else calls so is none of them.
    assert not port("from .models import nnx_module\nself.nnx_module()").problems


@pytest.mark.parametrize(
    "source",
    [
        "from qwix import apply_lora_to_model as a, quantize_model as q",
        "import qwix as q\nq.apply_lora_to_model(m, r), q.quantize_model(m, r)",
    ],
)
def test_functions_of_others_that_refuse_other_modules_are_listed(source):
    out = port("from flax import nnx\n" + source)
    assert {p.name for p in out.problems} == {"apply_lora_to_model", "quantize_model"}
    assert all("refuses" in p.reason for p in out.problems)
    assert not port("from .x import quantize_model as q\nself.quantize_model").problems
