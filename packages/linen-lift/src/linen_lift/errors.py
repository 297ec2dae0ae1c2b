"""Every error that the package raises, with one base class.

A message says four things: what was asked for, where (collection, name and path),
what was found there, and what to do about it. The classes take the facts and word
the message themselves, so that the same mistake reads the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class LinenLiftError(Exception):
    """Base of every error that this package raises.

    Example:
        >>> import linen_lift as nn
        >>> issubclass(nn.errors.NameInUseError, nn.LinenLiftError)
        True
    """


def _at(path: str, name: str | None = None) -> str:
    """`/block/kernel` from the path text of a scope and a name in it."""
    if name is None:
        return path
    return f"{path.rstrip('/')}/{name}"


# --- scopes ---------------------------------------------------------------------


class InvalidRngError(LinenLiftError, ValueError):
    """A random stream is missing, or is not a key."""

    @classmethod
    def missing(cls, stream: str, path: str, have: Iterable[str]) -> InvalidRngError:
        """The error for a draw from a stream that the scope does not have."""
        names = ", ".join(sorted(have)) or "none"
        return cls(
            f'No random stream "{stream}" at path "{path}" (streams there: {names}), '
            'and no stream "params" to fall back to. Give one with '
            f"rngs={{'{stream}': jax.random.key(0)}}; inside a lifted transform, also "
            "name it in split_rngs (or rngs)."
        )


class ScopeCollectionNotFound(LinenLiftError):
    """A variable was asked for in a collection with nothing in it at that path."""

    def __init__(self, collection: str, name: str, path: str) -> None:
        super().__init__(
            f'Variable "{name}" was asked for at path "{path}" '
            f'({_at(path, name)}), but collection "{collection}" has nothing there. '
            f"Pass the collection to apply, make it mutable with "
            f"mutable=['{collection}'], or let it into the lifted transform."
        )


class ScopeParamNotFoundError(LinenLiftError):
    """A parameter does not exist and may not be created."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(
            f'Collection "params" has no parameter "{name}" at path "{path}" '
            f"({_at(path, name)}), and it is not mutable, so none can be created. "
            "Were these variables made by init of the same module, with the same "
            "fields?"
        )


class ScopeVariableNotFoundError(LinenLiftError):
    """A variable does not exist and may not be created."""

    def __init__(self, collection: str, name: str, path: str) -> None:
        super().__init__(
            f'Collection "{collection}" has no variable "{name}" at path "{path}" '
            f"({_at(path, name)}), and none can be created: the collection is not "
            "mutable, or no init_fn was given."
        )


class ScopeParamShapeError(LinenLiftError):
    """A stored parameter has another shape than its initializer makes."""

    def __init__(self, name: str, path: str, found: Any, expected: Any) -> None:
        super().__init__(
            f'Parameter "{name}" in collection "params" at path "{path}" '
            f"({_at(path, name)}) has shape {found}, but its initializer makes shape "
            f"{expected}. The variables were made for other fields or other inputs."
        )


class ModifyScopeVariableError(LinenLiftError):
    """A write into a collection that is not mutable."""

    def __init__(self, collection: str, name: str, path: str) -> None:
        super().__init__(
            f'Cannot write variable "{name}" at path "{path}" ({_at(path, name)}): '
            f'collection "{collection}" is not mutable. Call apply with '
            f"mutable=['{collection}'], and let a lifted transform return the "
            "collection (a broadcast or closed-over one is read-only inside)."
        )


class NameInUseError(LinenLiftError, ValueError):
    """Two things want one name in one scope."""

    def __init__(self, kind: str, name: str, path: str, col: str | None = None) -> None:
        among = "" if col is None else f' in collection "{col}"'
        super().__init__(
            f'Cannot create {kind} "{name}"{among} at path "{path}" '
            f"({_at(path, name)}): the name is in use there. Give one of the two another name."
        )


class InvalidScopeError(LinenLiftError):
    """A scope was used after the function that it belonged to returned."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f'The scope at path "{path}" is no longer valid: the init, apply or lifted '
            "transform that made it has returned. Return values from the function "
            "instead of keeping its scope or module."
        )


class JaxTransformError(LinenLiftError):
    """A value of a JAX transform that is not lifted would be stored outside of it."""

    def __init__(self, collection: str, name: str, path: str) -> None:
        super().__init__(
            f'Cannot store variable "{name}" in collection "{collection}" at path '
            f'"{path}" ({_at(path, name)}): its value belongs to a JAX transform that '
            "the scope was not lifted into, so a tracer would leak. Use the lifted "
            "form of the transform (linen_lift.jit, linen_lift.vmap, ...), or call "
            "init or apply inside the JAX transform."
        )


class InvalidFilterError(LinenLiftError):
    """Something that is no collection filter was given as one."""

    def __init__(self, found: Any) -> None:
        super().__init__(
            f"{found!r} is not a collection filter. Expected True, False, a name, a "
            "set, list or tuple of names, or DenyList(filter)."
        )


class ApplyScopeInvalidVariablesTypeError(LinenLiftError, TypeError):
    """The variables are not a mapping of collections."""

    def __init__(self, found: str) -> None:
        super().__init__(
            "Variables must map the names of collections to nested dicts with string "
            f"keys, for example {{'params': {{'kernel': ...}}}}; found {found}."
        )


class ApplyScopeInvalidVariablesStructureError(LinenLiftError):
    """A collection was wrapped twice."""

    def __init__(self, collection: str, keys: Iterable[str]) -> None:
        inner = ", ".join(keys)
        super().__init__(
            f'Collection "{collection}" holds one entry named "{collection}" '
            f"(path /{collection}, with: {inner}): it seems to be wrapped twice. "
            f"Pass {{'{collection}': tree}}, not "
            f"{{'{collection}': {{'{collection}': tree}}}}."
        )


class LazyInitError(LinenLiftError):
    """A variable needs the value of an argument that was given as a shape only."""

    def __init__(self, collection: str, name: str, path: str) -> None:
        super().__init__(
            f'Variable "{name}" in collection "{collection}" at path "{path}" '
            f"({_at(path, name)}) depends on the values of an argument that was given "
            "as a jax.ShapeDtypeStruct. Pass an array for it, or use init."
        )


class PartitioningUnspecifiedError(LinenLiftError):
    """An axis was added to or removed from a box without saying which."""

    def __init__(self, target: Any, path: str = "") -> None:
        place = f" at {path}" if path else ""
        super().__init__(
            f"Cannot add or remove the mapped axis of {target!r}{place}: "
            "metadata_params does not name it. Pass "
            "metadata_params={PARTITION_NAME: 'layers'} to the lifted transform."
        )


class BranchVariablesError(LinenLiftError):
    """The branches of `cond` or `switch` leave different variables behind."""

    def __init__(self, collection: str, name: str, path: str, branch: int) -> None:
        super().__init__(
            f'Branch {branch} does not leave variable "{name}" in collection '
            f'"{collection}" at path "{path}" ({_at(path, name)}) as the other '
            "branches do. Every branch must return the same variables: while "
            "initializing, run all branches once before the conditional."
        )


class BroadcastVariableError(LinenLiftError):
    """A variable that all iterations share depends on one iteration."""

    def __init__(self, collection: str, name: str, path: str) -> None:
        super().__init__(
            f'Variable "{name}" in collection "{collection}" at path "{path}" '
            f"({_at(path, name)}) is shared by all iterations of a scan, but its "
            "first value depends on the carry or on scanned data. Make it "
            "independent of them, or use variable_carry or variable_axes."
        )


class MultipleScopesError(LinenLiftError):
    """Several scopes were differentiated where one cotangent was asked for."""

    def __init__(self, paths: Iterable[str]) -> None:
        listed = ", ".join(f'"{p}"' for p in paths)
        super().__init__(
            f"The differentiated modules live in several scopes, at paths {listed}. "
            "Pass multi_scope=True to get a list with one cotangent per scope, in "
            "this order."
        )


# --- modules --------------------------------------------------------------------


class AssignSubModuleError(LinenLiftError):
    """A submodule was made where none may be made."""

    def __init__(self, child: str, module: str, path: str) -> None:
        super().__init__(
            f'Submodule {child} cannot be created here, in {module} at path "{path}". '
            "Create it in setup(), or in a method marked @compact."
        )


class DeclareVariableError(LinenLiftError, ValueError):
    """A parameter or variable was declared where none may be declared."""

    def __init__(self, kind: str, name: str, module: str, path: str) -> None:
        super().__init__(
            f'The {kind} "{name}" cannot be declared here, in {module} at path '
            f'"{path}" ({_at(path, name)}). Declare it in setup(), or in a method '
            "marked @compact."
        )


class UnboundModuleError(LinenLiftError, ValueError):
    """Something that only a bound module has was asked of another one."""

    def __init__(self, module: str, what: str) -> None:
        super().__init__(
            f"{module} has no {what} as long as it is an unbound module. Use init, "
            "apply or bind, or create the module inside another one."
        )


class PerturbationNotFoundError(LinenLiftError, ValueError):
    """Perturbations were given, but not the one that a module adds."""

    def __init__(self, collection: str, name: str, path: str) -> None:
        super().__init__(
            f'Collection "{collection}" has no perturbation "{name}" at path "{path}" '
            f"({_at(path, name)}). Pass all of them, or leave the collection out."
        )


class SetAttributeInModuleSetupError(LinenLiftError):
    """A dataclass field was assigned in `setup`."""

    def __init__(self, module: str, name: str, path: str) -> None:
        super().__init__(
            f'Field "{name}" of {module} at path "{path}" cannot be assigned in '
            "setup(): fields are fixed when the module is made. Use another "
            "attribute name, or clone(**updates)."
        )


class SetAttributeFrozenModuleError(LinenLiftError):
    """An attribute was set or deleted outside `setup`."""

    def __init__(self, module: str, name: str, path: str) -> None:
        super().__init__(
            f'Attribute "{name}" of {module} at path "{path}" cannot be set or '
            "deleted: a module is frozen outside setup(). Keep state in variables, "
            "or change fields with clone(**updates)."
        )


class MultipleMethodsCompactError(LinenLiftError):
    """Not raised: a class may mark several methods with `compact`.

    The name is kept for code that catches it.
    """


class ReservedModuleAttributeError(LinenLiftError):
    """A class declares `name` or `parent` itself."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(
            f'{module} declares a field "{name}", which every module has already. '
            'Choose another name; "name" and "parent" are added for you.'
        )


class ApplyModuleInvalidMethodError(LinenLiftError, AttributeError, TypeError):
    """`method` is not a function of a module."""

    def __init__(self, module: str, found: Any) -> None:
        super().__init__(
            f"Cannot call method={found!r} on {module}: expected the name of a method "
            "or a function that takes the module as its first argument."
        )


class CallCompactUnboundModuleError(LinenLiftError):
    """A compact method was called on a module without variables."""

    def __init__(self, module: str, method: str) -> None:
        super().__init__(
            f"Cannot call compact method {module}.{method} of an unbound module. "
            "Use init, apply or bind, or create the module inside another one."
        )


class CallSetupUnboundModuleError(LinenLiftError, AttributeError):
    """`setup` or something it defines was asked for on an unbound module.

    It is an `AttributeError` too, so that `hasattr` answers.
    """

    def __init__(self, module: str, name: str) -> None:
        super().__init__(
            f"Cannot use {module}.{name}: the module is unbound, so its setup() has "
            "not run. Use init, apply or bind, or create the module inside another."
        )


class CallUnbindOnUnboundModuleError(LinenLiftError):
    """`unbind` was called on a module that is not bound."""

    def __init__(self, module: str) -> None:
        super().__init__(
            f"Cannot unbind {module}: it has no scope. Only the result of bind, or a "
            "submodule of one, can be unbound."
        )


class CallShareScopeOnUnboundModuleError(LinenLiftError):
    """`share_scope` was called with an unbound module."""

    def __init__(self, module: str) -> None:
        super().__init__(
            f"Cannot share the scope of {module}: it is unbound. Call share_scope in "
            "setup(), after assigning the submodule, or in a compact method."
        )


class InvalidInstanceModuleError(LinenLiftError):
    """A class was used where an instance is needed."""

    def __init__(self, found: Any, method: str) -> None:
        advice = "Did you forget the parentheses, as in Dense(3).init(...)?"
        if is_flax_module(type(found)):
            advice = _OF_FLAX
        super().__init__(
            f"{method} needs a module instance, but {found!r} was given. {advice}"
        )


class IncorrectPostInitOverrideError(LinenLiftError):
    """`__post_init__` was overridden without calling the base's."""

    def __init__(self, module: str) -> None:
        super().__init__(
            f"{module} overrides __post_init__ without calling "
            "super().__post_init__(), which binds the module to its parent."
        )


class DescriptorAttributeError(LinenLiftError):
    """A property of a module raised `AttributeError`."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(
            f'Property "{name}" of {module} raised AttributeError. It is reported as '
            "another error because Python would otherwise say that the property "
            "itself is missing; the cause is shown above."
        )


# --- lifted transforms ----------------------------------------------------------


class TransformedMethodReturnValueError(LinenLiftError):
    """A transformed method returned a module or a variable."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__(
            f'The transformed function "{method}" at path "{path}" returned a module '
            "or a variable. Neither can leave a transform; return arrays, or call "
            "the method that makes modules outside of it."
        )


_OF_FLAX = (
    "That is a module of flax.linen, which has scopes of its own: wrap an instance in "
    "FlaxModule, as in FlaxModule(flax.linen.Dense(3))."
)


def is_flax_module(kind: type[Any]) -> bool:
    """Tells whether a class is a module of Flax Linen."""
    return any(base.__module__ == "flax.linen.module" for base in kind.__mro__)


def _advice(transform: str, found: Any) -> str:
    if is_flax_module(found if isinstance(found, type) else type(found)):
        return f"{_OF_FLAX} What is transformed is {transform}(FlaxModule)."
    return (
        "Transform the class and make an instance of the result: "
        f"{transform}(Dense)(3), not {transform}(Dense(3))."
    )


class TransformTargetError(LinenLiftError):
    """Something that cannot be transformed was given to a lifted transform."""

    def __init__(self, transform: str, found: Any) -> None:
        super().__init__(
            f"linen_lift.{transform} transforms a Module class, a functools.partial "
            "of one, or a function whose first argument is a module; found "
            f"{found!r}. {_advice(transform, found)}"
        )
