"""Part 2: a deep residual network, made by `vmap` and run by `scan` and `remat`.

All layers are one object whose variables are stacked along a new first axis. Inside
`scan` it looks like a single layer, which is compiled once instead of once a layer;
`remat` computes its intermediate values again on the way back instead of keeping them.
A custom derivative clips the gradient of each layer on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import nnx_transforms as nnx
from tools.demo import data, figures
from tools.demo.progress import Result, Settings, progress_bar
from tools.demo.timing import stopwatch

TARGET = 0.95
BATCH_SIZE = 64
WIDTH = 64
CLIP_AT = 1.0


class Block(nnx.Module):
    """A residual block: normalization, two dense layers, dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.expand = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.contract = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = jax.nn.gelu(self.expand(self.norm(x)))
        return x + self.dropout(self.contract(hidden))


@nnx.vmap
def make_stack(key: jax.Array) -> Block:
    """Makes a block for each key: one `Block` whose variables are stacked."""
    return Block(nnx.Rngs(key))


def norm(tree: Any) -> jax.Array:
    """The Euclidean norm of all arrays of a pytree taken together."""
    return jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)))


# A rule of our own for the derivative of a block: what comes back is the usual
# gradient, except that its norm over all parameters of the block is limited.


@nnx.custom_vjp(input_updates=False)
def apply_clipped(block: Block, x: jax.Array) -> jax.Array:
    """Applies a block; on the way back, its gradient is clipped."""
    return block(x)


def _forward(block: Block, x: jax.Array) -> tuple[jax.Array, Any]:
    return nnx.vjp(Block.__call__, block, x)


def _backward(
    pull_back: Any, out_grad: jax.Array
) -> tuple[nnx.State[Any, Any], jax.Array]:
    block_grad, x_grad = pull_back(out_grad)
    scale = jnp.minimum(1.0, CLIP_AT / norm(block_grad))
    return jax.tree.map(lambda g: g * scale, block_grad), x_grad


apply_clipped.defvjp(_forward, _backward)


@dataclass(frozen=True)
class Style:
    """How a network runs its layers; the results are the same.

    Args:
        scan: Whether in a loop that is compiled once; else one after the other.
        remat: Whether intermediate values are computed again on the way back.
        clip: Whether the gradient of each layer is clipped.
    """

    scan: bool = True
    remat: bool = True
    clip: bool = True

    def __str__(self) -> str:
        loop = "scan" if self.scan else "Python loop"
        return f"{loop} + remat" if self.remat else loop


class DeepNetwork(nnx.Module):
    """A deep residual network over the pixels of an image."""

    def __init__(self, depth: int, rngs: nnx.Rngs, style: Style) -> None:
        keys = jax.random.split(rngs.params(), depth)
        self.stem = nnx.Linear(64, WIDTH, rngs=rngs)
        if style.scan:
            self.blocks = make_stack(keys)
        else:
            self.blocks = nnx.List(Block(nnx.Rngs(key)) for key in keys)
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, 10, rngs=rngs)
        self.style = style

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.stem(images.reshape(len(images), -1))
        layer = apply_clipped if self.style.clip else Block.__call__
        if self.style.remat:
            layer = nnx.remat(layer)
        if self.style.scan:
            run = nnx.scan(layer, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
            x = run(self.blocks, x)
        else:
            for block in self.blocks:
                x = layer(block, x)
        return self.head(self.norm(x))


def mean_loss(model: DeepNetwork, images: Any, labels: Any) -> jax.Array:
    """The mean cross-entropy of a batch."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
    return losses.mean()


@nnx.jit
def train_step(
    model: DeepNetwork, optimizer: nnx.Optimizer[DeepNetwork], images: Any, labels: Any
) -> jax.Array:
    """Trains on one batch."""
    loss, grads = nnx.value_and_grad(mean_loss)(model, images, labels)
    optimizer.update(grads)
    return loss


@nnx.jit
def predict(model: DeepNetwork, images: Any) -> jax.Array:
    """Computes the probability of each digit."""
    return jax.nn.softmax(model(images))


def train(
    model: DeepNetwork,
    digits: data.Split,
    held_out: data.Split,
    epochs: int,
    rng: np.random.Generator,
) -> figures.History:
    """Trains the model, and evaluates it after each epoch."""
    steps = epochs * (len(digits.labels) // BATCH_SIZE)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 2e-3, steps // 10, steps)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule, weight_decay=1e-2))
    history = figures.History()
    with progress_bar(steps) as advance:
        words = ""
        for _ in range(epochs):
            model.train()
            for images, labels in digits.batches(BATCH_SIZE, rng):
                loss = train_step(model, optimizer, images, labels)
                history.losses.append(float(loss))
                advance(words)
            model.eval()
            guesses = predict(model, held_out.images).argmax(-1)
            accuracy = float((guesses == held_out.labels).mean())
            history.accuracies.append((len(history.losses), accuracy))
            words = f"{accuracy:.1%} of held-out digits"
    return history


@dataclass(frozen=True)
class Cost:
    """What a training step costs.

    Args:
        trace: Seconds to trace and lower it.
        compile: Seconds to compile it.
        memory: Bytes of temporary buffers.
        step: Seconds to run it.
        loss: What it returns.
    """

    trace: float
    compile: float
    memory: int
    step: float
    loss: float


def measure(depth: int, seed: int, style: Style, images: Any, labels: Any) -> Cost:
    """Measures what a training step costs in one style."""
    model = DeepNetwork(depth, nnx.Rngs(seed), style)
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3))
    with stopwatch() as trace:
        lowered = train_step.lower(model, optimizer, images, labels)
    with stopwatch() as compilation:
        compiled = lowered.compile()
    loss = float(compiled(model, optimizer, images, labels))
    times = []
    for _ in range(5):
        with stopwatch() as watch:
            compiled(model, optimizer, images, labels).block_until_ready()
        times.append(watch.seconds)
    memory = compiled.memory_analysis().temp_size_in_bytes
    return Cost(
        trace.seconds, compilation.seconds, memory, float(np.median(times)), loss
    )


def measure_all(depth: int, seed: int, digits: data.Split) -> dict[Style, Cost]:
    """Measures a training step with and without `scan` and `remat`, and prints it."""
    images, labels = jax.device_put((digits.images[:512], digits.labels[:512]))
    print(f"a training step of {depth} layers on {len(labels)} images:")
    print(f"  {'':20}{'memory':>12}{'trace':>10}{'compile':>10}{'run':>10}{'loss':>12}")
    costs = {}
    for style in (Style(s, r) for s in (False, True) for r in (False, True)):
        cost = costs[style] = measure(depth, seed, style, images, labels)
        print(
            f"  {style!s:20}{cost.memory / 1e6:9.1f} MB{cost.trace:8.2f} s"
            f"{cost.compile:8.2f} s{cost.step * 1e3:7.0f} ms{cost.loss:12.6f}"
        )
    return costs


def layer_norms(depth: int, seed: int, clip: bool, digits: data.Split) -> np.ndarray:
    """Computes the norm of the gradient of each layer of a new network."""
    model = DeepNetwork(depth, nnx.Rngs(seed), Style(clip=clip))
    grad = nnx.jit(nnx.grad(mean_loss))
    grads = grad(model, digits.images[:BATCH_SIZE], digits.labels[:BATCH_SIZE])
    return np.asarray(jax.vmap(norm)(grads["blocks"]))


def draw_costs(axes: Any, costs: dict[Style, Cost], depth: int) -> None:
    """Draws memory and time to the first step, with and without `scan` and `remat`."""
    names = [str(style) for style in costs]
    memory, seconds = axes
    bars = memory.barh(
        names, [c.memory / 1e6 for c in costs.values()], color=figures.BLUE
    )
    memory.bar_label(bars, fmt=" %.1f", fontsize=9)
    memory.set_xlabel("temporary buffers of a training step, MB")
    figures.title(memory, f"Memory, {depth} layers")
    trace = [c.trace for c in costs.values()]
    compilation = [c.compile for c in costs.values()]
    seconds.barh(names, trace, color=figures.GREY, label="trace")
    bars = seconds.barh(
        names, compilation, left=trace, color=figures.GREEN, label="compile"
    )
    totals = [f" {t + c:.1f}" for t, c in zip(trace, compilation, strict=True)]
    seconds.bar_label(bars, totals, fontsize=9)
    seconds.set_xlabel("seconds until the first step")
    seconds.set_yticklabels([])
    seconds.legend(frameon=False, loc="lower right", fontsize=9)
    figures.title(seconds, "Time to compile")
    for panel in axes:
        panel.invert_yaxis()
        panel.margins(x=0.12)
        figures.tidy(panel)


def draw_norms(axes: Any, free: np.ndarray, clipped: np.ndarray) -> None:
    """Draws the gradient's norm for each layer, with and without the custom rule."""
    layers = np.arange(1, len(free) + 1)
    axes.plot(layers, free, "o-", color=figures.GREY, markersize=3, label="JAX's rule")
    axes.plot(layers, clipped, "o-", color=figures.BLUE, markersize=3, label="clipped")
    axes.axhline(CLIP_AT, color=figures.RED, linewidth=0.8, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("layer")
    axes.legend(frameon=False, fontsize=9)
    figures.tidy(axes)
    figures.title(axes, "Norm of each layer's gradient")


def run(settings: Settings) -> Result:
    """Trains the network, measures, draws.

    Args:
        settings: What the user asked for.

    Returns:
        The accuracy on held-out digits.
    """
    digits, held_out = data.load(settings.seed)
    depth, epochs = (12, 10) if settings.quick else (48, 30)
    model = DeepNetwork(depth, nnx.Rngs(settings.seed), Style())
    rng = np.random.default_rng(settings.seed)
    history = train(model, digits, held_out, epochs, rng)
    free, clipped = (
        layer_norms(depth, settings.seed, clip, digits) for clip in (False, True)
    )
    print(
        f"largest gradient of a layer: {free.max():.3f}, with the custom rule "
        f"{clipped.max():.3f} (limit {CLIP_AT})"
    )
    costs = measure_all(depth, settings.seed, digits)

    figure = Figure(figsize=(16, 9))
    grid = figure.add_gridspec(
        2, 1, left=0.105, right=0.97, top=0.92, bottom=0.07, hspace=0.4
    )
    top = grid[0].subgridspec(1, 2, wspace=0.2)
    bottom = grid[1].subgridspec(1, 3, wspace=0.16)
    figures.draw_history(figure.add_subplot(top[0]), history)
    probabilities = np.asarray(predict(model, held_out.images))
    figures.draw_predictions(top[1], held_out, probabilities, rows=3)
    panels = [figure.add_subplot(place) for place in (bottom[0], bottom[1], bottom[2])]
    draw_costs(panels[:2], costs, depth)
    draw_norms(panels[2], free, clipped)
    figures.save(figure, settings.out, "deep_network.png")
    _, accuracy = history.accuracies[-1]
    return Result(accuracy, TARGET)
