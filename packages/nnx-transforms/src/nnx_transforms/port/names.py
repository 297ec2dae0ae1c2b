"""Where the names of Flax are in these packages."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any, NamedTuple

__all__ = ["HOMES", "KEPT", "Kept", "Missing", "Place", "attribute", "find", "unit"]


def _homes(flax: str, ours: str, submodules: str) -> dict[str, tuple[str, ...]]:
    """A module and its submodules, whose names may be at the top in ours."""
    homes = {f"{flax}.{sub}": (ours, f"{ours}.{sub}") for sub in submodules.split()}
    return {flax: (ours,), **homes}


HOMES: dict[str, tuple[str, ...]] = {
    **_homes(
        "flax.linen",
        "linen_lift",
        "activation attention batch_apply combinators dtypes fp8_ops initializers "
        "linear meta module normalization partitioning pooling recurrent spmd "
        "stochastic summary transforms",
    ),
    **_homes("flax.core", "linen_lift", "frozen_dict lift meta scope spmd"),
    "flax.errors": ("linen_lift.errors", "nnx_transforms"),
    # All names of nnx_transforms are at its top; its modules are for itself.
    **dict.fromkeys(
        _homes(
            "flax.nnx",
            "nnx_transforms",
            "compat errors experimental extract filterlib graph graphlib "
            "helpers ids module nn nn.activations nn.attention nn.dtypes "
            "nn.initializers nn.linear nn.lora nn.normalization nn.recurrent "
            "nn.stochastic object pytreelib rnglib spmd statelib summary traversals "
            "training training.metrics training.optimizer transforms "
            "transforms.autodiff transforms.compilation transforms.deprecated "
            "transforms.general transforms.iteration transforms.transforms "
            "variablelib",
        ),
        ("nnx_transforms",),
    ),
    # But for those that these have, which need not be at the top.
    **{
        f"flax.nnx.{module}": ("nnx_transforms", f"nnx_transforms.{leaf}")
        for module in (
            "filterlib",
            "graph",
            "statelib",
            "training.metrics",
            "traversals",
        )
        for leaf in (module.rpartition(".")[2],)
    },
    "flax.nnx.bridge": ("nnx_transforms.bridge",),
}
"""For each module of Flax the places in these packages that may have its names."""

KEPT = frozenset(
    {
        "flax.__version__",
        "flax.config",
        "flax.cursor",
        "flax.io",
        "flax.jax_utils",
        "flax.metrics",
        "flax.serialization",
        "flax.struct",
        "flax.testing",
        "flax.training",
        "flax.traverse_util",
        "flax.typing",
        "flax.version",
    }
)
"""What stays Flax's: it works with these packages, which have nothing in its place."""

_MODULES = {"flax", *HOMES}


class Place(NamedTuple):
    """Where a name is in these packages.

    Args:
        path: the public path of the module that has it, `linen_lift.errors`.
        module: the module's own name, to import from.
        name: the name there; None for the module itself.
    """

    path: str
    module: str
    name: str | None

    @property
    def dotted(self) -> str:
        """The expression that gives it, once the package is imported."""
        return self.path if self.name is None else f"{self.path}.{self.name}"


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


@functools.cache
def _package(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None


_ABSENT = object()


def attribute(path: str) -> Any:
    """What a dotted path of these packages leads to.

    Args:
        path: a package, or a path of attributes from one.

    Returns:
        The object; None if there is none.
    """
    package, *rest = path.split(".")
    found: Any = _package(package)
    for name in rest:
        try:
            found = getattr(found, name)
        except (AttributeError, ModuleNotFoundError):  # or it needs what is not here
            return None
    return found


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
    parts = dotted.split(".")
    end = 1
    while end < len(parts) and ".".join(parts[:end]) in _MODULES:
        end += 1
    return ".".join(parts[:end])


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
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        if (prefix := ".".join(parts[:end])) in KEPT:
            return Kept(prefix)
    if dotted in HOMES:
        # One of the same name, if there is one, or else what has its names.
        leaf = dotted[dotted.rindex(".") :]
        for path in sorted(HOMES[dotted], key=lambda path: not path.endswith(leaf)):
            found = attribute(path)
            if isinstance(found, ModuleType):
                return Place(path, found.__name__, None)
        return _absent(HOMES[dotted])
    module, _, name = dotted.rpartition(".")
    if module not in HOMES:
        return Missing("there is no such module in these packages")
    # A module's own version of a name comes first, under the shortest path it has.
    for path in reversed(HOMES[module]):
        found = attribute(path)
        if isinstance(found, ModuleType) and _is_public(found, name):
            for shorter in HOMES[module]:
                other = attribute(shorter)
                if getattr(other, name, _ABSENT) is getattr(found, name):
                    return Place(shorter, other.__name__, name)
    return _absent(HOMES[module])


def _is_public(module: ModuleType, name: str) -> bool:
    """Whether a module offers a name, rather than having it for its own use."""
    public = getattr(module, "__all__", None)
    if public is not None and name in public:
        return True
    value = getattr(module, name, _ABSENT)
    if value is _ABSENT or name.startswith("_"):
        return False
    return public is None or isinstance(value, ModuleType)


def _absent(homes: tuple[str, ...]) -> Missing:
    package = homes[0].split(".")[0]
    if _package(package) is None:
        distribution = package.replace("_", "-")
        return Missing(
            f"{distribution} is not installed here, so its names are unknown"
        )
    return Missing(f"{package} has no such name")
