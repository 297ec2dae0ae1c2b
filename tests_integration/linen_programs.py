"""Random programs for a library of modules, which any library with Linen's names runs.

A program is a tree of nodes. Each node stands for a module class, and has a list of
operations; an operation may run others inside of a lifted transform. Everything maps
an array of shape (3,) to another one. Initial values are constants, so that two
libraries whose keys differ make the same variables.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

SIZE = 3
COLLECTIONS = ("stats", "intermediates", "draws", "perturbations")
STREAMS = ("params", "noise")


class Node(NamedTuple):
    """A module class: whether it declares in `setup`, and what it does."""

    style: str
    ops: tuple["Op", ...]


class Op(NamedTuple):
    """One step: its kind, a name (or None), a transform, and what is inside."""

    kind: str
    name: str | None = None
    lift: str = "none"
    node: Any = None
    ops: tuple["Op", ...] = ()
    times: int = 1


def ops(**fields):
    return st.fixed_dictionaries(fields).map(lambda found: Op(**found))


NAMES = st.sampled_from([None, None, None, "a", "b"])
# Two in one word are applied one after the other: `jit_remat` compiles the second.
CLASS_LIFTS = [
    "none",
    "jit",
    "remat",
    "vmap",
    "vmap_shared",
    "scan",
    "scan_shared",
    "jit_remat",
    "remat_jit",
    "vmap_remat",
    "scan_remat",
    "jit_vmap",
    "fold_rngs",
    "remat_scan",
]
FUNCTION_LIFTS = [
    "jit",
    "remat",
    "vmap",
    "vmap_shared",
    "cond",
    "switch",
    "vjp",
    "grad",
    "jvp",
    "value_and_grad",
    "custom_vjp",
    "map_variables",
    "scan_fn",
    "while_loop",
]
METHOD_LIFTS = ["none", "remat", "vmap", "name_scope", "nowrap"]


def leaf_ops():
    return st.one_of(
        ops(kind=st.just("param"), name=st.sampled_from("pq")),
        ops(kind=st.just("count"), name=st.sampled_from("np")),
        ops(kind=st.just("sow"), name=st.sampled_from("sp")),
        ops(kind=st.just("draw"), name=st.sampled_from(STREAMS)),
        ops(kind=st.just("perturb"), name=st.sampled_from("tp")),
        ops(kind=st.just("dense"), name=NAMES),
    )


def node_of(inner):
    fields = {
        "style": st.sampled_from(["compact", "compact", "setup"]),
        "ops": st.lists(inner, min_size=1, max_size=3).map(tuple),
    }
    return st.fixed_dictionaries(fields).map(lambda found: Node(**found))


def ops_of(inner):
    nodes = node_of(inner)
    bodies = st.lists(inner, min_size=1, max_size=3).map(tuple)
    times = st.sampled_from([1, 1, 2])
    return st.one_of(
        ops(
            kind=st.just("child"),
            name=NAMES,
            lift=st.sampled_from(CLASS_LIFTS),
            node=nodes,
            times=times,
        ),
        ops(
            kind=st.just("shared"),
            name=NAMES,
            lift=st.sampled_from(["twice", "list", "dict", "field"]),
            node=nodes,
            times=times,
        ),
        ops(kind=st.just("lifted"), lift=st.sampled_from(FUNCTION_LIFTS), ops=bodies),
        ops(
            kind=st.just("lifted_child"),
            name=NAMES,
            lift=st.sampled_from(FUNCTION_LIFTS),
            node=nodes,
        ),
        ops(
            kind=st.just("method"),
            lift=st.sampled_from(METHOD_LIFTS),
            ops=bodies,
            times=times,
        ),
    )


programs = node_of(st.recursive(leaf_ops(), ops_of, max_leaves=6))


# --- running a program ---------------------------------------------------------------


def constant(offset):
    def init(key, shape=(SIZE,)):
        return jnp.linspace(0.5, 1.0, SIZE) + offset

    return init


def axes(**own):
    return {"params": 0, **dict.fromkeys(COLLECTIONS, 0), **own}


def splits(value):
    return dict.fromkeys(STREAMS, value)


def lifted_class(nn, cls, lift):
    """A class transformed; and how to call an instance of it."""

    def plain(m, x):
        return m(x)

    def mapped(m, x):
        return m(jnp.stack([x, 2 * x])).mean(0)

    def scanned(m, x):
        return m(x, None)[0]

    outer, _, inner = lift.partition("_")
    if inner in ("remat", "jit", "vmap"):
        cls, call = lifted_class(nn, cls, inner)
        cls, outer_call = lifted_class(nn, cls, outer)
        return cls, outer_call if outer in ("vmap", "scan") else call
    if lift in ("jit", "remat", "fold_rngs"):
        return getattr(nn, lift)(cls), plain
    if lift == "vmap":
        return nn.vmap(cls, axes(), splits(True)), mapped
    if lift == "vmap_shared":
        return nn.vmap(cls, axes(params=None), {"params": False, "noise": True}), mapped
    if lift == "remat_scan":
        return nn.remat_scan(
            cls, (2, 1), variable_axes=axes(), split_rngs=splits(True)
        ), plain
    if lift in ("scan", "scan_shared"):

        class Body(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                return cls(name="body")(x), x.sum()

        if lift == "scan":
            return nn.scan(Body, axes(), split_rngs=splits(True), length=2), scanned
        own = {k: v for k, v in axes().items() if k != "params"}
        return nn.scan(
            Body, own, "params", split_rngs={"params": False, "noise": True}, length=2
        ), scanned
    return cls, plain


def lifted_call(nn, lift, fn, mdl, x):
    """Calls `fn(mdl, x)` through a lifted transform of functions."""
    if lift in ("jit", "remat"):
        return getattr(nn, lift)(fn)(mdl, x)
    if lift == "vmap":
        return nn.vmap(fn, axes(), splits(True))(mdl, jnp.stack([x, 2 * x])).mean(0)
    if lift == "vmap_shared":
        return nn.vmap(fn, axes(params=None), {"params": False, "noise": False})(
            mdl, jnp.stack([x, 2 * x])
        ).mean(0)
    if lift == "cond":
        return nn.cond(x.sum() > 0, fn, lambda m, x: fn(m, 2 * x), mdl, x)
    if lift == "switch":
        return nn.switch(1, [fn, lambda m, x: fn(m, 2 * x)], mdl, x)
    if lift == "vjp":
        out, back = nn.vjp(fn, mdl, x)
        (grads, x_grad) = back(jnp.ones_like(out))
        if not mdl.is_initializing():
            out = out + sum(jnp.sum(g) for g in jax.tree.leaves(grads))
        return out + x_grad
    if lift == "grad":
        return nn.grad(lambda m, x: fn(m, x).sum(), mdl, x)[0]
    if lift == "value_and_grad":
        value, (grad,) = nn.value_and_grad(lambda m, x: fn(m, x).sum(), mdl, x)
        return value + grad
    if lift == "jvp":
        out, tangent = nn.jvp(fn, mdl, (x,), (x,), {})
        return out + tangent
    if lift == "custom_vjp":

        def backward(back, g):
            params, x_grad = back(g)
            return jax.tree.map(lambda a: 2 * a, params), 3 * x_grad

        return nn.custom_vjp(fn, lambda m, x: nn.vjp(fn, m, x), backward)(mdl, x)
    if lift == "map_variables":
        return nn.map_variables(fn, "params", init=mdl.is_initializing(), mutable=True)(
            mdl, x
        )
    if lift == "scan_fn":
        body = lambda m, c, _: (fn(m, c), None)
        return nn.scan(body, axes(), split_rngs=splits(True), length=2)(mdl, x, None)[0]
    if lift == "while_loop":
        if mdl.is_initializing():
            return fn(mdl, x)
        step = lambda m, c: (c[0] + 1, fn(m, c[1]))
        return nn.while_loop(
            lambda m, c: c[0] < 2,
            step,
            mdl,
            (0, x),
            carry_variables="stats",
            split_rngs=splits(True),
        )[1]
    raise AssertionError(lift)


def unfrozen(tree):
    return dict(tree) if hasattr(tree, "keys") else tree


@functools.cache
def around(nn):
    """A class that calls the modules in its field, one after the other."""

    class Around(nn.Module):
        inner: Any

        @nn.compact
        def __call__(self, x):
            leaf = lambda each: isinstance(each, nn.Module)
            for each in jax.tree.leaves(unfrozen(self.inner), is_leaf=leaf):
                x = each(x)
            return x * self.param("w", constant(0.25))

    return Around


@functools.lru_cache(maxsize=64)
def module_class(nn, node):
    """The class of a node, in a library."""
    methods = {}

    def declare(self, op):
        """What an operation needs; made in `setup`, or inline."""
        if op.kind == "param":
            return self.param(op.name, constant(0.1))
        if op.kind == "count":
            return self.variable("stats", op.name, jnp.zeros, ())
        if op.kind == "dense":
            return nn.Dense(
                SIZE, name=op.name, kernel_init=nn.initializers.constant(0.3)
            )
        if op.kind == "child":
            cls, _ = lifted_class(nn, module_class(nn, op.node), op.lift)
            return cls(name=op.name)
        if op.kind == "lifted_child":
            return module_class(nn, op.node)(name=op.name)
        if op.kind == "shared":
            cls = module_class(nn, op.node)
            if op.lift == "field":
                return around(nn)(cls(parent=None, name=op.name))
            child = cls(name=op.name)
            if op.lift == "twice":
                return around(nn)(child), around(nn)(child)
            if op.lift == "list":
                return around(nn)([child, child, cls(parent=None)]), child
            if op.lift == "dict":
                return (around(nn)({"x": child, "y": cls(parent=None)}),)
            return child
        return None

    def perform(self, op, made, x, where):
        """One operation."""
        x = jnp.tanh(x)
        if op.kind == "param":
            return x * made
        if op.kind == "count":
            if self.is_mutable_collection("stats"):
                made.value = made.value + x.mean()
            return x + made.value
        if op.kind == "sow":
            self.sow("intermediates", op.name, x)
            return x
        if op.kind == "perturb":
            return self.perturb(op.name, x)
        if op.kind == "draw":
            self.sow("draws", "key", jax.random.key_data(self.make_rng(op.name)))
            return x
        if op.kind == "dense":
            return made(x)
        if op.kind == "child":
            _, call = lifted_class(nn, module_class(nn, op.node), op.lift)
            for _ in range(op.times):
                x = call(made, x)
            return x
        if op.kind == "shared":
            for each in made if isinstance(made, tuple) else (made,):
                x = each(x)
            return x
        if op.kind == "lifted_child":
            return lifted_call(nn, op.lift, lambda m, x: m(x), made, x)
        if op.kind == "lifted":
            return lifted_call(
                nn, op.lift, lambda m, x: run(m, op.ops, x, where), self, x
            )
        if op.kind == "method":
            method = getattr(self, "method" + where)
            for _ in range(op.times):
                if op.lift == "vmap":
                    x = method(jnp.stack([x, 2 * x])).mean(0)
                else:
                    x = method(x)
            return x
        raise AssertionError(op.kind)

    def run(self, ops, x, where):
        for i, op in enumerate(ops):
            here = f"{where}_{i}"
            made = (
                getattr(self, "made" + here)
                if node.style == "setup"
                else declare(self, op)
            )
            x = perform(self, op, made, x, here)
        return x

    def prepare(self, ops, where):
        for i, op in enumerate(ops):
            here = f"{where}_{i}"
            setattr(self, "made" + here, declare(self, op))
            prepare(self, op.ops, here)

    def add_methods(ops, where):
        for i, op in enumerate(ops):
            here = f"{where}_{i}"
            if op.kind == "method":

                def method(self, x, op=op, here=here):
                    return run(self, op.ops, x, here)

                method.__name__ = method.__qualname__ = "method" + here
                if op.lift == "name_scope":
                    if node.style == "compact":
                        method = nn.compact_name_scope(method)
                elif op.lift == "nowrap":
                    method = nn.nowrap(method)
                elif op.lift == "vmap":
                    method = nn.vmap(method, axes(), splits(True))
                elif op.lift != "none":
                    method = getattr(nn, op.lift)(method)
                methods["method" + here] = method
            add_methods(op.ops, here)

    add_methods(node.ops, "")
    if node.style == "setup":
        methods["setup"] = lambda self: prepare(self, node.ops, "")

    call = lambda self, x: run(self, node.ops, x, "")
    call.__name__ = "__call__"
    methods["__call__"] = call if node.style == "setup" else nn.compact(call)
    methods["__module__"] = __name__
    return type(nn.Module)("Net", (nn.Module,), methods)
