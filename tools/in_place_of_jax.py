"""A pytest plugin: tests of JAX's run with the transforms of nnx_transforms.

Given plain pytrees, each transform behaves as JAX's own, and JAX's tests know best how
that is. From a checkout of JAX of the installed version, and with this repository in
`PYTHONPATH`:

    pytest -p tools.in_place_of_jax tests/api_test.py tests/pjit_test.py

`custom_vjp` is given `input_updates=False`: its rules take cotangents as JAX's do then.
"""

import contextlib
import functools
import importlib
import pkgutil
import sys
import types

import jax

import graphcore
import nnx_transforms

FUNCTIONS = [
    "checkpoint",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "eval_shape",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "linearize",
    "make_jaxpr",
    "pmap",
    "remat",
    "shard_map",
    "value_and_grad",
    "vjp",
    "vmap",
]
LOOPS = ["cond", "fori_loop", "map", "switch", "while_loop"]


def _import_everything() -> None:
    for package in (graphcore, nnx_transforms):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not {"adapters", "port"} & {*found.name.split(".")}:
                with contextlib.suppress(ImportError):  # of what is not installed
                    importlib.import_module(found.name)


def _copy(module: types.ModuleType) -> types.ModuleType:
    copy = types.ModuleType(module.__name__)
    vars(copy).update(vars(module))
    return copy


def _keep_what_the_transforms_call() -> None:
    """Gives our modules JAX as it is, before the names in it are replaced."""
    own, lax = _copy(jax), _copy(jax.lax)
    vars(own)["lax"] = lax
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] in ("graphcore", "nnx_transforms"):
            for key, value in [*vars(module).items()]:
                if value is jax or value is jax.lax:
                    setattr(module, key, own if value is jax else lax)


def _replace() -> None:
    for name in FUNCTIONS:
        setattr(jax, name, getattr(nnx_transforms, name))
    rule = functools.partial(nnx_transforms.custom_vjp, input_updates=False)
    vars(jax)["custom_vjp"] = rule
    for name in LOOPS:
        setattr(jax.lax, name, getattr(nnx_transforms, name))


_import_everything()
_keep_what_the_transforms_call()
_replace()
