"""What is traced of nnx-transforms, by hand, and by its peers.

A case is a function of a *library*: a namespace with JAX's names for transforms, and
blocks that can be called. By hand the transforms are JAX's own and a block is a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

import nnx_transforms as nnx
from tools.bench import peers
from tools.bench.models import read

WIDTH = 8
Array = jax.Array


def normalized(x: Array, scale: Array, offset: Array) -> Array:
    """Layer normalization, the same in all libraries."""
    mean = jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + offset


def residual(
    scale: Array, offset: Array, w1: Array, b1: Array, w2: Array, b2: Array, x: Array
) -> Array:
    """The mathematics of a block."""
    h = normalized(x, scale, offset)
    return x + (jnp.matmul(jax.nn.gelu(jnp.matmul(h, w1) + b1), w2) + b2)


def _parameters(stacked: int | None = None) -> dict[str, Array]:
    lead = () if stacked is None else (stacked,)
    shapes = {
        "scale": (WIDTH,),
        "offset": (WIDTH,),
        "w1": (WIDTH, WIDTH),
        "b1": (WIDTH,),
        "w2": (WIDTH, WIDTH),
        "b2": (WIDTH,),
    }
    return {name: jnp.full((*lead, *shape), 0.1) for name, shape in shapes.items()}


def _call(block: Any, x: Array) -> Array:
    return block(x)


@dataclass(frozen=True)
class Library:
    """A way to write the cases.

    Args:
        transforms: A namespace of transforms.
        models: From a list of dicts of parameters to a model and what turns the
            arguments of the traced function into a list of blocks.
        call: Calls a block.
        tangents: From blocks to tangents of them; None if that isn't possible.
    """

    transforms: Any
    models: Callable[[list[dict[str, Array]]], tuple[Any, Callable[[Any], Any]]]
    call: Callable[[Any, Array], Array]
    tangents: Callable[[Any], Any] | None = None


def _by_hand() -> Library:
    lax = jax.lax

    def scan(f: Any, in_axes: Any = None, out_axes: Any = None) -> Any:
        def step(x: Array, block: Any) -> tuple[Array, None]:
            return f(x, block), None

        return lambda x, stacked: lax.scan(step, x, stacked)[0]

    transforms = SimpleNamespace(
        grad=jax.grad,
        value_and_grad=jax.value_and_grad,
        vjp=jax.vjp,
        jvp=jax.jvp,
        linearize=jax.linearize,
        jacrev=jax.jacrev,
        jacfwd=jax.jacfwd,
        hessian=jax.hessian,
        remat=jax.checkpoint,
        jit=jax.jit,
        vmap=jax.vmap,
        scan=scan,
        Carry=None,
        cond=lax.cond,
        switch=lax.switch,
        while_loop=lax.while_loop,
        fori_loop=lax.fori_loop,
        custom_vjp=jax.custom_vjp,
        custom_jvp=jax.custom_jvp,
        custom_gradient=jax.custom_gradient,
        closure_convert=jax.closure_convert,
    )
    return Library(
        transforms,
        lambda blocks: (blocks, lambda blocks: blocks),
        lambda block, x: residual(**block, x=x),
        lambda blocks: jax.tree.map(jnp.ones_like, blocks),
    )


def _modules(library: Any) -> Callable[[list[dict[str, Array]]], Any]:
    """Makes models of a library with modules of live variables."""

    class Block(library.Module):
        def __init__(self, parameters: dict[str, Array]) -> None:
            rngs = library.Rngs(0)
            self.scale = library.Param(parameters["scale"])
            self.offset = library.Param(parameters["offset"])
            self.first = library.Linear(WIDTH, WIDTH, rngs=rngs)
            self.second = library.Linear(WIDTH, WIDTH, rngs=rngs)
            self.first.kernel = library.Param(parameters["w1"])
            self.first.bias = library.Param(parameters["b1"])
            self.second.kernel = library.Param(parameters["w2"])
            self.second.bias = library.Param(parameters["b2"])

        def __call__(self, x: Array) -> Array:
            h = normalized(x, read(self.scale), read(self.offset))
            return x + self.second(jax.nn.gelu(self.first(h)))

    def models(parameters: list[dict[str, Array]]) -> Any:
        listed = getattr(library, "List", list)
        graphdef, state = library.split(listed([Block(p) for p in parameters]))
        return state, lambda state: library.merge(graphdef, state)

    return models


def _ours() -> Library:
    def tangents(blocks: Any) -> Any:
        return jax.tree.map(jnp.ones_like, nnx.state(blocks))

    return Library(nnx, _modules(nnx), _call, tangents)


def _flax(mode: dict[str, bool]) -> Library:
    """Flax NNX with all transforms in one mode."""
    flax = peers.flax_nnx

    class InMode:
        Carry = flax.Carry

        def __getattr__(self, name: str) -> Any:
            transform = getattr(flax, name)
            return lambda *args, **kwargs: transform(*args, **kwargs, **mode)

    return Library(InMode(), _modules(flax), _call)


def _equinox() -> Library:
    eqx = peers.equinox

    class Block(eqx.Module):
        scale: Array
        offset: Array
        w1: Array
        b1: Array
        w2: Array
        b2: Array

        def __call__(self, x: Array) -> Array:
            linear = self.w1, self.b1, self.w2, self.b2
            return residual(self.scale, self.offset, *linear, x)

    def grad(f: Any) -> Any:
        return eqx.filter_grad(f)

    transforms = SimpleNamespace(
        grad=grad,
        value_and_grad=eqx.filter_value_and_grad,
        vjp=eqx.filter_vjp,
        remat=eqx.filter_checkpoint,
        jit=eqx.filter_jit,
        vmap=lambda f, in_axes, out_axes=0: eqx.filter_vmap(f, in_axes=in_axes),
    )
    return Library(
        transforms,
        lambda blocks: ([Block(**b) for b in blocks], lambda blocks: blocks),
        _call,
    )


def libraries() -> dict[str, Library]:
    """All libraries that are installed, by hand and ours first."""
    found = {peers.BY_HAND: _by_hand(), peers.NNX: _ours()}
    if peers.flax_nnx is not None:
        for name, mode in peers.flax_modes(peers.flax_nnx.jit).items():
            if name != peers.FLAX_GRAPH:
                found[name] = _flax(mode)
    if peers.equinox is not None:
        found[peers.EQUINOX] = _equinox()
    return found


# The cases: functions of a library, its blocks and an input. What they transform is
# made anew each time: JAX keeps traces with the function that was traced.

Case = Callable[[Library, Any, Array], Any]


def _forward(library: Library, blocks: Any, x: Array) -> Any:
    for block in blocks:
        x = library.call(block, x)
    return x


def _of_one_function(call_block: Callable[[Library, Any], Any]) -> Case:
    """Calls each block through the same transformed function.

    Args:
        call_block: Makes, of a library and an input, what calls a block.
    """

    def case(library: Library, blocks: Any, x: Array) -> Any:
        call = call_block(library, x)
        for block in blocks:
            x = call(block, x)
        return x

    return case


def _anew(call_block: Callable[[Library, Any], Any]) -> Case:
    """The same, with a function made for each block."""

    def case(library: Library, blocks: Any, x: Array) -> Any:
        for block in blocks:
            x = call_block(library, x)(block, x)
        return x

    return case


def _through(transform: Callable[[Any, Callable[..., Any]], Any]) -> Any:
    """Makes what calls a block through a transform of a function."""

    def call_block(library: Library, x: Array) -> Any:
        call = library.call
        return transform(library.transforms, lambda block, x: call(block, x))

    return call_block


def _loss(library: Library, x: Array) -> Callable[[Any], Array]:
    return lambda blocks: jnp.sum(_forward(library, blocks, x))


def _grad(library: Library, blocks: Any, x: Array) -> Any:
    return library.transforms.grad(_loss(library, x))(blocks)


def _value_and_grad(library: Library, blocks: Any, x: Array) -> Any:
    return library.transforms.value_and_grad(_loss(library, x))(blocks)


def _grad_of_remat(library: Library, blocks: Any, x: Array) -> Any:
    remat = _anew(_through(lambda t, f: t.remat(f)))
    return library.transforms.grad(lambda b: jnp.sum(remat(library, b, x)))(blocks)


def _vjp(library: Library, blocks: Any, x: Array) -> Any:
    out, pull_back, *_ = library.transforms.vjp(_loss(library, x), blocks)
    return out, pull_back(out)


def _jvp(library: Library, blocks: Any, x: Array) -> Any:
    assert library.tangents is not None, "no tangents of live objects"
    tangents = library.tangents(blocks)
    return library.transforms.jvp(_loss(library, x), (blocks,), (tangents,))


def _linearize(library: Library, blocks: Any, x: Array) -> Any:
    assert library.tangents is not None, "no tangents of live objects"
    out, linear = library.transforms.linearize(_loss(library, x), blocks)
    return out, linear(library.tangents(blocks))


def _jacrev(library: Library, blocks: Any, x: Array) -> Any:
    forward = lambda blocks: _forward(library, blocks, x)[0]  # noqa: E731
    return library.transforms.jacrev(forward)(blocks)


def _jacfwd(library: Library, blocks: Any, x: Array) -> Any:
    forward = lambda blocks: _forward(library, blocks, x)  # noqa: E731
    return library.transforms.jacfwd(forward)(blocks)


def _hessian(library: Library, blocks: Any, x: Array) -> Any:
    return library.transforms.hessian(_loss(library, x))(blocks)


def _vmap(library: Library, blocks: Any, x: Array) -> Any:
    def call(block: Any, x: Array) -> Array:
        return library.call(block, x)

    mapped = library.transforms.vmap(call, in_axes=(0, None))
    return mapped(blocks[0], x)


def _scan(library: Library, x: Array) -> Any:
    carry = library.transforms.Carry

    def call(x: Array, block: Any) -> Array:
        return library.call(block, x)

    scan = library.transforms.scan(call, in_axes=(carry, 0), out_axes=carry)
    return lambda block, x: scan(x, block)


def _cond(library: Library, x: Array) -> Any:
    return lambda block, x: library.transforms.cond(
        x[0, 0] > 0,
        lambda block, x: library.call(block, x),
        lambda block, x: -library.call(block, x),
        block,
        x,
    )


def _switch(library: Library, x: Array) -> Any:
    branches = [lambda block, x, i=i: i * library.call(block, x) for i in range(3)]
    index = jnp.int32(x[0, 0])
    return lambda block, x: library.transforms.switch(index, branches, block, x)


def _while_loop(library: Library, x: Array) -> Any:
    def go_on(carried: Any) -> Any:
        return carried[1][0, 0] < 100

    def body(carried: Any) -> Any:
        block, x = carried
        return block, library.call(block, x)

    return lambda *carry: library.transforms.while_loop(go_on, body, carry)[1]


def _fori_loop(library: Library, x: Array) -> Any:
    def body(i: Any, carried: Any) -> Any:
        block, x = carried
        return block, library.call(block, x)

    return lambda *carry: library.transforms.fori_loop(0, 3, body, carry)[1]


def _custom_vjp(library: Library, blocks: Any, x: Array) -> Any:
    @library.transforms.custom_vjp
    def call(block: Any, x: Array) -> Array:
        return library.call(block, x)

    call.defvjp(
        lambda block, x: (library.call(block, x), None),
        lambda residuals, g: (None, g),
    )
    for block in blocks:
        x = call(block, x)
    return x


def _custom_jvp(library: Library, blocks: Any, x: Array) -> Any:
    @library.transforms.custom_jvp
    def call(block: Any, x: Array) -> Array:
        return library.call(block, x)

    call.defjvps(None, lambda t, out, block, x: t)
    for block in blocks:
        x = call(block, x)
    return x


CASES: dict[str, Case] = {
    "forward": _forward,
    "remat": _anew(_through(lambda t, f: t.remat(f))),
    "remat of one function": _of_one_function(_through(lambda t, f: t.remat(f))),
    "grad": _grad,
    "grad of remat": _grad_of_remat,
    "value_and_grad": _value_and_grad,
    "vjp": _vjp,
    "jvp": _jvp,
    "linearize": _linearize,
    "jacrev": _jacrev,
    "jacfwd": _jacfwd,
    "hessian": _hessian,
    "jit of each block": _of_one_function(_through(lambda t, f: t.jit(f))),
    "vmap": _vmap,
    "vmap of each block": _of_one_function(
        _through(lambda t, f: t.vmap(f, in_axes=(None, 0)))
    ),
    "scan": _of_one_function(_scan),
    "scan of one function": _of_one_function(_scan),
    "cond": _anew(_cond),
    "switch": _anew(_switch),
    "switch of one function": _of_one_function(_switch),
    "while_loop": _anew(_while_loop),
    "while_loop of one function": _of_one_function(_while_loop),
    "fori_loop": _anew(_fori_loop),
    "fori_loop of one function": _of_one_function(_fori_loop),
    "custom_vjp": _custom_vjp,
    "custom_jvp": _custom_jvp,
}
STACKED = {"vmap": 1, "scan": 1, "scan of one function": None}
"""How many blocks there are of cases whose parameters are stacked; None for all."""
FEW = {"jacfwd": 2, "hessian": 2, "jacrev": 10}  # that grow with the parameters


def _entered(case: Case, library: Library, enter: Any) -> Callable[..., Any]:
    """The case as a function of what a model is passed as."""
    return lambda model, x: case(library, enter(model), x)


def cases(blocks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cases, to be traced.

    Args:
        blocks: How many blocks.

    Yields:
        The name, and for each library a function and its arguments.
    """
    x = jnp.ones((4, WIDTH))
    found = libraries()
    for name, case in CASES.items():
        count = min(blocks, FEW.get(name, blocks))
        parameters = [_parameters() for _ in range(count)]
        if name in STACKED:
            parameters = [_parameters(blocks)] * (STACKED[name] or count)
        traced = {}
        for label, library in found.items():
            model, enter = library.models(parameters)

            traced[label] = _entered(case, library, enter), (model, x)
        yield name, traced
