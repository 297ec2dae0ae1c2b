"""What is traced of linen-lift, by hand, and of Flax Linen.

The modules are the same in both libraries. By hand the same mathematics is written as
functions of the same dicts of parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import linen_lift
from tools.bench import peers
from tools.bench.tracing_nnx import normalized

WIDTH = 8
Array = jax.Array
COPIES = 4  # of a block that is mapped over


def _dense(parameters: Any, x: Array) -> Array:
    out = lax.dot_general(
        x,
        parameters["kernel"],
        (((x.ndim - 1,), (0,)), ((), ())),
        preferred_element_type=x.dtype,
    )
    return out + parameters["bias"]


def block_by_hand(parameters: Any, x: Array) -> Array:
    """The mathematics of a block."""
    first, second = parameters["Dense_0"], parameters["Dense_1"]
    h = normalized(x, parameters["scale"], parameters["offset"])
    return x + _dense(second, jax.nn.gelu(_dense(first, h)))


def _block(nn: Any) -> Any:
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Array) -> Array:
            scale = self.param("scale", jax.nn.initializers.ones, (WIDTH,))
            offset = self.param("offset", jax.nn.initializers.zeros, (WIDTH,))
            h = jax.nn.gelu(nn.Dense(WIDTH)(normalized(x, scale, offset)))
            return x + nn.Dense(WIDTH)(h)

    return Block


def _model(nn: Any, blocks: int, apply: Callable[[Any, Any, Array], Array]) -> Any:
    """A module that applies blocks in turn."""
    Block = _block(nn)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Array) -> Array:
            for _ in range(blocks):
                x = apply(self, Block, x)
            return x

    return Model()


Modules = Callable[[Any, int], Any]
ByHand = Callable[[list[Any], Array], Any]


def _in_turn(apply: Callable[[Any, Any, Any, Array], Array]) -> Modules:
    """Models whose blocks go through `apply(nn, module, Block, x)`."""
    return lambda nn, blocks: _model(
        nn, blocks, lambda module, Block, x: apply(nn, module, Block, x)
    )


def _lifted(transform: Callable[[Any, Any], Any]) -> Modules:
    """Models of blocks of a transformed class, transformed once."""

    def model(nn: Any, blocks: int) -> Any:
        Block = _block(nn)

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x: Array) -> Array:
                Lifted = transform(nn, Block)
                for _ in range(blocks):
                    x = Lifted()(x)
                return x

        return Model()

    return model


def _anew(transform: Callable[[Any, Any], Any]) -> Modules:
    """Models of blocks of a transformed class, transformed for each block."""
    return lambda nn, blocks: _model(
        nn, blocks, lambda module, Block, x: transform(nn, Block)()(x)
    )


def _each_anew(transform: Callable[[Any], Any]) -> ByHand:
    """By hand: each block through a function transformed for it."""

    def apply(blocks: list[Any], x: Array) -> Array:
        for parameters in blocks:
            x = transform(lambda p, x: block_by_hand(p, x))(parameters, x)
        return x

    return apply


def _each(transform: Callable[[Any], Any]) -> ByHand:
    """By hand: each block through a transformed function, transformed once."""

    def apply(blocks: list[Any], x: Array) -> Array:
        transformed = transform(lambda p, x: block_by_hand(p, x))
        for parameters in blocks:
            x = transformed(parameters, x)
        return x

    return apply


def _vmap(nn: Any, Block: Any) -> Any:
    return nn.vmap(Block, variable_axes={"params": 0}, split_rngs={"params": True})


def _scan(nn: Any, length: int, times: int) -> Any:
    """A model of scans of some length, one after the other."""
    Block = _block(nn)

    class Step(nn.Module):
        @nn.compact
        def __call__(self, x: Array, _: None) -> Any:
            return Block()(x), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Array) -> Array:
            Scan = nn.scan(
                Step,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=length,
            )
            for _ in range(times):
                x = Scan()(x, None)[0]
            return x

    return Model()


def _scan_over(nn: Any, blocks: int) -> Any:
    return _scan(nn, blocks, 1)


def _scans(nn: Any, blocks: int) -> Any:
    return _scan(nn, COPIES, blocks)


def _scans_by_hand(blocks: list[Any], x: Array) -> Array:
    for parameters in blocks:
        x = _scan_by_hand([parameters], x)
    return x


def _scan_by_hand(blocks: list[Any], x: Array) -> Array:
    def step(x: Array, parameters: Any) -> Any:
        return block_by_hand(parameters, x), None

    for parameters in blocks:
        x, _ = lax.scan(step, x, parameters)
    return x


def _remat_scan(nn: Any, blocks: int) -> Any:
    Block = _block(nn)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Array) -> Array:
            return nn.remat_scan(Block, lengths=(blocks // 2, 2))()(x)

    return Model()


def _remat_scan_by_hand(blocks: list[Any], x: Array) -> Array:
    def inner(x: Array, parameters: Any) -> Any:
        return block_by_hand(parameters, x), None

    # A loop around a loop keeps equal computations apart already.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def outer(x: Array, parameters: Any) -> Any:
        return lax.scan(inner, x, parameters)

    return lax.scan(outer, x, blocks[0])[0]


def _vjp(nn: Any, module: Any, Block: Any, x: Array) -> Array:
    out, pull_back = nn.vjp(lambda block, x: block(x), Block(), x)
    return pull_back(out)[1]


def _vjp_by_hand(parameters: Any, x: Array) -> Array:
    out, pull_back = jax.vjp(block_by_hand, parameters, x)
    return pull_back(out)[1]


def _grad(nn: Any, module: Any, Block: Any, x: Array) -> Array:
    block = Block()
    if module.is_initializing():
        return block(x)  # creates the variables
    return nn.grad(lambda block, x: block(x).sum(), block, x)[0]


def _grad_by_hand(parameters: Any, x: Array) -> Array:
    return jax.grad(lambda x: block_by_hand(parameters, x).sum())(x)


def _value_and_grad(nn: Any, module: Any, Block: Any, x: Array) -> Array:
    block = Block()
    if module.is_initializing():
        return block(x)
    value, (x_grad,) = nn.value_and_grad(lambda block, x: block(x).sum(), block, x)
    return x_grad + value


def _value_and_grad_by_hand(parameters: Any, x: Array) -> Array:
    f = jax.value_and_grad(lambda x: block_by_hand(parameters, x).sum())
    value, x_grad = f(x)
    return x_grad + value


def _jvp(nn: Any, module: Any, Block: Any, x: Array) -> Array:
    block = Block()
    if module.is_initializing():
        return block(x)
    return nn.jvp(lambda block, x: block(x), block, (x,), (x,), {})[1]


def _jvp_by_hand(parameters: Any, x: Array) -> Array:
    return jax.jvp(lambda x: block_by_hand(parameters, x), (x,), (x,))[1]


def _cond(nn: Any, module: Any, Block: Any, x: Array) -> Array:
    block = Block()
    if module.is_initializing():
        return block(x)
    return nn.cond(
        x[0, 0] > 0, lambda block, x: block(x), lambda block, x: -block(x), block, x
    )


def _cond_by_hand(parameters: Any, x: Array) -> Array:
    return lax.cond(
        x[0, 0] > 0,
        lambda p, x: block_by_hand(p, x),
        lambda p, x: -block_by_hand(p, x),
        parameters,
        x,
    )


def _switch(nn: Any, module: Any, Block: Any, x: Array) -> Array:
    block = Block()
    if module.is_initializing():
        return block(x)
    branches = [lambda block, x, i=i: i * block(x) for i in range(3)]
    return nn.switch(jnp.int32(x[0, 0]), branches, block, x)


def _switch_by_hand(parameters: Any, x: Array) -> Array:
    branches = [lambda p, x, i=i: i * block_by_hand(p, x) for i in range(3)]
    return lax.switch(jnp.int32(x[0, 0]), branches, parameters, x)


def _while_loop(nn: Any, module: Any, Block: Any, x: Array) -> Array:
    block = Block()
    if module.is_initializing():
        return block(x)
    return nn.while_loop(
        lambda block, x: x[0, 0] < 100, lambda block, x: block(x), block, x
    )


def _while_loop_by_hand(parameters: Any, x: Array) -> Array:
    return lax.while_loop(
        lambda x: x[0, 0] < 100, lambda x: block_by_hand(parameters, x), x
    )


def _custom_vjp(nn: Any, module: Any, Block: Any, x: Array) -> Array:
    def f(block: Any, x: Array) -> Array:
        return block(x)

    def forward(block: Any, x: Array) -> Any:
        return nn.vjp(f, block, x)

    def backward(pull_back: Any, g: Array) -> Any:
        return pull_back(g)

    return nn.custom_vjp(f, forward, backward)(Block(), x)


def _custom_vjp_by_hand(parameters: Any, x: Array) -> Array:
    @jax.custom_vjp
    def f(parameters: Any, x: Array) -> Array:
        return block_by_hand(parameters, x)

    f.defvjp(
        lambda parameters, x: jax.vjp(block_by_hand, parameters, x),
        lambda pull_back, g: pull_back(g),
    )
    return f(parameters, x)


def _map_variables(nn: Any, Block: Any) -> Any:
    def doubled(collections: Any) -> Any:
        return jax.tree.map(lambda x: 2 * x, collections)

    return nn.map_variables(Block, "params", doubled, doubled, init=True)


def _mapped_by_hand(parameters: Any, x: Array) -> Array:
    return block_by_hand(jax.tree.map(lambda x: 2 * x, parameters), x)


def _one_by_one(apply: Callable[[Any, Array], Array]) -> ByHand:
    def run(blocks: list[Any], x: Array) -> Array:
        for parameters in blocks:
            x = apply(parameters, x)
        return x

    return run


def _plain(nn: Any, module: Any, Block: Any, x: Array) -> Array:
    return Block()(x)


CASES: dict[str, tuple[Modules, ByHand]] = {
    "apply": (_in_turn(_plain), _one_by_one(block_by_hand)),
    "remat": (_anew(lambda nn, Block: nn.remat(Block)), _each_anew(jax.checkpoint)),
    "remat of one function": (
        _lifted(lambda nn, Block: nn.remat(Block)),
        _each(jax.checkpoint),
    ),
    "jit": (_lifted(lambda nn, Block: nn.jit(Block)), _each(jax.jit)),
    "vmap": (_lifted(_vmap), _each(jax.vmap)),
    "scan over the blocks": (_scan_over, _scan_by_hand),
    "scan of each block": (_scans, _scans_by_hand),
    "scan of one function": (_scans, _scan_by_hand),
    "remat_scan": (_remat_scan, _remat_scan_by_hand),
    "vjp": (_in_turn(_vjp), _one_by_one(_vjp_by_hand)),
    "grad": (_in_turn(_grad), _one_by_one(_grad_by_hand)),
    "value_and_grad": (
        _in_turn(_value_and_grad),
        _one_by_one(_value_and_grad_by_hand),
    ),
    "jvp": (_in_turn(_jvp), _one_by_one(_jvp_by_hand)),
    "custom_vjp": (_in_turn(_custom_vjp), _one_by_one(_custom_vjp_by_hand)),
    "cond": (_in_turn(_cond), _one_by_one(_cond_by_hand)),
    "switch": (_in_turn(_switch), _one_by_one(_switch_by_hand)),
    "while_loop": (_in_turn(_while_loop), _one_by_one(_while_loop_by_hand)),
    "map_variables": (_lifted(_map_variables), _one_by_one(_mapped_by_hand)),
}
MAPPED = ("vmap",)  # the input has an axis to map over


def _blocks_of(variables: Any) -> list[Any]:
    """The parameters of the blocks, in order, whatever they are called."""
    params = variables["params"]

    def place(name: str) -> int:
        return int(name.rsplit("_", 1)[1])

    found = [params[name] for name in sorted(params, key=place)]
    while "Dense_0" not in found[0]:
        found = [next(iter(p.values())) for p in found]
    return found


def _initial(model: Any, x: Array) -> Any:
    """Variables for a model, without the time to compute or compile them."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), x)
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.1, leaf.dtype), shapes)


def cases(blocks: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cases, to be traced.

    Args:
        blocks: How many blocks.

    Yields:
        The name, and for each library a function and its arguments.
    """
    for name, (modules, by_hand) in CASES.items():
        shape = (COPIES, WIDTH) if name not in MAPPED else (COPIES, COPIES, WIDTH)
        x = jnp.ones(shape)
        ours = modules(linen_lift, blocks)
        variables = _initial(ours, x)

        def hand(
            variables: Any, x: Array, by_hand: ByHand = by_hand, name: str = name
        ) -> Any:
            return by_hand(_blocks_of(variables), x)

        traced = {
            peers.BY_HAND: (hand, (variables, x)),
            peers.LIFT: (ours.apply, (variables, x)),
        }
        if peers.flax_linen is not None:
            model = modules(peers.flax_linen, blocks)
            traced[peers.LINEN] = model.apply, (_initial(model, x), x)
        yield name, traced
