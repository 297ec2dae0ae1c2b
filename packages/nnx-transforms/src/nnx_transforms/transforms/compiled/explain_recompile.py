"""Why a compiled function was compiled again."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from graphcore import GraphDef, diff
from graphcore.authors import Body, Divided, key_path, path_text
from nnx_transforms.transforms.compiled.captured_reads import CapturedReads

# How many compilations in a row, for the same static values alone, are worth a warning.
MANY = 8


class Explanation(list[tuple[str, Any, Any]]):
    """What differed between a compilation and the one before: `(path, old, new)`.

    Attributes:
        is_static: Whether all of it is part of the program, beside equal arrays.

    Example:
        >>> print(Explanation([('x', 'float32[2]', 'float32[3]')]))
        x: float32[2] -> float32[3]
        >>> print(Explanation())
        nothing was compiled
    """

    is_static = False

    @classmethod
    def of_captured(cls, paths: Iterable[str]) -> Explanation:
        """Says that variables which were compiled in hold other arrays now."""
        found = cls([(path, "compiled in", "another array") for path in paths])
        found.is_static = True
        return found

    def __str__(self) -> str:
        if not self:
            return "nothing was compiled"
        return "\n".join(f"{path}: {_change(old, new)}" for path, old, new in self)


def _change(old: Any, new: Any) -> str:
    was, now = (x.__name__ if isinstance(x, type) else str(x) for x in (old, new))
    if was == now:
        return f"{now} was changed in place, or is another object that prints alike"
    return f"{was} -> {now}"


def _abstract_value(x: Any) -> str:
    """Shape and dtype of an array, as JAX writes them, and the mesh that it is on."""
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
        kept: By path the structure of each of these pytrees, and what is static in it;
            and where the roots are.
    """

    definitions: tuple[GraphDef[Any], ...]
    places: tuple[str, ...]
    values: dict[str, Any]
    kept: dict[str, Any]

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
        known: dict[str, Any] = {}
        kept: dict[str, Any] = {}

        def add(root: tuple[Any, ...], tree: Any, how: str = "") -> None:
            # No pytree is made of the texts: a class may look at what it is made of.
            whole = Divided.map(Divided.join, tree)
            # That of the whole may have what can't be compared, such as arrays.
            kept.setdefault(path_text(root), jax.tree.structure(tree))
            for path, x in jax.tree_util.tree_leaves_with_path(whole):
                where = path_text((*root, *key_path(path)))
                if isinstance(x, jax.Array | jax.core.Tracer):
                    known[where] = _abstract_value(x) + how
                else:  # where a function is traced, it is static
                    known[where] = repr(x)
                    if body is None:  # then JAX compares it, and nothing else does
                        kept[where] = x

        if body is not None:
            for position, value in enumerate(values):
                how = ", donated" if position in donated else ""
                add(body.variable_path(position), value, how)
        args, kwargs = plain
        for place, x in (*enumerate(args), *kwargs.items()):
            add(("args" if type(place) is int else "kwargs", place), x)
        if body is None:
            return cls((), (), known, kept)
        structure = body.structure
        known.update((str(name), x) for name, x in structure.statics.items())
        places = tuple(map(path_text, body.first_places))
        kept["<objects>"] = places
        return cls(structure.joint.definitions, places, known, kept)

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
        static = len(found)
        found += _unlike(before.values, self.values)
        found.is_static = 0 < static == len(found)
        # Only then: leaves tell more of trees, and of what is equal, as 1 and True in a
        # tuple, the texts may differ.
        found = found or _unlike(before.kept, self.kept)
        found = found or _unlike(_printed(before.values), _printed(self.values))
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


def _unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> Explanation:
    """What two mappings have otherwise, by path."""
    found = Explanation()
    for path in dict.fromkeys((*before, *now)):
        one, other = (x.get(path, "absent") for x in (before, now))
        if type(one) is not type(other) or one != other:
            found.append((path, one, other))
    return found


def _printed(values: Mapping[str, Any]) -> dict[str, str]:
    return {path: repr(x) for path, x in values.items()}


class Notes:
    """What a jitted function remembers of its compilations.

    Attributes:
        signature: That of the last one.
        explanation: Why the last call was compiled; None if it was not.
        count: How many calls were compiled since the cache was cleared.
        in_a_row: How many of the last ones for the same static values alone.
        captured: What was compiled in of objects that the function closes over.
        constants: The paths of arguments that it did not read as such, but so.
    """

    def __init__(self) -> None:
        self.signature: Signature | None = None
        self.explanation: Explanation | None = None
        self.count = self.in_a_row = 0
        self._before: Signature | None = None
        self._where: set[str] = set()
        self.captured = CapturedReads()
        self.constants: list[str] = []
        # Why the last one is compiled, and the next one, if it is not for its call.
        self._reason = self._next_reason = Explanation()

    def clear(self, why: Explanation | None = None) -> None:
        """Forgets the compilations.

        Args:
            why: What the next one is for.
        """
        self.signature, self.count = None, 0
        self.captured.clear()
        self._next_reason = why or Explanation()

    def take(self, signature: Signature) -> None:
        """Notes that a function is being traced.

        Args:
            signature: With what.
        """
        if jax.config.jax_disable_jit:
            return  # It just runs.
        # One call may trace more than once, and must not be compared with itself.
        is_first = self.explanation is None
        if is_first:
            self._before = self.signature
            self.count += 1
            self._reason, self._next_reason = self._next_reason, Explanation()
        self.explanation = self._reason or signature.differences(self._before)
        self.signature = signature
        if is_first:
            where = {path for path, _, _ in self.explanation}
            is_alike = self.explanation.is_static and where == self._where
            self.in_a_row = self.in_a_row + 1 if is_alike else 1
            self._where = where

    def warn(self, name: str, stacklevel: int) -> None:
        """Warns if the last call was compiled in a way that users hardly want.

        Args:
            name: What the function is called.
            stacklevel: How many frames there are to that of the call.
        """
        constants, self.constants = self.constants, []
        if constants:
            warnings.warn(
                f"{name!r} reads the caller's own variable at {constants[0]!r}, which "
                "it closes over, or finds in a static function, a weak reference or "
                "the like. So it is a constant, which has no gradient and is compiled "
                "in. Read it through the argument: a method that an object keeps, and "
                "what `nnx_transforms.remat` and the like make of one, follow it.",
                stacklevel=stacklevel + 1,
            )
        if self.explanation is None or self.in_a_row != MANY:
            return
        warnings.warn(
            f"{name!r} was compiled {MANY} times in a row for values that are part of "
            f"the program, this time for\n{self.explanation}\nStatic attributes are, "
            "and variables of an object that the function closes over. What changes "
            "from call to call, such as a step or a rate, belongs in a `Variable` of "
            "an argument, or is an argument itself.",
            stacklevel=stacklevel + 1,
        )

    def take_back(self) -> None:
        """Forgets the trace that was noted last: it is made in another way."""
        self.signature = self._before
        self.count -= 1
