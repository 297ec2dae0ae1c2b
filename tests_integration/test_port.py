"""The program that rewrites imports of Flax, on files like those that people have."""

import ast
import io
import re
import sys
import textwrap
import tokenize
from pathlib import Path

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linen_lift
import nnx_transforms
from nnx_transforms.port import port


def ported(source, problems=0):
    out = port(textwrap.dedent(source))
    assert len(out.problems) == problems, out.problems
    return out.source


def expect(before, after, problems=0):
    assert ported(before, problems) == textwrap.dedent(after)
    # A second run finds nothing more to do.
    assert port(textwrap.dedent(after)).source == textwrap.dedent(after)


# --- import statements --------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from flax import linen as nn", "import linen_lift as nn"),
        ("from flax import linen", "import linen_lift as linen"),
        ("from flax import nnx", "import nnx_transforms as nnx"),
        ("import flax.linen as nn", "import linen_lift as nn"),
        ("import flax.nnx as nnx", "import nnx_transforms as nnx"),
        ("import flax.linen as nn, jax", "import linen_lift as nn, jax"),
        ("import os, flax.nnx as x, jax", "import os, nnx_transforms as x, jax"),
        ("from flax.linen import Dense", "from linen_lift import Dense"),
        (
            "from flax.linen import Dense as D, compact",
            "from linen_lift import Dense as D, compact",
        ),
        ("from flax.nnx import Linear, jit", "from nnx_transforms import Linear, jit"),
        ("from flax.nnx.transforms import scan", "from nnx_transforms import scan"),
        (
            "from flax.nnx.module import first_from",
            "from nnx_transforms import first_from",
        ),
        (
            "from flax.nnx.nn.initializers import lecun_normal",
            "from nnx_transforms.layers.initializers import lecun_normal",
        ),
        (
            "from flax.nnx.nn import initializers",
            "from nnx_transforms import initializers",
        ),
        ("from flax.nnx import bridge", "from nnx_transforms import bridge"),
        ("from flax.nnx.graph import Key", "from nnx_transforms.graph import Key"),
        (
            "from flax.nnx.module import Module, first_from",
            "from nnx_transforms import Module, first_from",
        ),
        ("from flax.nnx.training import metrics", "from nnx_transforms import metrics"),
        (
            "from flax.nnx.traversals import flatten_mapping",
            "from nnx_transforms.traversals import flatten_mapping",
        ),
        (
            "from flax.nnx.bridge import ToNNX, to_linen",
            "from nnx_transforms.bridge import ToNNX, to_linen",
        ),
        ("from flax.core import freeze", "from linen_lift import freeze"),
        ("from flax.core import init", "from linen_lift.scope import init"),
        (
            "from flax.core.frozen_dict import FrozenDict, unfreeze",
            "from linen_lift import FrozenDict, unfreeze",
        ),
        ("from flax.core import lift, scope", "from linen_lift import lift, scope"),
        ("from flax.core.lift import In", "from linen_lift import In"),
        ("from flax import errors", "from linen_lift import errors"),
        (
            "from flax.errors import ScopeParamShapeError",
            "from linen_lift.errors import ScopeParamShapeError",
        ),
        (
            "from flax.linen import initializers",
            "from linen_lift import initializers",
        ),
        (
            "from flax.linen import partitioning as nn_partitioning",
            "from linen_lift import partitioning as nn_partitioning",
        ),
        # The two have a function of one name, with different arguments.
        (
            "from flax.linen.partitioning import remat",
            "from linen_lift.partitioning import remat",
        ),
        (
            "from flax.linen.dtypes import canonicalize_dtype, promote_dtype",
            "from linen_lift import canonicalize_dtype, promote_dtype",
        ),
        (
            "from flax.linen.linear import default_kernel_init, Dense",
            (
                "from linen_lift.layers.linear import default_kernel_init\n"
                "from linen_lift import Dense"
            ),
        ),
        (
            "from flax.linen.module import merge_param",
            "from linen_lift import merge_param",
        ),
        # What stays Flax's.
        ("from flax import struct", "from flax import struct"),
        ("import flax.struct", "import flax.struct"),
        (
            "from flax.training import train_state",
            "from flax.training import train_state",
        ),
        (
            "from flax import linen as nn, struct  # both",
            "from flax import struct  # both\nimport linen_lift as nn",
        ),
        (
            "from flax import nnx, linen as nn",
            "import nnx_transforms as nnx\nimport linen_lift as nn",
        ),
        ("from  flax.linen  import  relu", "from  linen_lift  import  relu"),
        ("from flax . linen import relu", "from linen_lift import relu"),
        ("from flax.linen import (relu)", "from linen_lift import (relu)"),
        (
            "from flax.linen import \\\n    relu, \\\n    gelu",
            "from linen_lift import \\\n    relu, \\\n    gelu",
        ),
        (r"from flax import nnx; x = '\$'", r"import nnx_transforms as nnx; x = '\$'"),
        ("x = 1; from flax import nnx; y", "x = 1; import nnx_transforms as nnx; y"),
        (
            "if x: from flax import linen as nn, struct",
            "if x: from flax import struct; import linen_lift as nn",
        ),
    ],
)
def test_statements(before, after):
    expect(before, after)


def test_comments_and_formatting_stay():
    expect(
        """\
        # -*- coding: utf-8 -*-
        '''Wörter.'''
        from flax.linen import (
            Dense,  # a
            # b
            compact,
        )  # c
        from flax import (
            linen as nn,  # d
        )


        class   Model( nn.Module ):
            größe : int

            def f(self):
                from flax.linen import (Dense,  # e
                                        SelfAttention)   # f
                return Dense
        """,
        """\
        # -*- coding: utf-8 -*-
        '''Wörter.'''
        from linen_lift import (
            Dense,  # a
            # b
            compact,
        )  # c
        # d
        import linen_lift as nn


        class   Model( nn.Module ):
            größe : int

            def f(self):
                from linen_lift import (Dense,  # e
                                        SelfAttention)   # f
                return Dense
        """,
    )


def test_names_of_one_statement_that_go_to_different_places():
    expect(
        """\
        def f():
            from flax.core import (
                FrozenDict,
                meta,  # boxes
                tracers,  # inner
                lift,
            )
            return FrozenDict
        """,
        """\
        def f():
            from linen_lift import (
                FrozenDict,
                meta,  # boxes
                # inner
                lift,
            )
            from flax.core import tracers
            return FrozenDict
        """,
        problems=1,
    )


def test_tries_and_conditions():
    expect(
        """\
        try:
            import flax.linen as nn
        except ImportError:
            nn = None
        if TYPE_CHECKING:
            from flax import nnx
        """,
        """\
        try:
            import linen_lift as nn
        except ImportError:
            nn = None
        if TYPE_CHECKING:
            import nnx_transforms as nnx
        """,
    )


# --- uses ---------------------------------------------------------------------------


def test_the_whole_of_flax_imported():
    expect(
        """\
        import flax
        import jax

        @flax.linen.compact
        def f(self, x: flax.core.FrozenDict):
            return flax.linen.initializers.ones, flax.linen.linear.default_kernel_init
        """,
        """\
        import linen_lift
        import jax

        @linen_lift.compact
        def f(self, x: linen_lift.FrozenDict):
            return linen_lift.ones, linen_lift.linear.default_kernel_init
        """,
    )


def test_flax_stays_where_a_part_of_it_does():
    expect(
        """\
        import flax, jax
        import flax.linen

        @flax.struct.dataclass
        class State:
            params: flax.core.FrozenDict
            model: flax.nnx.Module
        """,
        """\
        import flax, jax
        import linen_lift
        import nnx_transforms
        import flax

        @flax.struct.dataclass
        class State:
            params: linen_lift.FrozenDict
            model: nnx_transforms.Module
        """,
    )


def test_a_function_does_not_see_what_another_one_imports():
    expect(
        """\
        def train():
            import flax.linen
            import flax.nnx
            return flax.linen.Dense, flax.nnx.Linear, flax.struct.dataclass

        def evaluate():
            import flax
            return flax.nnx.jit
        """,
        """\
        def train():
            import flax
            import linen_lift
            import nnx_transforms
            import flax
            return linen_lift.Dense, nnx_transforms.Linear, flax.struct.dataclass

        def evaluate():
            import flax
            import linen_lift
            import nnx_transforms
            return nnx_transforms.jit
        """,
    )


def test_an_import_below_flax_binds_it_as_well():
    expect(
        """\
        import flax.struct

        @flax.struct.dataclass
        class State:
            params: flax.core.FrozenDict
        """,
        """\
        import flax.struct
        import linen_lift

        @flax.struct.dataclass
        class State:
            params: linen_lift.FrozenDict
        """,
    )


def test_modules_below():
    expect(
        """\
        import flax.linen as nn
        from flax import core
        x = nn.initializers.zeros_init(), nn.recurrent.RNN, nn.module.compact
        y = core.meta.unbox, core.frozen_dict.freeze, nn.summary . tabulate
        z = nn.batch_apply.BatchApply(f).fun, nn.combinators.Sequential
        """,
        """\
        import linen_lift as nn
        import linen_lift as core
        x = nn.initializers.zeros_init(), nn.recurrent.RNN, nn.module.compact
        y = core.meta.unbox, core.frozen_dict.freeze, nn.tabulate
        z = nn.BatchApply(f).fun, nn.combinators.Sequential
        """,
    )


def test_types_for_annotations():
    expect(
        """
        import flax.linen as nn
        from flax.core.scope import FrozenVariableDict
        from flax.linen.linear import PrecisionLike, default_kernel_init

        Variables = nn.module.VariableDict
        """,
        """
        import linen_lift as nn
        from linen_lift.types import FrozenVariableDict
        from linen_lift.types import PrecisionLike
        from linen_lift.layers.linear import default_kernel_init

        Variables = nn.types.VariableDict
        """,
    )


def test_functions_on_metadata():
    expect(
        """
        from flax.core import meta
        from flax.core.meta import remove_axis

        meta.add_axis
        """,
        """
        from linen_lift import meta
        from linen_lift import remove_axis

        meta.add_axis
        """,
    )


def test_what_cannot_be_mapped_is_listed_by_line():
    source = """\
    import flax
    from flax import linen as nn
    from flax.linen import fp8_ops, Dense
    from flax.deprecated import nn as old
    import flax.deprecated.nn
    from flax.linen import *
    layer = nn.Fp8Einsum
    show(flax)
    importlib.import_module("flax.linen")
    flax.config.update("flax_return_frozendict", True)
    """
    found = port(textwrap.dedent(source)).problems
    assert [(p.line, p.name) for p in found] == [
        (3, "flax.linen.fp8_ops"),
        (4, "flax.deprecated.nn"),
        (5, "flax.deprecated.nn"),
        (6, "flax.linen.*"),
        (7, "flax.linen.Fp8Einsum"),
        (8, "flax"),
        (9, "flax.linen"),
        (10, "flax.config"),
    ]
    assert "no such name" in found[4].reason and "use_eager" in found[7].reason


def test_a_module_that_has_nothing_here_stays_an_import_of_flax():
    assert port("from flax.linen import Dense, fp8_ops").source == (
        "from linen_lift import Dense\nfrom flax.linen import fp8_ops"
    )
    assert port("from flax.nnx import ids").source == "from flax.nnx import ids"
    assert port("import flax.linen.fp8_ops as f").source == (
        "import flax.linen.fp8_ops as f"
    )


def test_functions_that_are_others_here_are_listed():
    source = """\
    from flax import nnx
    doubled = nnx.map(lambda path, x: 2 * x, nnx.state(model))
    definition, flat = nnx.graph.flatten(model)
    """
    of_map, of_flatten = port(textwrap.dedent(source)).problems
    assert (of_map.line, of_flatten.line) == (2, 3)
    assert "`map_state`" in of_map.reason and "flat_state()" in of_flatten.reason


def test_writes_to_the_leaves_of_a_state_are_listed():
    source = """\
    import jax
    from flax import nnx
    jax.tree_util.tree_map(halve, nnx.state(optimizer, nnx.OptState), dtypes)
    nnx.update(optimizer, jax.tree.map(halve, nnx.state(optimizer)))
    print(nnx.state(optimizer))
    jax.tree.map(halve, nnx.variables(optimizer))
    """
    (found,) = port(textwrap.dedent(source)).problems
    assert (found.line, found.name) == (3, "nnx.state(optimizer, nnx.OptState)")
    assert "`nnx.variables`" in found.reason


def test_types_of_variables_that_are_asked_for_exactly_are_listed():
    source = """\
    from flax import nnx
    from flax.nnx import BatchStat
    plain = lambda path, v: type(v) is nnx.Variable
    either = type(v.leaf) in (int, BatchStat)
    other = type(m) is nnx.Linear or type(x) == int or isinstance(v, nnx.Param)
    """
    plain, either = port(textwrap.dedent(source)).problems
    assert (plain.line, plain.name) == (3, "type(v) is nnx.Variable")
    assert (either.line, either.name) == (4, "type(v.leaf) in (int, BatchStat)")
    assert "compare `v.type`" in plain.reason
    assert "compare `v.leaf.type`" in either.reason


def test_names_that_mean_something_else_as_well_are_left_alone():
    expect(
        """\
        import flax

        def f(flax):
            return flax.linen.Dense
        """,
        """\
        import flax

        def f(flax):
            return flax.linen.Dense
        """,
        problems=1,
    )
    expect(
        """\
        from flax import linen as nn

        def f():
            from torch import nn
            return nn.summary, nn.Linear
        """,
        """\
        import linen_lift as nn

        def f():
            from torch import nn
            return nn.summary, nn.Linear
        """,
        problems=2,
    )


def test_quoted_annotations_keep_what_they_need():
    source = """\
    import flax
    def f(x: "flax.linen.Module") -> flax.linen.Module: ...
    """
    out = ported(source, problems=1)
    assert "import flax\nimport linen_lift\n" in out and "-> linen_lift.Module" in out


# --- code that does not use Flax ----------------------------------------------------

LINES = [
    "import flaxen",
    "from .flax import linen",
    "from . import flax",
    "import flax_model.linen as nn",
    "x = 'from flax import linen'",
    "# from flax import linen as nn",
    "flax = nn.Dense",
    "def f(flax): return flax.linen.Dense",
    '"""',
    "x = {",
    "\t",
    "from jax import numpy as jnp; y = jnp",
    "x = '\\u2028ö' ; z = 1\x0c",
]


@given(st.lists(st.sampled_from(LINES)), st.sampled_from(["\n", "\r\n", "\r"]))
def test_other_code_comes_back_as_it_is(lines, newline):
    source = newline.join(lines)
    try:
        ast.parse(source)
    except SyntaxError:
        with pytest.raises(SyntaxError):
            port(source)
    else:
        assert port(source) == (source, (), ())


@pytest.mark.parametrize("module", [linen_lift, nnx_transforms, linen_lift.layers])
def test_these_packages_come_back_as_they_are(module):
    for path in Path(module.__file__).parent.glob("*.py"):
        source = path.read_text()
        assert port(source).source == source


def test_the_page_for_those_who_come_from_flax():
    page = Path(__file__).parent.parent / "docs" / "linen" / "from_flax.md"
    blocks = re.findall("```python\\n(.*?)```", page.read_text(), re.DOTALL)
    expect(blocks[0], blocks[1])


# --- any statement ------------------------------------------------------------------

NAMES = {
    "flax.linen": ["Dense", "compact", "relu", "initializers", "partitioning", "scan"],
    "flax.nnx": ["Linear", "jit", "Module", "Rngs"],
    "flax.core": ["freeze", "FrozenDict", "lift", "meta", "scope"],
    "flax.linen.attention": ["combine_masks", "SelfAttention"],
    "flax.linen.linear": ["default_kernel_init", "Conv", "Dense"],
    "flax": ["linen", "nnx", "errors"],
}


@st.composite
def statements(draw):
    """An import statement in some layout, and what it binds."""
    module = draw(st.sampled_from(sorted(NAMES)))
    names = draw(
        st.lists(st.sampled_from(NAMES[module]), min_size=1, unique=True, max_size=5)
    )
    if draw(st.booleans()) and module == "flax":
        return f"import flax.{names[0]} as it", {"it": names[0]}
    pairs = [(n, draw(st.sampled_from([None, "ab", "größe"]))) for n in names]
    parts = [f"{n} as {a}{i}" if a else n for i, (n, a) in enumerate(pairs)]
    bound = {f"{a}{i}" if a else n: n for i, (n, a) in enumerate(pairs)}
    if draw(st.booleans()):
        comment = lambda: draw(st.sampled_from(["", "  # note", "  # ö, (x"]))
        inner = (
            "".join(f"    {part},{comment()}\n" for part in parts[:-1])
            + f"    {parts[-1]}{draw(st.sampled_from(['', ',']))}{comment()}\n"
        )
        text = f"from {module} import ({comment()}\n{inner}){comment()}"
    else:
        end = draw(st.sampled_from(["", "  # end", "; x = 1"]))
        text = f"from {module} import {', '.join(parts)}{end}"
    if draw(st.booleans()):
        text = "if True:\n" + textwrap.indent(text, "    ")
    return text, bound


def comments(source):
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sorted(t.string for t in tokens if t.type == tokenize.COMMENT)


@settings(max_examples=200)
@given(st.lists(statements(), min_size=1, max_size=3), st.sampled_from(["\n", "\r\n"]))
def test_any_statement(found, newline):
    source = "\n".join(text for text, _ in found).replace("\n", newline)
    out = port(source)
    assert out.problems == () and out.kept == ()
    assert "flax" not in out.source
    assert port(out.source).source == out.source
    plain = out.source.replace("\r\n", "\n")
    assert comments(plain) == comments(source.replace("\r\n", "\n"))
    assert out.source.count("\r") in (0, out.source.count("\n"))
    # It runs, and binds the same names to something.
    namespace = {}
    exec(plain, namespace)
    for _, bound in found:
        for name in bound:
            assert namespace[name] is not None


# --- a model -------------------------------------------------------------------------

MODEL = '''\
"""A model as one finds it."""
import functools

import jax
import flax.linen as nn
from flax.core import FrozenDict
from flax.linen.initializers import lecun_normal  # for kernels
from flax.linen import (
    Module,
    compact,
)


class Block(Module):
    width: int

    @compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dense = functools.partial(nn.Dense, kernel_init=lecun_normal())
        x = nn.LayerNorm()(dense(self.width)(x))
        return nn.attention.SelfAttention(num_heads=2)(nn.activation.relu(x))


def init(key: jax.Array, x: jax.Array) -> FrozenDict:
    return nn.module.Module.init(Block(4), key, x)
'''


def test_a_model_runs_after_it():
    out = ported(MODEL)
    assert "flax" not in out
    namespace = {"__name__": "model"}
    sys.modules["model"] = type(sys)("model")
    try:
        exec(compile(out, "model.py", "exec"), namespace)
        x = jax.numpy.ones((2, 5, 4))
        variables = namespace["init"](jax.random.key(0), x)
    finally:
        del sys.modules["model"]
    assert isinstance(namespace["Block"](4), linen_lift.Module)
    assert sorted(variables["params"]) == [
        "Dense_0",
        "LayerNorm_0",
        "SelfAttention_0",
    ]
