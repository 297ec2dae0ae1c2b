"""Metrics that are updated batch by batch, inside or outside transformations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from graphcore import Filter, Object, Variable, split

F = TypeVar("F", bound=Callable[..., Any])


class MetricState(Variable[Any]):
    """A number that a metric keeps.

    Example:
        >>> isinstance(Average().total, MetricState)
        True
    """

    __slots__ = ()


class Metric(Object):
    """Base class of metrics: subclasses define `reset`, `update` and `compute`.

    Example:
        >>> isinstance(Average(), Metric)
        True
    """

    def reset(self) -> None:
        """Starts anew. To be defined by subclasses.

        Example:
            >>> average = Average(); average.update(values=3); average.reset()
            >>> int(average.count.value)
            0
        """
        raise NotImplementedError(f"{type(self).__name__} must define `reset`.")

    def update(self, **kwargs: Any) -> None:
        """Takes in a batch. To be defined by subclasses.

        Args:
            **kwargs: What there is to know of the batch; each metric takes what it
                needs.

        Example:
            >>> average = Average(); average.update(values=3)
            >>> int(average.count.value)
            1
        """
        raise NotImplementedError(f"{type(self).__name__} must define `update`.")

    def compute(self) -> Any:
        """Returns the metric over all batches so far. To be defined by subclasses.

        Returns:
            The metric.

        Example:
            >>> average = Average(); average.update(values=3)
            >>> float(average.compute())
            3.0
        """
        raise NotImplementedError(f"{type(self).__name__} must define `compute`.")

    def split(self, *filters: Filter) -> Any:
        """Takes the metric apart, as `split` of `graphcore` does.

        Args:
            *filters: How to divide the state.

        Returns:
            `(graphdef, state, ...)`.

        Example:
            >>> graphdef, state = Average().split()
            >>> list(state)
            ['count', 'total']
        """
        return split(self, *filters)


def _promoting(method: F) -> F:
    """Has a method combine numbers of several dtypes, though JAX be told to refuse it.

    Sums of floats are divided by counts, which are integers.
    """

    @functools.wraps(method)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            return method(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


class _Totals(Metric):
    """Numbers that start at zero and tell of the values of all batches.

    Floats are as wide as JAX is told to have them, so no value changes their dtype,
    and a loop carries them.
    """

    _dtypes: ClassVar[dict[str, Any]]

    def __init__(self, argname: str = "values") -> None:
        self.argname = argname
        for name, dtype in self._dtypes.items():
            setattr(self, name, MetricState(jnp.zeros((), dtype)))

    def reset(self) -> None:
        for name, dtype in self._dtypes.items():
            getattr(self, name).value = jnp.zeros((), dtype)

    def _values(self, kwargs: dict[str, Any]) -> jax.Array:
        if self.argname not in kwargs:
            raise TypeError(
                f"{type(self).__name__}.update got the arguments {sorted(kwargs)}, "
                f"expected {self.argname!r}, the `argname` it was made with."
            )
        values: jax.Array = jnp.asarray(kwargs[self.argname])
        if jnp.issubdtype(values.dtype, jnp.inexact) and values.dtype.itemsize < 4:
            values = values.astype(jnp.float32)  # which has room for sums
        return values


def _over(mask: Any, values: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.asarray(mask, bool), values.shape)


class Average(_Totals):
    """The average of all values.

    Args:
        argname: The argument of `update` that has the values.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = Average('loss')
        >>> loss.update(loss=jnp.array([1.0, 2.0])); loss.update(loss=6)
        >>> float(loss.compute())
        3.0
    """

    total: MetricState
    count: MetricState
    _dtypes = {"total": float, "count": jnp.int32}

    @_promoting
    def update(self, mask: Any = None, **kwargs: Any) -> None:
        """Takes in a batch of values.

        Args:
            mask: Which values count: true or false, of a shape that broadcasts to that
                of the values.
            **kwargs: Holds the values under `argname`: an array of any shape.

        Raises:
            TypeError: If the argument is missing.

        Example:
            >>> import jax.numpy as jnp
            >>> average = Average()
            >>> average.update(values=jnp.arange(4.0), mask=jnp.array([1, 1, 0, 0]))
            >>> float(average.compute())
            0.5
        """
        values = self._values(kwargs)
        if mask is None:
            self.total.value += values.sum()
            self.count.value += values.size
            return
        mask = _over(mask, values)
        # Not by a product: what does not count may be NaN.
        self.total.value += jnp.where(mask, values, 0).sum()
        self.count.value += mask.sum().astype(jnp.int32)

    @_promoting
    def compute(self) -> jax.Array:
        average: jax.Array = self.total.value / self.count.value
        return average


class Statistics(NamedTuple):
    """Mean and spread of values.

    Args:
        mean: Their mean.
        standard_error_of_mean: The standard deviation over the root of their number.
        standard_deviation: The root of their variance.

    Example:
        >>> Statistics._fields
        ('mean', 'standard_error_of_mean', 'standard_deviation')
    """

    mean: jax.Array
    standard_error_of_mean: jax.Array
    standard_deviation: jax.Array


class Welford(_Totals):
    """Mean and standard deviation of all values, in one pass.

    See Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", http://i.stanford.edu/pub/cstr/reports/cs/tr/79/773.

    Args:
        argname: The argument of `update` that has the values.

    Example:
        >>> import jax.numpy as jnp
        >>> spread = Welford(); spread.update(values=jnp.array([1.0, 2.0, 3.0, 4.0]))
        >>> float(spread.compute().mean)
        2.5
    """

    count: MetricState
    mean: MetricState
    m2: MetricState
    _dtypes = {"count": jnp.int32, "mean": float, "m2": float}

    @_promoting
    def update(self, mask: Any = None, **kwargs: Any) -> None:
        """Takes in a batch of values.

        Args:
            mask: Which values count, as for `Average`.
            **kwargs: Holds the values under `argname`: an array of any shape.

        Raises:
            TypeError: If the argument is missing.

        Example:
            >>> spread = Welford(); spread.update(values=3)
            >>> int(spread.count.value)
            1
        """
        values = self._values(kwargs)
        if not values.size:
            return  # It has no mean.
        before, size = self.count.value, values.size
        if mask is None:
            mean, variance = values.mean(), values.var()
        else:
            mask = _over(mask, values)
            size = mask.sum().astype(jnp.int32)
            some = jnp.maximum(size, 1)  # the mask may leave nothing
            mean = jnp.where(mask, values, 0).sum() / some
            deviations = jnp.where(mask, values, mean) - mean
            variance = (deviations * deviations).sum() / some
        self.count.value = before + size
        after = jnp.maximum(self.count.value, 1)
        delta = mean - self.mean.value
        self.mean.value += delta * size / after
        between = delta * delta * size * before / after
        self.m2.value += variance * size + between

    @_promoting
    def compute(self) -> Statistics:
        deviation = jnp.sqrt(self.m2.value / self.count.value)
        return Statistics(
            mean=self.mean.value,
            standard_error_of_mean=deviation / jnp.sqrt(self.count.value),
            standard_deviation=deviation,
        )


class Accuracy(Average):
    """How often the label is what a model finds most likely.

    Args:
        threshold: For two classes: the logit from which on a label above zero is
            predicted. None for a logit each class.
        argname: Not used; the arguments of `update` are `logits` and `labels`.

    Raises:
        TypeError: If the threshold is no float.

    Example:
        >>> import jax.numpy as jnp
        >>> accuracy = Accuracy()
        >>> accuracy.update(logits=jnp.eye(3), labels=jnp.array([0, 1, 0]))
        >>> round(float(accuracy.compute()), 4)
        0.6667
    """

    def __init__(self, threshold: float | None = None, argname: str = "values") -> None:
        if threshold is not None and not isinstance(threshold, float):
            raise TypeError(
                f"The threshold of Accuracy must be a float or None, got {threshold!r} "
                f"of type {type(threshold).__name__}."
            )
        super().__init__(argname)
        self.threshold = threshold

    @_promoting
    def update(
        self, mask: Any = None, *, logits: Any = None, labels: Any = None, **kwargs: Any
    ) -> None:
        """Takes in a batch of predictions.

        Args:
            mask: Which labels count, of a shape that broadcasts to that of the labels.
            logits: Of the labels' shape, with a last axis of classes unless there is a
                threshold.
            labels: Integers of any shape.
            **kwargs: Not used.

        Raises:
            ValueError: If the shapes don't fit, or labels are no integers.

        Example:
            >>> import jax.numpy as jnp
            >>> accuracy = Accuracy(threshold=0.5)
            >>> accuracy.update(logits=jnp.array([0.2, 0.8]), labels=jnp.array([1, 1]))
            >>> float(accuracy.compute())
            0.5
        """
        logits, labels = jnp.asarray(logits), jnp.asarray(labels)
        due = labels.ndim + (self.threshold is None)
        batch = logits.shape[: labels.ndim]
        if (
            logits.ndim != due
            or not jnp.issubdtype(labels.dtype, jnp.integer)
            or any(
                n != m and 1 not in (n, m)
                for n, m in zip(batch, labels.shape, strict=False)
            )
        ):
            raise ValueError(
                f"Accuracy got logits of shape {logits.shape} and labels of shape "
                f"{labels.shape} and dtype {labels.dtype}, expected integer labels and "
                f"logits with {due} axes (threshold={self.threshold}), the first of "
                "the same sizes as those of the labels."
            )
        if self.threshold is None:
            right = logits.argmax(axis=-1) == labels
        else:
            right = (logits >= self.threshold) == (labels > 0)
        super().update(mask, **{self.argname: right})


class MultiMetric(Metric):
    """Several metrics in one.

    Args:
        **metrics: The metrics by name; each is an attribute.

    Raises:
        ValueError: If a name is that of a method.

    Example:
        >>> import jax.numpy as jnp
        >>> metrics = MultiMetric(accuracy=Accuracy(), loss=Average('loss'))
        >>> metrics.update(logits=jnp.eye(2), labels=jnp.arange(2), loss=3.0)
        >>> {name: float(value) for name, value in metrics.compute().items()}
        {'accuracy': 1.0, 'loss': 3.0}
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, **metrics: Metric) -> None:
        if reserved := sorted({"reset", "update", "compute", "split"} & metrics.keys()):
            raise ValueError(
                f"Metrics of a MultiMetric can't be named {reserved}, which are its "
                "methods: choose other names."
            )
        self._metric_names = tuple(metrics)
        for name, metric in metrics.items():
            setattr(self, name, metric)

    def reset(self) -> None:
        for name in self._metric_names:
            getattr(self, name).reset()

    def update(self, mask: Any = None, **kwargs: Any) -> None:
        """Hands a batch on to all metrics.

        Args:
            mask: For all metrics, or a dict of masks by the names of the metrics.
            **kwargs: For all metrics.

        Raises:
            ValueError: If a mask is for a metric that there is not.

        Example:
            >>> metrics = MultiMetric(a=Average('x'), b=Average('y'))
            >>> metrics.update(x=1, y=2); float(metrics.b.compute())
            2.0
        """
        names = mask.keys() if isinstance(mask, dict) else ()
        if unknown := sorted({*names} - {*self._metric_names}):
            raise ValueError(
                f"There are masks for {unknown}, but the metrics are named "
                f"{[*self._metric_names]}: give each mask under the name of a metric."
            )
        for name in self._metric_names:
            own = mask.get(name) if isinstance(mask, dict) else mask
            masked = {} if own is None else {"mask": own}
            getattr(self, name).update(**masked, **kwargs)

    def compute(self) -> dict[str, Any]:
        return {name: getattr(self, name).compute() for name in self._metric_names}
