"""Objects in several threads, and in processes that know only their pickles."""

import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from small_models import Net, arrays, assert_same, sgd_step, train, train_pickled

import nnx_transforms as nnx

cloudpickle = pytest.importorskip("cloudpickle")


def test_eight_threads_train_a_model_each():
    expected = []
    for seed in range(8):
        model = Net(seed)
        expected.append((train(model), arrays(model)))
    sgd_step.clear_cache()
    barrier = threading.Barrier(8)

    def work(seed):
        model = Net(seed)
        barrier.wait()
        return train(model), arrays(model)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(8)))
    for ours, alone in zip(found, expected, strict=True):
        assert_same(ours, alone, rtol=1e-6)


def test_threads_read_one_model():
    model = Net()
    predict = nnx.jit(lambda model, x: model.last(x * model.first.bias.value))
    x = model.first.bias.value[None] + 1
    expected = predict(model, x)

    def work(_):
        return [float(predict(model, x)[0, 0]) for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(work, range(8)):
            assert found == [float(expected[0, 0])] * 50


def test_a_spawned_process_trains_a_pickled_model():
    model = Net()
    train(model)  # compiled, with plans and caches that must not travel
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        trained, losses = pool.apply(train_pickled, (model,))
    assert int(model.calls.value) == 3
    assert train(model) == pytest.approx(losses, rel=1e-5)
    assert_same(arrays(trained), arrays(model), rtol=1e-4, atol=1e-6)
    assert trained.middle is trained.again
    # What came back is like any other object, and hits what was compiled here.
    train(trained)
    assert nnx.explain_recompile(sgd_step) == []


def test_functions_travel_with_objects():
    model = Net()
    assert pickle.loads(pickle.dumps(sgd_step)) is sgd_step
    rate = 0.5
    local = nnx.jit(lambda model: model.calls.value + rate)
    again, copy = cloudpickle.loads(cloudpickle.dumps((local, model)))
    assert float(again(copy)) == 0.5
