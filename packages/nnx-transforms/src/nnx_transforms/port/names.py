"""Where the names of Flax are in these packages."""

from __future__ import annotations

import itertools
import pkgutil
from types import ModuleType
from typing import Any, NamedTuple

__all__ = ["HOMES", "KEPT", "Kept", "Missing", "Place", "attribute", "find", "unit"]


def _homes(flax: str, ours: str, both: str, only: str = "") -> dict[str, list[str]]:
    """A module of Flax and its submodules.

    Those in `both` have their names at the top of ours or in a submodule that is called
    the same; those in `only` at the top.
    """
    homes = {f"{flax}.{sub}": [ours] for sub in f"{both} {only}".split()}
    for sub in both.split():
        homes[f"{flax}.{sub}"].append(f"{ours}.{sub.rpartition('.')[2]}")
    return {flax: [ours], **homes}


HOMES: dict[str, list[str]] = {
    **_homes(
        "flax.linen",
        "linen_lift",
        "activation attention batch_apply combinators dtypes initializers "
        "linear meta module normalization partitioning pooling recurrent spmd "
        "stochastic summary transforms",
    ),
    **_homes("flax.core", "linen_lift", "frozen_dict lift meta scope spmd"),
    "flax.errors": ["linen_lift.errors", "nnx_transforms"],
    **_homes(
        "flax.nnx",
        "nnx_transforms",
        "filterlib graph nn.initializers statelib training.metrics traversals",
        "compat errors experimental extract graphlib helpers module nn "
        "nn.activations nn.attention nn.dtypes nn.linear nn.lora "
        "nn.normalization nn.recurrent nn.stochastic object optimizer pytreelib "
        "rnglib spmd summary training training.optimizer transforms "
        "transforms.autodiff transforms.compilation transforms.deprecated "
        "transforms.general transforms.iteration transforms.transforms variablelib",
    ),
    "flax.nnx.bridge": ["nnx_transforms.bridge"],
}
"""For each module of Flax the places in these packages that may have its names."""

for _module in HOMES:
    if _module.startswith(("flax.linen.", "flax.core.")):
        HOMES[_module].append("linen_lift.types")
# `init` and `apply` of functions of a scope, which at the top are those of modules.
HOMES["flax.core"].append("linen_lift.scope")

KEPT = (
    "__version__ cursor io jax_utils metrics serialization struct testing "
    "training traverse_util typing version"
)
"""What stays Flax's: it works with these packages, which have nothing in its place."""

OTHERS = {
    "flatten": "its state is nested here, and `state.flat_state()` is flat",
    "map": "here it maps over axes; use `map_state`, or `recursive_map` of an object",
}
"""Functions of graphs in Flax that are others here, and what to use."""

_KEEP = "keep in Flax the modules that it is given"
_SPLITS = (
    "it looks for variables with Flax, finds none in a module of these packages, and "
    f"does not train it: {_KEEP}"
)
_REFUSES = f"it refuses modules that are not Flax's: {_KEEP}"

SPLITTERS = {
    "numpyro": (("nnx_module", "random_nnx_module"), _SPLITS),
    "qwix": (("apply_lora_to_model", "quantize_model"), _REFUSES),
}
"""Functions of other packages that know the modules of Flax alone, and what they do."""

SETTINGS = (
    "settings of Flax are not read here; in the place of `flax_always_shard_variable` "
    "set to False stands `nnx_transforms.use_eager_sharding(False)`"
)
"""Why there is no `flax.config`."""

_OF_GRAPHS = ("flax.nnx", "flax.nnx.graph", "flax.nnx.graphlib")
_MODULES = {"flax", *HOMES}


class Place(NamedTuple):
    """Where a name is in these packages.

    Args:
        dotted: the expression that gives it, once the package is imported:
            `linen_lift.errors.ScopeNotFoundError`.
        module: the own name of the module that has it, to import from.
        name: the name there; None for the module itself.
    """

    dotted: str
    module: str
    name: str | None


class Kept(NamedTuple):
    """A name that stays Flax's.

    Args:
        module: the module of Flax that has it.
    """

    module: str


class Missing(NamedTuple):
    """A name that has no place.

    Args:
        reason: why.
    """

    reason: str


_ABSENT = object()


def attribute(path: str) -> Any:
    """What a dotted path of these packages leads to.

    Args:
        path: a package, or a path of attributes from one.

    Returns:
        The object; None if there is none.
    """
    try:
        return pkgutil.resolve_name(path.replace(".", ":", 1))
    except (AttributeError, ModuleNotFoundError):  # or it needs what is not here
        return None


def unit(dotted: str) -> str:
    """The first part of a dotted path that is more than a module of Flax.

    Args:
        dotted: a path, such as `flax.linen.Module.apply`.

    Returns:
        `flax.linen.Module`; the whole path if all of it is modules.

    Example:
        >>> from nnx_transforms.port.names import unit
        >>> unit('flax.linen.Module.apply'), unit('flax.core.frozen_dict')
        ('flax.linen.Module', 'flax.core.frozen_dict')
    """
    prefixes = itertools.accumulate(dotted.split("."), "{}.{}".format)
    return next((prefix for prefix in prefixes if prefix not in _MODULES), dotted)


def find(dotted: str) -> Place | Kept | Missing:
    """Where a name of Flax is in these packages.

    Args:
        dotted: its path, at most one name below a module.

    Returns:
        The place, or that it stays Flax's, or that there is none.

    Example:
        >>> from nnx_transforms.port.names import find
        >>> find('flax.nnx.transforms.scan').dotted
        'nnx_transforms.scan'
        >>> find('flax.struct.dataclass')
        Kept(module='flax.struct')
    """
    if dotted.startswith("flax.") and (kept := dotted.split(".")[1]) in KEPT.split():
        return Kept(f"flax.{kept}")
    if dotted in HOMES:
        # Prefer a module of the same name to another one that holds its names.
        leaf = dotted[dotted.rindex(".") :]
        for path in sorted(HOMES[dotted], key=lambda path: not path.endswith(leaf)):
            found = attribute(path)
            if isinstance(found, ModuleType):
                return Place(path, found.__name__, None)
        return _absent(HOMES[dotted])
    module, _, name = dotted.rpartition(".")
    if f"{dotted}.".startswith("flax.config."):
        return Missing(SETTINGS)
    if module not in HOMES:
        return Missing("there is no such module in these packages")
    if module in _OF_GRAPHS and name in OTHERS:
        return Missing(OTHERS[name])
    # Prefer the module's own version of a name, under its shortest path.
    for path in reversed(HOMES[module]):
        found = attribute(path)
        if isinstance(found, ModuleType) and _is_public(found, name):
            value = getattr(found, name, _ABSENT)
            for home in HOMES[module]:
                if getattr(attribute(home), name, _ABSENT) is value:
                    return Place(f"{home}.{name}", attribute(home).__name__, name)
    return _absent(HOMES[module], name)


def _is_public(module: ModuleType, name: str) -> bool:
    """Whether a module offers a name, rather than having it for its own use."""
    # Not `dir` or `getattr`: a module's `__getattr__` may pass names on to its package.
    public = vars(module).get("__all__", [n for n in vars(module) if n[0] != "_"])
    value = getattr(module, name, None)
    is_of_modules = name.startswith("__") and value is not None  # `__name__`
    return name in public or isinstance(value, ModuleType) or is_of_modules


def _absent(homes: list[str], name: str = "") -> Missing:
    package = homes[0].split(".")[0]
    if attribute(package) is not None:
        private = "; it is private to Flax: import it from there, or write it anew"
        return Missing(f"{package} has no such name{private * name.startswith('_')}")
    distribution = package.replace("_", "-")
    return Missing(f"{distribution} is not installed here, so its names are unknown")
