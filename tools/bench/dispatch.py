"""Dispatch: what a call of a compiled step costs before any arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

import graphcore as gc
import nnx_transforms as nnx
from tools.bench import models, peers
from tools.bench.measuring import Comparison, Effort, Measured, compare
from tools.bench.results import Bar, Cell, Row, Section, Spread, Table

SIZES = (31, 121, 601, 6001)
LIMITS = {31: 1.40, 121: 1.30, 601: 1.30, 6001: 1.30}
LIMIT_WRITE_ALL = 1.20
QUIET_LIMITS = {31: 1.25, 121: 1.15, 601: 1.12, 6001: 1.20}
QUIET_LIMIT_WRITE_ALL = 1.12
"""On a machine that does nothing else, of modules in containers of our own."""
PLAIN_LEAVES = (1, 30, 600)
LIMIT_PLAIN, EXTRA_PLAIN = 1.3, 5e-6
"""Of a call without objects: so many times JAX's, and so many seconds."""
LIMIT_CALLS = 2.0
"""Of every other kind of call: none of them may fall off the way of warm calls."""
LIMIT_FLAX = 100.0
PLAIN, LIST, NESTED = "plain list", "List", "nested Dict"
CONTAINERS: dict[str, Callable[[Any], Any]] = {
    PLAIN: list,
    LIST: nnx.List,
    NESTED: models.nested,
}


def run(effort: Effort, sizes: tuple[int, ...] = SIZES) -> Section:
    """Measures dispatch.

    Args:
        effort: How long to measure.
        sizes: Numbers of variables.

    Returns:
        The tables and bars.
    """
    section = Section("dispatch", "Dispatch of a compiled step")
    steps = _steps(effort, sizes)
    calls = _calls(section, effort)
    # The last pass some minutes after the first.
    _measure_again(steps, effort.passes - 2)
    _add_steps(section, steps, effort)
    section.tables += [calls, _plain_calls(section, effort)]
    return section


def our_call(
    kind: str, values: Sequence[jax.Array], container: Any = nnx.List
) -> Callable[[], Any]:
    """A call of our compiled step."""
    model = models.Model(values, container)
    step = nnx.jit(models.STEPS[kind])
    return lambda: step(model)


def _flax_calls(
    kind: str, values: Sequence[jax.Array], effort: Effort
) -> dict[str, Measured]:
    flax, size = peers.flax_nnx, len(values)
    if flax is None or (size > 1000 and (effort.is_quick or kind != "write one")):
        return {}
    calls: dict[str, Measured] = {}
    step = models.STEPS[kind]
    for name, mode in peers.flax_modes(flax.jit).items():
        if size > 1000 and name == peers.FLAX_GRAPH:
            continue
        if effort.is_quick and (kind, name) != ("write one", peers.FLAX_UPDATES):
            continue
        compiled = flax.jit(step, **mode)
        model = models.flax_model(values)
        calls[name] = lambda f=compiled, m=model: f(m)
    if hasattr(flax, "jit_partial") and not effort.is_quick:
        model = models.flax_model(values)
        calls[peers.FLAX_PARTIAL] = flax.jit_partial(step, model, graph=False)
    return calls


def _peers_calls(
    kind: str, values: Sequence[jax.Array], effort: Effort
) -> dict[str, Measured]:
    calls, size = _flax_calls(kind, values, effort), len(values)
    if peers.flax_linen is not None and size < 1000 and not effort.is_quick:
        calls[peers.LINEN] = models.linen_call(kind, values)
    if peers.equinox is not None and not effort.is_quick:
        calls[peers.EQUINOX] = models.equinox_call(kind, values)
    return calls


OURS = {container: f"{peers.NNX}, {container}" for container in CONTAINERS}
_Steps = dict[tuple[str, int], Comparison]
"""The comparison of each kind of step at each size."""


def _steps(effort: Effort, sizes: tuple[int, ...]) -> _Steps:
    comparisons: _Steps = {}
    for kind in models.STEPS:
        if effort.is_quick and kind == "read only":
            continue  # it has no bar
        for size in sizes:
            if effort.is_quick and size > 1000 and kind != "write one":
                continue  # compiling takes long
            values = models.arrays(size)
            raw = models.raw_call(models.RAW_STEPS[kind], values)
            calls: dict[str, Measured] = {peers.RAW: raw}
            for container, name in OURS.items():
                if effort.is_quick and container == NESTED:
                    continue  # it has no bar
                calls[name] = our_call(kind, values, CONTAINERS[container])
            calls.update(_peers_calls(kind, values, effort))
            always = tuple(name for name in OURS.values() if name in calls)
            comparison = comparisons[kind, size] = Comparison(calls, effort, always)
            comparison.measure()
            comparison.keep_lasting()
    _measure_again(comparisons, min(1, effort.passes - 1))
    return comparisons


def _measure_again(comparisons: _Steps, passes: int) -> None:
    for _ in range(passes):
        for comparison in comparisons.values():
            comparison.measure()


def _add_steps(section: Section, comparisons: _Steps, effort: Effort) -> None:
    table = Table(
        "dispatch",
        "A call of a compiled step, by the number of variables",
        "s",
        peers.RAW,
        [
            peers.RAW,
            *OURS.values(),
            peers.FLAX_UPDATES,
            peers.FLAX_GRAPH,
            peers.FLAX_TREE,
            peers.FLAX_PARTIAL,
            peers.LINEN,
            peers.EQUINOX,
        ],
        [],
        peers.missing(),
    )
    section.tables.append(table)
    for (kind, size), comparison in comparisons.items():
        cells = comparison.cells()
        table.rows.append(Row(f"{kind}, {size:,} variables", size, cells))
        if kind == "read only":
            continue  # shown; the bars are those of steps that write
        for container in (PLAIN, LIST):
            is_strict = effort.is_quiet and container == LIST
            limits = QUIET_LIMITS if is_strict else LIMITS
            limit = limits.get(size, 1.4)
            if kind == "write all":
                limit = QUIET_LIMIT_WRITE_ALL if is_strict else LIMIT_WRITE_ALL
            found = cells[OURS[container]].ratio
            assert found is not None
            what = f"dispatch over raw: {kind}, {size:,} variables, {container}"
            section.bars.append(Bar(what, found, limit))
        if size == 601 and kind == "write one" and peers.FLAX_UPDATES in cells:
            section.bars.append(_faster_than_flax(cells, OURS[LIST]))


def _faster_than_flax(cells: Mapping[str, Cell], ours: str) -> Bar:
    flax, mine = cells[peers.FLAX_UPDATES].value, cells[ours].value
    found = Spread(
        flax.median / mine.median,
        flax.low / mine.high,
        flax.high / mine.low,
        flax.count,
    )
    # What raw JAX leaves, if it is not much faster than that itself.
    possible = flax.median / cells[peers.RAW].value.median / LIMITS[601]
    what = "Flax with graph updates over ours, write one, 601 variables"
    return Bar(what, found, min(LIMIT_FLAX, possible), at_least=True)


# Other calls: several objects, foreign variables, further arguments, decoding


class Foreign:
    """A variable of another library's making.

    Args:
        value: What it holds.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


def _register_foreign() -> None:
    if not gc.is_variable(Foreign(0)):
        gc.register_variable_type(
            Foreign,
            get_value=lambda variable: variable.value,
            set_value=lambda variable, value: setattr(variable, "value", value),
            get_metadata=lambda variable: {},
            create=lambda kind, value, metadata: kind(value),
        )


class _ForeignLayer(nnx.Module):
    def __init__(self, values: Sequence[jax.Array]) -> None:
        for name, value in zip(models.NAMES, values, strict=True):
            setattr(self, name, Foreign(value))

    @property
    def norm(self) -> Any:
        return SimpleNamespace(scale=self.scale, bias=self.offset)

    @property
    def first(self) -> Any:
        return SimpleNamespace(kernel=self.kernel_1, bias=self.bias_1)

    @property
    def second(self) -> Any:
        return SimpleNamespace(kernel=self.kernel_2, bias=self.bias_2)


def _foreign(values: Sequence[jax.Array]) -> Any:
    _register_foreign()
    model = models.Model(values[:1])
    layers = models.by_layer(values)
    model.layers = nnx.List([_ForeignLayer(layer) for layer in layers])
    return model


class _Moments(nnx.Module):
    """As an optimizer: two moments for each variable of the model that it shares."""

    def __init__(self, model: Any, values: Sequence[jax.Array]) -> None:
        count = len(values) // 2
        self.model = model
        self.first = nnx.List([nnx.Variable(value) for value in values[:count]])
        self.second = nnx.List([nnx.Variable(value) for value in values[count:]])


def _train(model: Any, optimizer: Any, x: jax.Array) -> jax.Array:
    variables = models.layer_variables(model)
    for v, m, s in zip(variables, optimizer.first, optimizer.second, strict=True):
        m.value = m.value + x
        s.value = s.value + x
        v.value = v.value + m.value + s.value
    return x + 1


def _raw_train(values: list[jax.Array], count: int, x: jax.Array) -> Any:
    params, rest = values[:count], values[count:]
    first, second = rest[:count], rest[count : 2 * count]
    first = [m + x for m in first]
    second = [s + x for s in second]
    params = [
        v + m + s for v, m, s in zip(params, first, second, strict=True)
    ]  # as `_train`
    return x + 1, [*params, *first, *second]


class _Block(nnx.Module):
    """A layer of a decoder: weights, and caches of keys and values with a position."""

    def __init__(self, weights: Any, caches: Any) -> None:
        self.weights = nnx.List([nnx.Param(a) for a in weights])
        self.keys, self.values, self.position = (nnx.Cache(a) for a in caches)


WEIGHTS, CACHES = 16, 3


class _Decoder(nnx.Module):
    """Blocks of some weights and caches."""

    def __init__(self, values: Sequence[jax.Array]) -> None:
        self.blocks = nnx.List([_Block(*held) for held in _by_block(values)])


def _by_block(values: Sequence[jax.Array]) -> list[tuple[Any, Any]]:
    """The weights and the caches of each block; all caches come first."""
    blocks = len(values) // (WEIGHTS + CACHES)
    caches, weights = values[: CACHES * blocks], values[CACHES * blocks :]
    return [
        (weights[WEIGHTS * i :][:WEIGHTS], caches[CACHES * i :][:CACHES])
        for i in range(blocks)
    ]


def _decode(model: Any, token: jax.Array) -> jax.Array:
    weights = [models.read(w) for block in model.blocks for w in block.weights]
    for block in model.blocks:
        models.write(block.keys, models.read(block.keys) + token)
        models.write(block.values, models.read(block.values) + token)
        models.write(block.position, models.read(block.position) + 1)
    return models.total(weights) + token


def _raw_decode(values: list[jax.Array], blocks: int, token: jax.Array) -> Any:
    caches, weights = values[: CACHES * blocks], values[CACHES * blocks :]
    new = [c + (token if i % CACHES < 2 else 1) for i, c in enumerate(caches)]
    return models.total(weights) + token, new


def _plain_calls(section: Section, effort: Effort) -> Table:
    """Calls of arrays alone, with their bars."""
    title = "A call without objects, by the number of arrays"
    table = Table("plain", title, "s", peers.RAW, [peers.RAW, peers.NNX], [])
    for size in PLAIN_LEAVES:
        values = models.arrays(size)
        raw, ours = jax.jit(_first_of), nnx.jit(_first_of)
        calls: dict[str, Measured] = {
            peers.RAW: functools.partial(raw, values, 2.0),
            peers.NNX: functools.partial(ours, values, 2.0),
        }
        cells = compare(calls, effort.of(0.5))
        case = f"{size:,} arrays"
        table.rows.append(Row(case, size, cells))
        found = cells[peers.NNX].ratio
        assert found is not None
        limit = LIMIT_PLAIN + EXTRA_PLAIN / cells[peers.RAW].value.median
        section.bars.append(
            Bar(f"a call without objects over raw: {case}", found, limit)
        )
    return table


def _first_of(values: list[jax.Array], scale: Any) -> jax.Array:
    return values[0] * scale


def _calls(section: Section, effort: Effort) -> Table:
    table = Table(
        "calls",
        "Other calls of a compiled step",
        "s",
        peers.RAW,
        [peers.RAW, peers.NNX, peers.FLAX_UPDATES, peers.FLAX_TREE, peers.FLAX_PARTIAL],
        [],
    )
    layers = 10 if effort.is_quick else 100
    size = layers * len(models.NAMES) + 1
    x = jnp.ones((2,), jnp.float32)

    def add(case: str, raw: Measured, ours: Measured, **others: Measured) -> None:
        calls = {peers.RAW: raw, peers.NNX: ours, **others}
        cells = compare(calls, effort.of(0.5))
        table.rows.append(Row(case, None, cells))
        found = cells[peers.NNX].ratio
        assert found is not None
        section.bars.append(Bar(f"dispatch over raw: {case}", found, LIMIT_CALLS))

    values = models.arrays(size)

    # The model and an optimizer that shares it
    model = models.Model(values)
    count = size - 1
    moments = models.arrays(2 * count)
    optimizer = _Moments(model, moments)
    train = nnx.jit(_train)

    def raw_train(values: list[jax.Array], x: jax.Array) -> Any:
        return _raw_train(values, count, x)

    add(
        f"model and optimizer with shared references, {3 * count + 1:,} variables",
        models.raw_call(raw_train, [*values[1:], *moments], x),
        lambda: train(model, optimizer, x),
    )

    # Foreign variables
    foreign = _foreign(values)
    step = nnx.jit(models.write_one)
    add(
        f"foreign variable type, {size:,} variables",
        models.raw_call(models.raw_write_one, values),
        lambda: step(foreign),
    )

    # Further arguments
    def with_keywords(model: Any, *, x: Any, y: Any) -> Any:
        return models.write_one(model) + x * y["scale"]

    def raw_keywords(values: list[jax.Array], x: Any, y: Any) -> Any:
        out, changed = models.raw_write_one(values)
        return out + x * y["scale"], changed

    model_k, by_keyword = models.Model(values), nnx.jit(with_keywords)
    y = {"scale": x}
    add(
        f"keyword arguments, {size:,} variables",
        models.raw_call(raw_keywords, values, x, y),
        lambda: by_keyword(model_k, x=x, y=y),
    )

    def by_name(*, model: Any) -> Any:
        return models.write_one(model)

    model_n, named = models.Model(values), nnx.jit(by_name)
    add(
        f"the model as a keyword argument, {size:,} variables",
        models.raw_call(models.raw_write_one, values),
        lambda: named(model=model_n),
    )

    def with_static(model: Any, mode: str, x: Any) -> Any:
        return models.write_one(model) + x * len(mode)

    def raw_static(values: list[jax.Array], x: Any) -> Any:
        out, changed = models.raw_write_one(values)
        return out + x * 5, changed

    model_s = models.Model(values)
    static = nnx.jit(with_static, static_argnums=1)
    add(
        f"a static argument, {size:,} variables",
        models.raw_call(raw_static, values, x),
        lambda: static(model_s, "train", x),
    )

    donated = [jnp.copy(value) for value in values]
    model_d = models.Model([jnp.copy(value) for value in values])
    donating = nnx.jit(models.write_all, donate_argnums=0)
    add(
        f"a donated model, writing all, {size:,} variables",
        models.raw_call(models.raw_write_all, donated, donate_argnums=0),
        lambda: donating(model_d),
    )

    class Trainer(nnx.Module):
        def __init__(self) -> None:
            self.model = models.Model(values)

        @nnx.jit
        def step(self) -> Any:
            return models.write_one(self.model)

    trainer = Trainer()
    add(
        f"a jitted method, {size:,} variables",
        models.raw_call(models.raw_write_one, values),
        trainer.step,
    )

    inside = {"model": models.Model(values), "x": x}
    in_dict = nnx.jit(lambda batch: models.write_one(batch["model"]) + batch["x"])

    def raw_in_dict(values: list[jax.Array], x: Any) -> Any:
        out, changed = models.raw_write_one(values)
        return out + x, changed

    add(
        f"the model in a dict among the arguments, {size:,} variables",
        models.raw_call(raw_in_dict, values, x),
        lambda: in_dict(inside),
    )

    _decoding(add, effort, x)
    return table


def _decoding(add: Any, effort: Effort, token: jax.Array) -> None:
    blocks = 40 if effort.is_quick else 400
    values = models.arrays((WEIGHTS + CACHES) * blocks)
    decoder = _Decoder(values)
    decode = nnx.jit(_decode)

    def raw_decode(values: list[jax.Array], token: jax.Array) -> Any:
        return _raw_decode(values, blocks, token)

    others: dict[str, Measured] = {}
    if peers.flax_nnx is not None and not effort.is_quick:
        others = _flax_decoders(values, token)
    add(
        f"a decoding step that writes its caches, {len(values):,} variables",
        models.raw_call(raw_decode, values, token),
        lambda: decode(decoder, token),
        **others,
    )


def _flax_decoders(
    values: Sequence[jax.Array], token: jax.Array
) -> dict[str, Measured]:
    flax = peers.flax_nnx
    listed = getattr(flax, "List", list)

    class Block(flax.Module):
        def __init__(self, weights: Any, caches: Any) -> None:
            self.weights = listed([flax.Param(a) for a in weights])
            self.keys, self.values, self.position = (flax.Cache(a) for a in caches)

    class Decoder(flax.Module):
        def __init__(self) -> None:
            self.blocks = listed([Block(*held) for held in _by_block(values)])

    calls: dict[str, Measured] = {}
    for name, mode in peers.flax_modes(flax.jit).items():
        if name != peers.FLAX_GRAPH:
            compiled, model = flax.jit(_decode, **mode), Decoder()
            calls[name] = lambda f=compiled, m=model: f(m, token)
    if hasattr(flax, "jit_partial"):
        partial = flax.jit_partial(_decode, Decoder(), graph=False)
        calls[peers.FLAX_PARTIAL] = lambda: partial(token)
    return calls
