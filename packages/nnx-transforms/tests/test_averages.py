"""Averages over batches, and averages of variables over steps."""

import jax
import jax.numpy as jnp
import pytest

import graphcore as gc
import nnx_transforms as nnx


def test_a_mask_that_broadcasts_counts_every_value_that_it_selects():
    average = nnx.metrics.Average()
    average.update(values=jnp.arange(6.0).reshape(2, 3), mask=jnp.array([1, 0, 1]))
    assert int(average.count.value) == 4
    assert float(average.compute()) == 2.5
    accuracy = nnx.metrics.Accuracy()
    labels = jnp.array([[0, 1], [0, 0]])
    logits = jnp.broadcast_to(jnp.eye(2), (2, 2, 2))
    accuracy.update(logits=logits, labels=labels, mask=jnp.array([False, True]))
    assert float(accuracy.compute()) == 0.5


def test_a_batch_without_values_changes_nothing():
    metrics = nnx.MultiMetric(mean=nnx.metrics.Average(), all=nnx.metrics.Welford())

    @nnx.jit
    def update(metrics, values):
        metrics.update(values=values)

    for size in (0, 4, 0):
        update(metrics, jnp.arange(float(size)))
    found = metrics.compute()
    assert float(found["mean"]) == float(found["all"].mean) == 1.5


def test_a_value_that_does_not_count_may_be_anything():
    average = nnx.metrics.Average()

    @nnx.jit
    def update(average, values, mask):
        average.update(values=values, mask=mask)

    update(average, jnp.array([1.0, jnp.nan, 3.0]), jnp.array([True, False, True]))
    assert float(average.compute()) == 2.0


@pytest.mark.parametrize("transform", [lambda f: f, nnx.jit])
def test_a_mask_counts_for_mean_and_spread(transform):
    metrics = nnx.MultiMetric(mean=nnx.metrics.Average(), all=nnx.metrics.Welford())

    @transform
    def update(metrics, values, mask):
        metrics.update(values=values, mask=mask)

    values = jnp.array([[7.0, jnp.nan, 1.0], [2.0, 9.0, 6.0]])
    for mask in ([0, 0, 0], [[0, 0, 0], [1, 0, 1]], [[0, 0, 0], [1, 1, 0]]):
        with jax.debug_nans(True):  # none comes from what does not count
            update(metrics, values, jnp.array(mask))
    counted = jnp.array([2.0, 6.0, 2.0, 9.0])
    found = metrics.compute()
    assert int(metrics.all.count.value) == 4
    assert float(found["mean"]) == counted.mean()
    assert jnp.allclose(found["all"].mean, counted.mean())
    assert jnp.allclose(found["all"].standard_deviation, counted.std())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float8_e5m2])
def test_sums_of_values_in_half_precision_are_not_rounded_to_it(dtype):
    metrics = nnx.MultiMetric(mean=nnx.metrics.Average(), all=nnx.metrics.Welford())
    for size in (301, 4097):
        metrics.update(values=jnp.where(jnp.arange(size) == 0, 3, 2).astype(dtype))
    found = metrics.compute()
    mean = 2 + 2 / 4398
    assert float(found["mean"]) == pytest.approx(mean, rel=1e-6)
    assert float(found["all"].mean) == pytest.approx(mean, rel=1e-6)
    assert float(found["all"].standard_deviation) == pytest.approx(0.02132, rel=1e-3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16, jnp.int64])
def test_a_loop_carries_metrics_of_values_of_64_bits(dtype):
    with jax.enable_x64(True):
        metrics = nnx.MultiMetric(mean=nnx.metrics.Average(), all=nnx.metrics.Welford())

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def update(metrics, values):
            metrics.update(values=values)
            return metrics

        update(metrics, jnp.array([[1, 2], [3, 4]], dtype))
        found = metrics.compute()
        assert float(found["mean"]) == float(found["all"].mean) == 2.5
        assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype("float64")}
        # 2 ** -40 is more than a float of 32 bits has room for beside 1.
        metrics.reset()
        metrics.mean.update(values=1 + jnp.float64(2) ** -40)
        assert float(metrics.mean.compute()) == 1 + 2**-40


def test_a_mask_for_a_metric_that_is_not_there_is_refused():
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average(), all=nnx.metrics.Welford())
    with pytest.raises(ValueError, match=r"masks for \['lost'\].*\['loss', 'all'\]"):
        metrics.update(values=jnp.ones(2), mask={"lost": jnp.array([1, 0])})
    assert int(metrics.loss.count.value) == 0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8, bool])
def test_metrics_take_any_dtypes_where_jax_is_told_to_promote_none(dtype):
    def measured():
        metrics = nnx.MultiMetric(
            mean=nnx.metrics.Average(),
            all=nnx.metrics.Welford(),
            hits=nnx.metrics.Accuracy(),
        )
        values, labels = jnp.array([0, 1, 1], dtype), jnp.array([0, 1, 0], jnp.int8)
        logits = jnp.eye(3, dtype=dtype)
        for mask in (None, jnp.array([1, 0, 1])):
            metrics.mean.update(values=values, mask=mask)
            metrics.all.update(values=values, mask=mask)
            metrics.hits.update(logits=logits, labels=labels, mask=mask)
        return metrics.compute()

    expected = measured()
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        found = measured()
        found_jitted = nnx.jit(measured)()
    assert jax.tree.all(jax.tree.map(jnp.array_equal, found, expected))
    assert jax.tree.all(jax.tree.map(jnp.allclose, found_jitted, expected))


def test_an_average_starts_from_the_stored_values():
    def doubled(variable, value):
        return jax.tree.map(lambda x: 2 * x, value)

    model = gc.Dict(w=gc.Param(jnp.array(1.0), on_set_value=doubled))
    ema = nnx.EMA(model, decay=0.5)
    assert float(ema.params["w"].raw_value) == 1.0
    ema.update(model)
    assert float(ema.apply_to(model).w.raw_value) == 1.0


def test_variables_of_a_registered_type_are_averaged():
    class Box:
        def __init__(self, value):
            self.content = value

    gc.register_variable_type(
        Box,
        get_value=lambda box: box.content,
        set_value=lambda box, value: setattr(box, "content", value),
        get_metadata=lambda box: {},
        create=lambda kind, value, metadata: kind(value),
    )
    model = gc.Dict(w=Box(jnp.array(0.0)))
    ema = nnx.EMA(model, decay=0.5)
    model.w.content = jnp.array(1.0)
    ema.update(model)
    assert float(ema.params["w"].content) == 0.5
    assert float(model.w.content) == 1.0


def test_averages_have_the_types_of_what_they_average():
    dtypes = {"a": jnp.float32, "b": jnp.bfloat16, "n": jnp.int32}
    model = nnx.Dict({k: nnx.Param(jnp.ones(2, t)) for k, t in dtypes.items()})
    ema = nnx.EMA(model, decay=0.5)
    model.n.value = jnp.full(2, 5)
    nnx.jit(ema.update)(jax.tree.map(lambda x: x.astype(jnp.float32), nnx.state(model)))
    found = ema.apply_to(model)
    assert {k: found[k].value.dtype for k in dtypes} == dtypes
    assert found.n.value.tolist() == [3, 3]


def test_random_keys_have_no_average():
    model = nnx.Dict(up=nnx.Linear(2, 2, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"at 'rngs/default/key'.*only=nnx.Param"):
        nnx.EMA(model, 0.9)
    nnx.EMA(model, 0.9, only=nnx.Param).update(model)


def test_labels_of_another_batch_are_refused_with_both_shapes():
    accuracy = nnx.metrics.Accuracy()
    with pytest.raises(ValueError, match=r"shape \(3, 2\) and labels of shape \(4,\)"):
        accuracy.update(logits=jnp.ones((3, 2)), labels=jnp.zeros(4, int))
    with pytest.raises(ValueError, match=r"shape \(3,\).*logits with 2 axes"):
        accuracy.update(logits=jnp.ones(3), labels=jnp.zeros(3, int))
    with pytest.raises(ValueError, match=r"dtype float32, expected integer labels"):
        accuracy.update(logits=jnp.ones((3, 2)), labels=jnp.zeros(3))
    assert float(accuracy.count.value) == 0
    accuracy.update(logits=jnp.ones((3, 2)), labels=jnp.zeros(1, int))
    assert float(accuracy.compute()) == 1
