"""Why a compiled function was compiled again."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from graphcore import GraphDef, diff
from graphcore.authors import Body, Divided, key_path, path_text


class Explanation(list[tuple[str, Any, Any]]):
    """What differed between a compilation and the one before: `(path, old, new)`.

    Example:
        >>> print(Explanation([('x', 'float32[2]', 'float32[3]')]))
        x: float32[2] -> float32[3]
        >>> print(Explanation())
        nothing was compiled
    """

    def __str__(self) -> str:
        if not self:
            return "nothing was compiled"
        return "\n".join(f"{path}: {_change(old, new)}" for path, old, new in self)


def _change(old: Any, new: Any) -> str:
    was, now = (x.__name__ if isinstance(x, type) else str(x) for x in (old, new))
    if was == now:
        return f"{now} was changed in place, or is another object that prints alike"
    return f"{was} -> {now}"


def abstract_value(x: Any) -> str:
    """Shape and dtype of an array, as JAX writes them, and the mesh that it is on.

    What is no array, where a function is traced, is static.
    """
    if not isinstance(x, jax.Array | jax.core.Tracer):
        return repr(x)
    aval = jax.typeof(x)
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    where = "" if mesh is None or mesh.empty else f" on {dict(mesh.shape)}"
    return f"{aval}{where}"


@dataclass(frozen=True)
class Signature:
    """All that a compilation depends on, without any of the objects.

    Args:
        definitions: The definition of each root.
        places: The path of each root.
        values: By path the abstract value of each leaf of a variable, and whether it is
            donated; that of each leaf of the other arguments; and, by name, the static
            arguments.
    """

    definitions: tuple[GraphDef[Any], ...]
    places: tuple[str, ...]
    values: dict[str, Any]

    @classmethod
    def of(
        cls, body: Body | None, plain: Any, values: Any, donated: Container[int] = ()
    ) -> Signature:
        """Describes a call while it is traced.

        Args:
            body: The function; None if there are no objects.
            plain: The other arguments: `(args, kwargs)`.
            values: The raw values of the variables, in order of index.
            donated: The indices of those that are donated.

        Returns:
            The signature.
        """
        of_plain = {
            path_text(("args" if p[0].idx == 0 else "kwargs", *key_path(p[1:]))): text
            for p, text in _texts(plain)
        }
        if body is None:
            return cls((), (), of_plain)
        of_values: dict[str, str] = {}
        for position, value in enumerate(values):
            how = ", donated" if position in donated else ""
            for inner, text in _texts(value):
                where = path_text((*body.variable_path(position), *key_path(inner)))
                of_values[where] = text + how
        structure = body.structure
        statics = {str(name): value for name, value in structure.statics.items()}
        places = tuple(map(path_text, body.first_places))
        known = {**of_values, **of_plain, **statics}
        return cls(structure.joint.definitions, places, known)

    def differences(self, before: Signature | None) -> Explanation:
        """Compares with the signature of an earlier compilation.

        Args:
            before: The earlier signature; None if there was none.

        Returns:
            What differs.
        """
        if before is None:
            return Explanation([("<call>", "never compiled", "first call")])
        found = of_structure(self.places, before.definitions, self.definitions)
        for path in dict.fromkeys((*before.values, *self.values)):
            was, now = (x.values.get(path, "absent") for x in (before, self))
            if type(was) is not type(now) or was != now:
                found.append((path, was, now))
        return found or Explanation([("<settings of JAX>", "those before", "others")])


def of_structure(
    places: Sequence[str], before: Sequence[Any], now: Sequence[Any]
) -> Explanation:
    """What differs between the definitions of objects.

    Args:
        places: The path of each object.
        before: The definitions of the earlier ones.
        now: Those of these.

    Returns:
        What differs.
    """
    found = Explanation()
    if len(before) != len(now):
        found.append(("<objects>", len(before), len(now)))
    for place, a, b in zip(places, before, now, strict=False):
        if a != b:
            for d in diff(a, b):
                old = "absent" if d.kind == "extra" else d.old
                new = "absent" if d.kind == "missing" else d.new
                found.append((path_text((place, *d.path)), old, new))
    return found


def _texts(tree: Any) -> list[tuple[Any, str]]:
    """What the leaves of a pytree are, with their paths; what is static in it by value.

    No pytree is made of the texts: a class may look at what it is made of.
    """
    whole = Divided.map(Divided.join, tree)
    leaves = jax.tree_util.tree_flatten_with_path(whole)[0]
    return [(path, abstract_value(x)) for path, x in leaves]


class Notes:
    """What a jitted function remembers of its compilations.

    Attributes:
        signature: That of the last one.
        explanation: Why the last call was compiled; None if it was not.
        count: How many calls were compiled since the cache was cleared.
    """

    def __init__(self) -> None:
        self.signature: Signature | None = None
        self.explanation: Explanation | None = None
        self.count = 0
        self._before: Signature | None = None

    def take(self, signature: Signature) -> None:
        """Notes that a function is being traced.

        Args:
            signature: With what.
        """
        if jax.config.jax_disable_jit:
            return  # It just runs.
        # One call may trace more than once, and must not be compared with itself.
        if self.explanation is None:
            self._before = self.signature
            self.count += 1
        self.explanation = signature.differences(self._before)
        self.signature = signature

    def take_back(self) -> None:
        """Forgets the trace that was noted last: it is made in another way."""
        self.signature = self._before
        self.count -= 1
