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

    # What a subclass says, with places for the facts; its lines are one.
    text = ""

    def __init__(self, *facts: Any, **named: Any) -> None:
        if self.text:
            facts = (" ".join(self.text.split()).format(*facts, **named),)
        super().__init__(*facts)

    def __reduce__(self) -> Any:
        # The facts are in the message already: it is not to be worded again.
        return type(self).__new__, (type(self), *self.args), vars(self)


class _VariableError(LinenLiftError):
    """An error about one variable: `text` says what is wrong with it."""

    def __init__(self, collection: str, name: str, path: str, **facts: Any) -> None:
        at = f'at path "{path}" ({path.rstrip("/")}/{name})'
        super().__init__(col=collection, name=name, at=at, **facts)


# --- scopes ---------------------------------------------------------------------


class InvalidRngError(LinenLiftError, ValueError):
    """A random stream is missing, or is not a key."""

    @classmethod
    def missing(cls, stream: str, path: str, have: Iterable[str]) -> InvalidRngError:
        """The error for a draw from a stream that the scope does not have."""
        names = ", ".join(sorted(have)) or "none"
        instead = ', and no stream "params" to fall back to'
        if stream == "params":
            instead = ""
        return cls(
            f'No random stream "{stream}" at path "{path}" (streams there: {names})'
            f"{instead}. Give one with rngs={{'{stream}': jax.random.key(0)}}; inside "
            "a lifted transform, also name it in split_rngs (or rngs)."
        )


class ScopeCollectionNotFound(_VariableError):
    """A variable was asked for in a collection with nothing in it at that path."""

    text = """Variable "{name}" was asked for {at}, but collection "{col}" has nothing
    there (collections with something: {have}). Pass the collection to apply, as in
    {{'{col}': ...}}, make it mutable with mutable=['{col}'], or let it into the lifted
    transform."""

    def __init__(
        self, collection: str, name: str, path: str, have: str = "unknown"
    ) -> None:
        super().__init__(collection, name, path, have=have)


class ScopeParamNotFoundError(_VariableError):
    """A parameter does not exist and may not be created."""

    text = """Collection "params" has no parameter "{name}" {at}, and it is not mutable,
    so none can be created. Were these variables made by init of the same module, with
    the same fields?"""


class ScopeVariableNotFoundError(_VariableError):
    """A variable does not exist and may not be created."""

    text = """Collection "{col}" has no variable "{name}" {at}, and none can be created:
    the collection is not mutable, or no init_fn was given."""


class ScopeParamShapeError(_VariableError):
    """A stored parameter has another shape than its initializer makes."""

    text = """Parameter "{name}" in collection "params" {at} has shape {found}, but its
    initializer makes shape {expected}. The variables were made for other fields or
    other inputs."""


class ModifyScopeVariableError(_VariableError):
    """A write into a collection that is not mutable."""

    text = """Cannot write variable "{name}" {at}: collection "{col}" is not mutable.
    Call apply with mutable=['{col}'], and let a lifted transform return the collection
    (a broadcast or closed-over one is read-only inside)."""


class NameInUseError(_VariableError, ValueError):
    """Two things want one name in one scope."""

    text = """Cannot create {kind} "{name}"{among} {at}: the name is in use there. Give
    one of the two another name."""

    def __init__(self, kind: str, name: str, path: str, col: str | None = None) -> None:
        among = "" if col is None else f' in collection "{col}"'
        super().__init__("", name, path, kind=kind, among=among)


class InvalidScopeError(LinenLiftError):
    """A scope was used after the function that it belonged to returned."""

    text = """The scope at path "{0}" is no longer valid: the init, apply or lifted
    transform that made it has returned. Return values from the function instead of
    keeping its scope or module."""


class JaxTransformError(_VariableError):
    """A value of a JAX transform that is not lifted would be stored outside of it."""

    text = """Cannot store variable "{name}" in collection "{col}" {at}: its value
    belongs to a JAX transform that the scope was not lifted into, so a tracer would
    leak. Use the lifted form of the transform (linen_lift.jit, linen_lift.vmap, ...),
    or call init or apply inside the JAX transform."""


class InvalidFilterError(LinenLiftError):
    """Something that is no collection filter was given as one."""

    text = """{0!r} is not a collection filter. Expected True, False, a name, a set,
    list or tuple of names, or DenyList(filter)."""


class ApplyScopeInvalidVariablesTypeError(LinenLiftError, TypeError):
    """The variables are not a mapping of collections."""

    text = """Variables must map the names of collections to nested dicts with string
    keys, for example {{'params': {{'kernel': ...}}}}; found {0}."""


class ApplyScopeInvalidVariablesStructureError(LinenLiftError):
    """A collection was wrapped twice."""

    text = """Collection "{0}" holds one entry named "{0}" (path /{0}, with{1}): it
    seems to be wrapped twice. Pass {{'{0}': tree}}, not {{'{0}': {{'{0}': tree}}}}."""


class LazyInitError(_VariableError):
    """A variable needs the value of an argument that was given as a shape only."""

    text = """Variable "{name}" in collection "{col}" {at} depends on the values of an
    argument that was given as a jax.ShapeDtypeStruct. Pass an array for it, or use
    init."""


class PartitioningUnspecifiedError(LinenLiftError):
    """An axis was added to or removed from a box without saying which."""

    text = """Cannot add or remove the mapped axis of {0!r}: metadata_params does not
    name it. Pass metadata_params={{PARTITION_NAME: 'layers'}} to the lifted
    transform."""


class BranchVariablesError(_VariableError):
    """The branches of `cond` or `switch` leave different variables behind."""

    text = """Branch {branch} does not leave variable "{name}" in collection "{col}"
    {at} as the other branches do. Every branch must return the same variables:
    {advice}."""

    def __init__(
        self,
        collection: str,
        name: str,
        path: str,
        branch: int = 0,
        initializing: bool = True,
    ) -> None:
        advice = "while initializing, run all branches once before the conditional"
        if not initializing:
            advice = (
                "declare, sow or capture it in all of them, or leave the collection "
                "out of mutable of apply, or of variables= of the conditional"
            )
        super().__init__(collection, name, path, branch=branch, advice=advice)


class BroadcastVariableError(_VariableError):
    """A variable that all iterations share depends on one iteration."""

    text = """Variable "{name}" in collection "{col}" {at} is shared by all iterations
    of a scan, but its first value depends on the carry{split} or on scanned data. Make
    it independent of them, or use variable_carry or variable_axes."""

    def __init__(
        self, collection: str, name: str, path: str, split: Iterable[str] = ()
    ) -> None:
        streams = ", ".join(f'"{stream}"' for stream in sorted(split))
        also = f", on a random stream that split_rngs splits ({streams})"
        super().__init__(collection, name, path, split=also if streams else "")


class SharedVariableError(_VariableError, ValueError):
    """A variable that all instances share came out with a value for each."""

    text = """Variable "{name}" in collection "{col}" {at} is shared by all instances of
    a vmap (axis None), but came out with a value for each. Give its collection an axis
    in variable_axes, or make the values equal: by jax.lax.pmean over an axis_name, or,
    where they are drawn, from a stream that split_rngs does not split."""


class CarriedVariableError(_VariableError, TypeError):
    """A loop creates a variable that has no value before it."""

    text = """Variable "{name}" in collection "{col}" {at} is created by the body of a
    {loop} that carries its collection: {reason}. Declare it before the loop."""


class VariableAxisError(_VariableError, IndexError, ValueError):
    """A variable has not the axis that its collection is mapped over."""

    text = """Variable "{name}" in collection "{col}" {at} has no axis {axis} to be
    mapped over: it has {ndim} of them, the mapped one included. Name another axis for
    the collection in variable_axes (0 fits every variable), or keep the variable in
    another collection."""


class MultipleScopesError(LinenLiftError):
    """Several scopes were differentiated where one cotangent was asked for."""

    text = """The differentiated modules live in several scopes, at paths {0}. Pass
    multi_scope=True to get a list with one cotangent per scope, in this order."""


# --- modules --------------------------------------------------------------------


class AssignSubModuleError(LinenLiftError):
    """A submodule was made where none may be made."""

    text = """Submodule {0} cannot be created here, in {1} at path "{2}". Create it in
    setup(), or in a method marked @compact."""


class DeclareVariableError(_VariableError, ValueError):
    """A parameter or variable was declared where none may be declared."""

    text = """The {kind} "{name}" cannot be declared here, in {module} {at}. Declare it
    in setup(), or in a method marked @compact{but}."""


class UnboundModuleError(LinenLiftError, ValueError):
    """Something that only a bound module has was asked of another one."""

    text = """{0} has no {1} as long as it is an unbound module. Use init, apply or
    bind, or create the module inside another one."""


class PerturbationNotFoundError(_VariableError, ValueError):
    """Perturbations were given, but not the one that a module adds."""

    text = """Collection "{col}" has no perturbation "{name}" {at}. Pass all of them, or
    leave the collection out."""


class SetAttributeInModuleSetupError(LinenLiftError):
    """A dataclass field was assigned in `setup`."""

    text = """Field "{1}" of {0} at path "{2}" cannot be assigned in setup(): fields are
    fixed when the module is made. Use another attribute name, or clone(**updates)."""


class SetAttributeFrozenModuleError(LinenLiftError):
    """An attribute was set or deleted outside `setup`."""

    text = """Attribute "{1}" of {0} at path "{2}" cannot be set or deleted: a module is
    frozen outside setup(). Keep state in variables, or change fields with
    clone(**updates)."""


class MultipleMethodsCompactError(LinenLiftError):
    """Not raised: a class may mark several methods with `compact`.

    The name is kept for code that catches it.
    """


class ReservedModuleAttributeError(LinenLiftError):
    """A class declares `name` or `parent` itself."""

    text = """{0} declares a field "{1}", which every module has already. Choose another
    name; "name" and "parent" are added for you."""


class ApplyModuleInvalidMethodError(LinenLiftError, AttributeError, TypeError):
    """`method` is not a function of a module."""

    text = """Cannot call method={1!r} on {0}: expected the name of a method or a
    function that takes the module as its first argument."""


class CallCompactUnboundModuleError(LinenLiftError):
    """A compact method was called on a module without variables."""

    text = """Cannot call compact method {0}.{1} of an unbound module. Use init, apply
    or bind, or create the module inside another one."""


class CallSetupUnboundModuleError(LinenLiftError, AttributeError):
    """`setup` or something it defines was asked for on an unbound module.

    It is an `AttributeError` too, so that `hasattr` answers.
    """

    text = """Cannot use {0}.{1}: the module is unbound, so its setup() has not run. Use
    init, apply or bind, or create the module inside another."""


class CallUnbindOnUnboundModuleError(LinenLiftError):
    """`unbind` was called on a module that is not bound."""

    text = """Cannot unbind {0}: it has no scope. Only the result of bind, or a
    submodule of one, can be unbound."""


class CallShareScopeOnUnboundModuleError(LinenLiftError):
    """`share_scope` was called with an unbound module."""

    text = """Cannot share the scope of {0}: it is unbound. Call share_scope in setup(),
    after assigning the submodule, or in a compact method."""


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

    text = """{0} has an __init__ or __post_init__ of its own that does not call
    super().__post_init__(), which binds the module to its parent, or does not take the
    fields that all modules have, parent and name. Instead of an __init__, declare what
    it takes as fields, as in `features: int`."""


class DescriptorAttributeError(LinenLiftError):
    """A property of a module raised `AttributeError`."""

    text = """Property "{1}" of {0} raised AttributeError. It is reported as another
    error because Python would otherwise say that the property itself is missing; the
    cause is shown above."""


# --- lifted transforms ----------------------------------------------------------


class TransformedMethodReturnValueError(LinenLiftError):
    """A transformed method returned a module or a variable."""

    text = """The transformed function "{0}" at path "{1}" returned a module or a
    variable. Neither can leave a transform; return arrays, or call the method that
    makes modules outside of it."""


_OF_FLAX = (
    "That is a module of flax.linen, which has scopes of its own: wrap an instance in "
    "FlaxModule, as in FlaxModule(flax.linen.Dense(3))."
)


def is_flax_module(kind: type[Any]) -> bool:
    """Tells whether a class is a module of Flax Linen."""
    return any(base.__module__ == "flax.linen.module" for base in kind.__mro__)


def explain_flax(error: BaseException) -> None:
    """Adds the way out to Flax's error about a module that nothing of Flax binds.

    Args:
        error: what a method raised.
    """
    kind, known = type(error), getattr(error, "__notes__", ())
    name = f"{kind.__module__}.{kind.__name__}"
    if name == "flax.errors.CallCompactUnboundModuleError" and _OF_FLAX not in known:
        error.add_note(_OF_FLAX)


class TransformTargetError(LinenLiftError):
    """Something that cannot be transformed was given to a lifted transform."""

    def __init__(self, transform: str, found: Any) -> None:
        advice = (
            "Transform the class and make an instance of the result: "
            f"{transform}(Dense)(3), not {transform}(Dense(3))."
        )
        if is_flax_module(found if isinstance(found, type) else type(found)):
            advice = f"{_OF_FLAX} What is transformed is {transform}(FlaxModule)."
        super().__init__(
            f"linen_lift.{transform} transforms a Module class, a functools.partial "
            "of one, or a function whose first argument is a module; found "
            f"{found!r}. {advice}"
        )
