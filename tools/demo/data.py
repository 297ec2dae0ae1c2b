"""The handwritten digits of scikit-learn: 1,797 images of 8 by 8 pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits

HELD_OUT = 360


@dataclass(frozen=True)
class Split:
    """Images with their labels.

    Args:
        images: float32 of shape (count, 8, 8, 1), from 0 to 1.
        labels: int32 of shape (count,).
    """

    images: np.ndarray
    labels: np.ndarray

    def batches(
        self, size: int, rng: np.random.Generator
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Walks through all images once, in random order.

        The last few are left out if they do not fill a batch: a batch of another size
        would have to be compiled for.

        Args:
            size: How many images a batch holds.
            rng: Draws the order.

        Yields:
            The images and labels of each batch.
        """
        order = rng.permutation(len(self.labels))
        for start in range(0, len(order) - size + 1, size):
            chosen = order[start : start + size]
            yield self.images[chosen], self.labels[chosen]


def load(seed: int) -> tuple[Split, Split]:
    """Loads the digits.

    Args:
        seed: Decides which images are held out.

    Returns:
        The images to train on, and the held-out ones.
    """
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)
    labels = digits.target.astype(np.int32)
    order = np.random.default_rng(seed).permutation(len(labels))
    train, held_out = order[HELD_OUT:], order[:HELD_OUT]
    return Split(images[train], labels[train]), Split(
        images[held_out], labels[held_out]
    )
