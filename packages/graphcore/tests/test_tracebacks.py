"""Tracebacks of errors: the frames of users, and those that JAX is asked to show."""

import dataclasses
import traceback

import jax
import jax.numpy as jnp
import pytest

import graphcore as gc
from graphcore.authors import enter, lifted


def files_of(error):
    """The files of the frames in a traceback, but for those of this test."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.filename for frame in frames if frame.filename != __file__]


def jitted(f):
    """A `jit` of one's own."""

    @lifted(f)
    def call(f, *args):
        entry = enter(f, args)
        return entry.commit(*jax.jit(entry.body)(*entry.values))

    return call


class Refused(Exception):
    """An error of a user."""


def refuse(*args):
    raise Refused("not today")


@pytest.fixture(autouse=True)
def _filtering():
    before = jax.config.jax_traceback_filtering
    yield
    jax.config.update("jax_traceback_filtering", before)


def failing():
    shared = gc.Dict(w=gc.Param(jnp.ones(2)))
    return lambda: jitted(jitted(refuse))(shared, [shared])


def raised_by(call, *args):
    with pytest.raises(Exception) as caught:
        call(*args)
    return caught.value


@pytest.mark.parametrize("mode", ["auto", "quiet_remove_frames", "remove_frames"])
def test_frames_of_the_library_are_left_out(mode):
    jax.config.update("jax_traceback_filtering", mode)
    error = raised_by(failing())
    assert isinstance(error, Refused)
    # Through the two transforms' own `call`, to the function.
    assert files_of(error) == []
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names == ["raised_by", "<lambda>", "call", "call", "refuse"]


def test_all_frames_are_shown_where_jax_shows_its_own():
    jax.config.update("jax_traceback_filtering", "off")
    files = files_of(raised_by(failing()))
    assert any("graphcore" in name for name in files)


def test_the_record_that_jax_makes_of_all_frames_is_whole():
    jax.config.update("jax_traceback_filtering", "remove_frames")
    files = files_of(raised_by(failing()).__cause__)
    assert any("graphcore" in name for name in files)


def test_frames_are_marked_for_tools_that_hide_them():
    jax.config.update("jax_traceback_filtering", "tracebackhide")
    error = raised_by(failing())
    assert any("graphcore" in name for name in files_of(error))
    for frame, _ in traceback.walk_tb(error.__traceback__):
        is_hidden = frame.f_locals.get("__tracebackhide__", False)
        assert is_hidden == (frame.f_code.co_filename != __file__)


def test_the_frame_that_raised_an_error_stays():
    def add_to_another(x):
        outside.value = x

    outside = gc.Variable(jnp.ones(2))
    error = raised_by(jitted(add_to_another), jnp.ones(2))
    assert isinstance(error, gc.TraceContextError)
    (last,) = files_of(error)
    assert "graphcore" in last
    assert traceback.extract_tb(error.__traceback__)[-1].filename == last


def test_a_cause_is_shortened_too():
    @gc.api_boundary
    def fail():
        try:
            gc.state(gc.Dict(w=gc.Param(1.0))).map(refuse)
        except Refused as error:
            raise ValueError("told otherwise") from error

    error = raised_by(fail)
    assert files_of(error) == files_of(error.__cause__) == []


def test_errors_that_refuse_attributes_and_causes_in_circles():
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        code: int

    def fail():
        raise Frozen(3)

    assert raised_by(gc.api_boundary(fail)).code == 3

    def fail_in_circles():
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    assert str(raised_by(gc.api_boundary(fail_in_circles))) == "first"


def test_what_is_no_error_is_left_alone():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        gc.api_boundary(stop)()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "wrapper" in names


def test_a_function_at_the_boundary_looks_like_itself():
    @gc.api_boundary
    def double(x: int, by: int = 2) -> int:
        """Doubles."""
        return x * by

    assert double(3) == 6
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")
    assert double.__wrapped__(3, by=3) == 9
