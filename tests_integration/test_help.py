"""What `help` shows of the public names."""

import contextlib
import inspect

import pytest

import graphcore
import linen_lift
import nnx_transforms


@pytest.mark.parametrize("package", [graphcore, nnx_transforms, linen_lift])
def test_help_tells_what_stands_for_an_argument_that_is_not_given(package):
    public = [getattr(package, name) for name in package.__all__]
    public += [x for c in public if isinstance(c, type) for x in vars(c).values()]
    for x in filter(inspect.isroutine, public):
        with contextlib.suppress(ValueError, TypeError):
            assert "<object object" not in str(inspect.signature(x)), x
