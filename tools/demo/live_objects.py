"""Part 1: a model of live objects, trained by one compiled step.

The model is a graph of ordinary Python objects: two blocks share a convolution, each
keeps running statistics of its own and a random stream for dropout, and the model
counts the images that it was trained on. The compiled step changes all of that in
place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import nnx_transforms as nnx
from tools.demo import data, figures, object_graph
from tools.demo.progress import Result, Settings, progress_bar
from tools.demo.timing import dispatch_times

TARGET = 0.96
BATCH_SIZE = 64
WIDTH = 32


class Counter(nnx.Variable[jax.Array]):
    """Counts something. A type of its own lets filters tell it from parameters."""


class Block(nnx.Module):
    """Convolution, normalization and dropout, around which the input is added.

    The convolution is given, so that several blocks can share one.
    """

    def __init__(self, conv: nnx.Conv, rngs: nnx.Rngs) -> None:
        self.conv = conv
        self.norm = nnx.BatchNorm(conv.out_features, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.dropout(jax.nn.relu(self.norm(self.conv(x))))


class Classifier(nnx.Module):
    """A small convolutional network."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        shared = nnx.Conv(WIDTH, WIDTH, (3, 3), use_bias=False, rngs=rngs)
        self.stem = nnx.Conv(1, WIDTH, (3, 3), strides=2, rngs=rngs)
        self.blocks = nnx.List([Block(shared, rngs), Block(shared, rngs)])
        self.head = nnx.Linear(4 * 4 * WIDTH, 10, rngs=rngs)
        self.seen = Counter(jnp.array(0))

    def __call__(self, images: jax.Array) -> jax.Array:
        x = jax.nn.relu(self.stem(images))
        for block in self.blocks:
            x = block(x)
        return self.head(x.reshape(len(x), -1))


def step(
    model: Classifier, optimizer: nnx.Optimizer[Classifier], images: Any, labels: Any
) -> jax.Array:
    """Trains on one batch. Nothing but the loss has to be returned."""

    def mean_loss(model: Classifier) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(model(images), labels)
        return losses.mean()

    loss, grads = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(grads)
    model.seen += len(images)
    return loss


train_step = nnx.jit(step)


@nnx.jit
def predict(model: Classifier, images: Any) -> jax.Array:
    """Computes the probability of each digit."""
    return jax.nn.softmax(model(images))


def train(
    model: Classifier,
    optimizer: nnx.Optimizer[Classifier],
    digits: data.Split,
    held_out: data.Split,
    epochs: int,
    rng: np.random.Generator,
) -> figures.History:
    """Trains the model, and evaluates it after each epoch."""
    history = figures.History()
    steps = len(digits.labels) // BATCH_SIZE
    with progress_bar(epochs * steps) as advance:
        words = ""
        for _ in range(epochs):
            model.train()
            for images, labels in digits.batches(BATCH_SIZE, rng):
                history.losses.append(
                    float(train_step(model, optimizer, images, labels))
                )
                advance(words)
            model.eval()
            guesses = predict(model, held_out.images).argmax(-1)
            accuracy = float((guesses == held_out.labels).mean())
            history.accuracies.append((len(history.losses), accuracy))
            words = f"{accuracy:.1%} of held-out digits"
    return history


def raw_step(
    model: Classifier, optimizer: nnx.Optimizer[Classifier], images: Any, labels: Any
) -> Callable[[], Any]:
    """The same step as plain `jax.jit` runs it: a flat list of arrays in, one out."""
    graphdef, state = nnx.split((model, optimizer))
    leaves, structure = jax.tree.flatten(state)

    def changed(leaves: list[Any]) -> tuple[Any, dict[int, Any]]:
        model, optimizer = nnx.merge(graphdef, structure.unflatten(leaves))
        loss = step(model, optimizer, images, labels)
        after = jax.tree.leaves(nnx.state((model, optimizer)))
        pairs = enumerate(zip(leaves, after, strict=True))
        return loss, {i: new for i, (old, new) in pairs if new is not old}

    jitted = jax.jit(changed)

    def call() -> Any:
        loss, new = jitted(leaves)
        for i, leaf in new.items():
            leaves[i] = leaf
        return loss

    return call


def compare_dispatch(
    model: Classifier,
    optimizer: nnx.Optimizer[Classifier],
    digits: data.Split,
    rounds: int,
) -> None:
    """Prints how long a call of the step takes, and how long plain `jax.jit` does."""
    # One image: what matters is the time before the computation, not the computation.
    image, label = jax.device_put((digits.images[:1], digits.labels[:1]))
    count = len(jax.tree.leaves(nnx.state((model, optimizer))))
    raw = raw_step(*nnx.clone((model, optimizer)), image, label)
    live, plain = dispatch_times(
        lambda: train_step(model, optimizer, image, label), raw, rounds=rounds
    )
    print(
        f"dispatch of the step ({count} variables): live objects {live * 1e6:.0f} µs, "
        f"raw jax.jit {plain * 1e6:.0f} µs, ratio {live / plain:.2f}"
    )


def draw(model: Classifier, history: figures.History, held_out: data.Split) -> Figure:
    """Draws how training went, what the model says, and what it is made of."""
    figure = Figure(figsize=(16, 12.5))
    grid = figure.add_gridspec(
        2, 2, height_ratios=[4, 7.5], left=0.05, right=0.98, top=0.94, bottom=0.02
    )
    figures.draw_history(figure.add_subplot(grid[0, 0]), history)
    probabilities = np.asarray(predict(model, held_out.images))
    figures.draw_predictions(grid[0, 1], held_out, probabilities, rows=3)
    axes = figure.add_subplot(grid[1, :])
    object_graph.draw(axes, model)
    figures.title(axes, "The model: a graph of objects, some of them shared")
    return figure


def run(settings: Settings) -> Result:
    """Trains the model, measures, draws.

    Args:
        settings: What the user asked for.

    Returns:
        The accuracy on held-out digits.
    """
    digits, held_out = data.load(settings.seed)
    epochs = 12 if settings.quick else 40
    steps = epochs * (len(digits.labels) // BATCH_SIZE)
    model = Classifier(nnx.Rngs(params=settings.seed, dropout=settings.seed + 1))
    schedule = optax.cosine_decay_schedule(4e-3, steps)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule, weight_decay=1e-2))
    rng = np.random.default_rng(settings.seed)
    history = train(model, optimizer, digits, held_out, epochs, rng)
    print(f"the model counted {int(model.seen.value):,} images that it was trained on")
    figures.save(draw(model, history, held_out), settings.out, "live_objects.png")
    model.train()
    compare_dispatch(model, optimizer, digits, rounds=300)
    _, accuracy = history.accuracies[-1]
    return Result(accuracy, TARGET)
