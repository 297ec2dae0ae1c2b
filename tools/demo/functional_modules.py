"""Part 3: modules whose variables live outside of them, lifted through transforms.

An LSTM reads each image row by row: one cell, scanned over the rows, with the same
parameters for all of them. What it remembers goes through a deep stack of residual
blocks: one rematerialized block, scanned over layers, with parameters and random keys
of its own for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from matplotlib.figure import Figure

import linen_lift as nn
from tools.demo import data, figures
from tools.demo.progress import Result, Settings, progress_bar
from tools.demo.timing import stopwatch

TARGET = 0.95
BATCH_SIZE = 64


class RowReader(nn.Module):
    """Reads images row by row, and returns what it remembers after each row."""

    features: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        rows = images.reshape(len(images), 8, 8)
        ScannedCell = nn.scan(
            nn.LSTMCell,
            variable_broadcast="params",
            split_rngs={"params": False},
            in_axes=1,
            out_axes=1,
        )
        cell = ScannedCell(self.features)
        carry = cell.initialize_carry(jax.random.key(0), rows[:, 0].shape)
        _, memories = cell(carry, rows)
        return memories.reshape(len(images), -1)


class Block(nn.Module):
    """A residual block, with the signature that `scan` needs."""

    features: int
    train: bool

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        hidden = nn.gelu(nn.Dense(4 * self.features)(nn.LayerNorm()(x)))
        hidden = nn.Dropout(0.1, deterministic=not self.train)(hidden)
        return x + nn.Dense(self.features)(hidden), None


class Classifier(nn.Module):
    """An LSTM over rows, and residual blocks over what it remembers.

    Args:
        features: How wide the layers are.
        depth: How many blocks there are.
        scan: Whether the blocks are scanned; else they are one after the other.
    """

    features: int
    depth: int
    scan: bool = True

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        x = nn.Dense(self.features)(RowReader(self.features)(images))
        RematBlock = nn.remat(Block)
        if self.scan:
            Blocks = nn.scan(
                RematBlock,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                length=self.depth,
            )
            x, _ = Blocks(self.features, train)(x, None)
        else:
            for _ in range(self.depth):
                x, _ = RematBlock(self.features, train)(x, None)
        return nn.Dense(10)(nn.LayerNorm()(x))


@dataclass(frozen=True)
class Trainer:
    """Pure functions that train a module.

    Args:
        model: The module.
        tx: The gradient transformation.
    """

    model: Classifier
    tx: optax.GradientTransformation

    def init(self, key: jax.Array, images: Any) -> tuple[Any, Any]:
        """Makes parameters, and the state of the optimizer."""
        params = self.model.init(key, images)["params"]
        return params, self.tx.init(params)

    def step(
        self, params: Any, opt_state: Any, key: jax.Array, images: Any, labels: Any
    ) -> tuple[Any, Any, jax.Array]:
        """Trains on one batch: returns new parameters, new state, and the loss."""

        def mean_loss(params: Any) -> jax.Array:
            logits = self.model.apply(
                {"params": params}, images, train=True, rngs={"dropout": key}
            )
            return optax.softmax_cross_entropy_with_integer_labels(
                logits, labels
            ).mean()

        loss, grads = jax.value_and_grad(mean_loss)(params)
        updates, opt_state = self.tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def predict(self, params: Any, images: Any) -> jax.Array:
        """Computes the probability of each digit."""
        return nn.softmax(self.model.apply({"params": params}, images))


def train(
    model: Classifier,
    digits: data.Split,
    held_out: data.Split,
    epochs: int,
    seed: int,
) -> tuple[figures.History, np.ndarray]:
    """Trains the module, evaluating it after each epoch.

    Returns:
        How it went, and the probabilities of each digit for each held-out image.
    """
    steps = epochs * (len(digits.labels) // BATCH_SIZE)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-3, steps // 10, steps)
    trainer = Trainer(model, optax.adamw(schedule, weight_decay=1e-2))
    train_step, predict = jax.jit(trainer.step), jax.jit(trainer.predict)
    init_key, dropout_key = jax.random.split(jax.random.key(seed))
    params, opt_state = trainer.init(init_key, digits.images[:BATCH_SIZE])

    history = figures.History()
    rng = np.random.default_rng(seed)
    with progress_bar(steps) as advance:
        words = ""
        for _ in range(epochs):
            for images, labels in digits.batches(BATCH_SIZE, rng):
                key = jax.random.fold_in(dropout_key, len(history.losses))
                params, opt_state, loss = train_step(
                    params, opt_state, key, images, labels
                )
                history.losses.append(float(loss))
                advance(words)
            probabilities = np.asarray(predict(params, held_out.images))
            accuracy = float((probabilities.argmax(-1) == held_out.labels).mean())
            history.accuracies.append((len(history.losses), accuracy))
            words = f"{accuracy:.1%} of held-out digits"
    return history, probabilities


def measure_tracing(
    model: Classifier, digits: data.Split, rounds: int = 5
) -> dict[str, float]:
    """Measures how long JAX takes to trace the module, and the module's training step.

    Returns:
        The median seconds for `init`, `apply`, and a training step.
    """
    trainer = Trainer(model, optax.adamw(1e-3))
    images, labels = digits.images[:BATCH_SIZE], digits.labels[:BATCH_SIZE]
    key = jax.random.key(0)
    params, opt_state = jax.eval_shape(trainer.init, key, images)
    times: dict[str, list[float]] = {"init": [], "apply": [], "training step": []}
    for _ in range(rounds):
        traced = (
            (lambda *args: trainer.init(*args), (key, images)),
            (lambda *args: trainer.predict(*args), (params, images)),
            (
                lambda *args: trainer.step(*args),
                (params, opt_state, key, images, labels),
            ),
        )
        for mine, (function, args) in zip(times.values(), traced, strict=True):
            # A new function each time, since JAX keeps what it traced.
            with stopwatch() as watch:
                jax.jit(function).trace(*args)
            mine.append(watch.seconds)
    return {what: float(np.median(mine)) for what, mine in times.items()}


def draw_tracing(
    axes: Any, scanned: dict[str, float], looped: dict[str, float]
) -> None:
    """Draws how long tracing takes, scanned and not."""
    places = np.arange(len(scanned))
    for offset, (times, label, colour) in enumerate(
        (
            (looped, "Python loop over layers", figures.GREY),
            (scanned, "scan over layers", figures.BLUE),
        )
    ):
        heights = [t * 1e3 for t in times.values()]
        bars = axes.bar(places + 0.4 * offset, heights, 0.36, color=colour, label=label)
        axes.bar_label(bars, fmt="%.0f", fontsize=9)
    axes.set_xticks(places + 0.2, list(scanned))
    axes.set_ylabel("milliseconds")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    axes.margins(y=0.2)
    figures.tidy(axes)
    figures.title(axes, "Time to trace")


def run(settings: Settings) -> Result:
    """Trains the module, measures, draws.

    Args:
        settings: What the user asked for.

    Returns:
        The accuracy on held-out digits.
    """
    digits, held_out = data.load(settings.seed)
    depth, epochs = (8, 10) if settings.quick else (24, 30)
    model = Classifier(features=64, depth=depth)
    history, probabilities = train(model, digits, held_out, epochs, settings.seed)
    scanned = measure_tracing(model, digits)
    looped = measure_tracing(model.clone(scan=False), digits)
    print(f"time to trace, with {depth} layers:")
    for what, seconds in scanned.items():
        print(
            f"  {what:15}{seconds * 1e3:6.0f} ms with scan, "
            f"{looped[what] * 1e3:6.0f} ms as a Python loop"
        )

    figure = Figure(figsize=(17, 5))
    grid = figure.add_gridspec(
        1,
        3,
        width_ratios=[5, 3.4, 7.2],
        left=0.045,
        right=0.98,
        top=0.85,
        bottom=0.12,
        wspace=0.3,
    )
    figures.draw_history(figure.add_subplot(grid[0]), history)
    draw_tracing(figure.add_subplot(grid[1]), scanned, looped)
    figures.draw_predictions(grid[2], held_out, probabilities, rows=4)
    figures.save(figure, settings.out, "functional_modules.png")
    _, accuracy = history.accuracies[-1]
    return Result(accuracy, TARGET)
