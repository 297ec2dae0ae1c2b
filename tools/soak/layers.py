"""Transforms of functions of graphs, each written twice.

A function takes nodes and a number, and returns a number. `live` puts a transform of
the library around it. `plain` says what that means, in loops and calls.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import nnx_transforms as nnx
from tools.soak.actions import Survey
from tools.soak.kits import FIXED, Plain, Stacked, mod

__all__ = ["COMPILED", "MAPS", "RESHAPING", "SIZE", "live", "plain"]

Function = Callable[..., Any]
SIZE = 2
"""The length of axes that are mapped over."""
COMPILED = ("jit", "jit_donating")
RESHAPING = (*COMPILED, "remat", "gradient", "context")
"""Inside of these a function may change the structure of its graph."""
MAPS = ("vmap", "scan")
_PLAIN = Plain()
_AXES = {"vmap": None, "scan": nnx.Carry}


def live(name: str, f: Function, count: int) -> Function:
    """A transform of the library around a function.

    Args:
        name: Which one.
        f: A function of live nodes and a number.
        count: How many nodes.
    """
    if name in MAPS:
        axes = nnx.StateAxes({Stacked: 0, ...: _AXES[name]})
        transform = nnx.vmap if name == "vmap" else nnx.scan
        return transform(f, in_axes=((axes,) * count + (0,)), out_axes=0)  # type: ignore[operator, no-any-return]
    made: Function = globals()[f"live_{name}"](f)
    return made


def plain(name: str, f: Function) -> Function:
    """What the transform means.

    Args:
        name: Which one.
        f: A function of plain nodes and a number.
    """
    made: Function = globals()[f"plain_{name}"](f)
    return made


def plain_jit(f: Function) -> Function:
    return f


plain_jit_donating = plain_remat = plain_jit


def live_jit(f: Function) -> Function:
    return nnx.jit(f)


def live_jit_donating(f: Function) -> Function:
    return nnx.jit(f, donate_state=True)


def live_remat(f: Function) -> Function:
    remat: Function = nnx.remat(f)
    return remat


def live_context(f: Function) -> Function:
    """The four steps of an `UpdateContext`, by hand."""

    # Equinox's `jit`: what is no array in the value of a `Whole` is static to it.
    @eqx.filter_jit
    def inside(graphdef: Any, state: Any, x: Any) -> Any:
        ctx = nnx.current_update_context("soak")
        roots = ctx.merge(graphdef, state)
        y = f(*roots, x)
        return ctx.split(roots), y

    def call(*args: Any) -> Any:
        *roots, x = args
        with nnx.update_context("soak") as ctx:
            (graphdef, state), y = inside(*ctx.split(nnx.List(roots)), x)
            ctx.merge(graphdef, state)
        return y

    return call


def plain_context(f: Function) -> Function:
    """What is split inside comes back; what nobody reaches there stays as it was."""

    def call(*args: Any) -> Any:
        found = Survey(_PLAIN, args[:-1])
        before = [(x, _PLAIN.content(x)) for x in found.nodes + found.variables]
        y = f(*args)
        found = Survey(_PLAIN, args[:-1])
        reached = {id(x) for x in found.nodes + found.variables}
        for x, content in before:
            if id(x) not in reached:
                _PLAIN.restore(x, content)
        return y

    return call


def live_cond(f: Function) -> Function:
    return lambda *args: nnx.cond(jnp.array(True), f, _left_alone(), *args)


def plain_cond(f: Function) -> Function:
    return f


def live_switch(f: Function) -> Function:
    branches = [_left_alone(), _left_alone(), f]
    return lambda *args: nnx.switch(jnp.array(2), branches, *args)


plain_switch = plain_cond


def _left_alone() -> Function:
    # Made anew: what is known of a function, structure by structure, goes with it, and
    # would be more with each program.
    return lambda *args: args[-1]


def live_fori_loop(f: Function) -> Function:
    def call(*args: Any) -> Any:
        def body(_: Any, carry: Any) -> Any:
            return *carry[:-1], f(*carry)

        return nnx.fori_loop(0, SIZE, body, args)[-1]

    return call


def plain_fori_loop(f: Function) -> Function:
    def call(*args: Any) -> Any:
        *roots, x = args
        for _ in range(SIZE):
            x = f(*roots, x)
        return x

    return call


def live_while_loop(f: Function) -> Function:
    def call(*args: Any) -> Any:
        def body(carry: Any) -> Any:
            n, *rest = carry
            return n + 1, *rest[:-1], f(*rest)

        return nnx.while_loop(lambda carry: carry[0] < SIZE, body, (0, *args))[-1]

    return call


plain_while_loop = plain_fori_loop


def live_custom_rule(f: Function) -> Function:
    """The derivative by the number is 3; it is asked for and added."""
    ruled = nnx.custom_vjp(f)

    def forward(*args: Any) -> Any:
        return ruled(*args), args

    def backward(residuals: Any, g: Any) -> Any:
        updates, out = g
        return *(jax.tree.map(jnp.zeros_like, u) for u in updates[:-1]), 3.0 * out

    ruled.defvjp(forward, backward)

    def call(*args: Any) -> Any:
        y, g = nnx.value_and_grad(_summed(ruled), argnums=len(args) - 1)(*args)
        return mod(y + g)

    return call


def plain_custom_rule(f: Function) -> Function:
    return lambda *args: mod(f(*args).sum() + 3 + 0 * args[-1])


def live_gradient(f: Function) -> Function:
    """The derivatives by all parameters, added up with weights."""

    def call(*args: Any) -> Any:
        argnums = tuple(range(len(args) - 1))
        y, grads = nnx.value_and_grad(_summed(f), argnums=argnums)(*args)
        values = [leaf.value for state in grads for _, leaf in state.flat_state()]
        return mod(y + _weighted(values) + 0 * args[-1])

    return call


def plain_gradient(f: Function) -> Function:
    def call(*args: Any) -> Any:
        *roots, x = args
        values = [v.value for v in Survey(_PLAIN, roots).of_kind("Param")]

        def pure(values: Sequence[Any]) -> Any:
            copies = copy.deepcopy(roots)
            boxes = Survey(_PLAIN, copies).of_kind("Param")
            for box, value in zip(boxes, values, strict=True):
                box.value = value
            return f(*copies, x).sum()

        grads = jax.grad(pure)([*map(jnp.asarray, values)])
        y = f(*roots, x).sum()
        return mod(y + _weighted([*map(np.asarray, grads)]) + 0 * x)

    return call


def _summed(f: Function) -> Function:
    return lambda *args: f(*args).sum()


def _weighted(grads: Sequence[Any]) -> Any:
    return sum((n + 1) * g.sum(dtype=g.dtype) for n, g in enumerate(grads))


def plain_vmap(f: Function) -> Function:
    def call(*args: Any) -> Any:
        *roots, xs = args
        found = Survey(_PLAIN, roots)
        variables = found.variables
        before, after, out = [v.value for v in variables], [], []
        bare = [place for place in found.arrays if type(place[0]) not in FIXED]
        for i in range(SIZE):
            for v, value in zip(variables, before, strict=True):
                v.value = value[i] if v.kind == "Stacked" else value
            for place in bare:
                _PLAIN.put(*place)
            out.append(f(*roots, xs[i]))
            after.append([v.value for v in variables])
        for v, *values in zip(variables, *after, strict=True):
            v.value = _stack(values) if v.kind == "Stacked" else values[-1]
        return _stack(out)

    return call


def plain_scan(f: Function) -> Function:
    def call(*args: Any) -> Any:
        *roots, xs = args
        stacked = Survey(_PLAIN, roots).of_kind("Stacked")
        before, after, out = [v.value for v in stacked], [], []
        for i in range(SIZE):
            for v, value in zip(stacked, before, strict=True):
                v.value = value[i]
            out.append(f(*roots, xs[i]))
            after.append([v.value for v in stacked])
        for v, *values in zip(stacked, *after, strict=True):
            v.value = _stack(values)
        return _stack(out)

    return call


def _stack(values: Sequence[Any]) -> Any:
    known = all(isinstance(v, np.ndarray | np.generic) for v in values)
    return np.stack(values) if known else jnp.stack(values)
