"""Why a compiled function was compiled again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from graphcore.comparison import definition_differences
from graphcore.errors import path_text
from graphcore.joint import Joint
from nnx_transforms.transforms.lifting import key_path

__all__ = ["Explanation", "Signature"]


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
        return "\n".join(f"{path}: {old} -> {new}" for path, old, new in self)


def abstract_value(x: Any) -> str:
    """Shape and dtype of a leaf, as JAX writes them."""
    try:
        aval = jax.typeof(x)
    except (AttributeError, TypeError):
        return repr(x)
    text = str(aval)
    is_weak = getattr(aval, "weak_type", False) and not text.startswith("~")
    return f"~{text}" if is_weak else text


@dataclass(frozen=True)
class Signature:
    """All that a compilation depends on, without any of the objects.

    Args:
        joint: The description of the objects.
        places: The name of each root.
        values: The abstract value of each leaf of a variable, by path.
        plain: The abstract value of each leaf of the other arguments, by path.
        statics: The static arguments, by name.
    """

    joint: Joint
    places: tuple[str, ...]
    values: dict[str, str]
    plain: dict[str, str]
    statics: dict[str, Any]

    @classmethod
    def of(
        cls,
        joint: Joint,
        places: Sequence[str],
        values: Sequence[Any],
        plain: Any,
        statics: dict[str, Any],
    ) -> Signature:
        """Describes a call while it is traced.

        Args:
            joint: The description of the objects.
            places: The name of each root.
            values: The raw values of the variables.
            plain: The other arguments: `(args, kwargs)`.
            statics: The static arguments, by name.

        Returns:
            The signature.
        """
        of_values: dict[str, str] = {}
        for (number, *path), value in zip(joint.paths, values, strict=True):
            for inner, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
                where = path_text((places[number], *path, *key_path(inner)))
                of_values[where] = abstract_value(leaf)
        of_plain = {
            path_text(("args" if p[0].idx == 0 else "kwargs", *key_path(p[1:]))): (
                abstract_value(leaf)
            )
            for p, leaf in jax.tree_util.tree_flatten_with_path(plain)[0]
        }
        return cls(joint, tuple(places), of_values, of_plain, statics)

    def differences(self, before: Signature | None) -> Explanation:
        """Compares with the signature of an earlier compilation.

        Args:
            before: The earlier signature; None if there was none.

        Returns:
            What differs.
        """
        if before is None:
            return Explanation([("<call>", "never compiled", "first call")])
        found = Explanation()
        one, two = before.joint.definitions, self.joint.definitions
        if len(one) != len(two):
            found.append(("<objects>", len(one), len(two)))
        for place, a, b in zip(self.places, one, two, strict=False):
            if a != b:
                for d in definition_differences(a, b):
                    old = "absent" if d.kind == "extra" else d.old
                    new = "absent" if d.kind == "missing" else d.new
                    found.append((path_text((place, *d.path)), old, new))
        for old, new in (
            (before.values, self.values),
            (before.plain, self.plain),
            (before.statics, self.statics),
        ):
            for path in dict.fromkeys((*old, *new)):
                was, now = old.get(path, "absent"), new.get(path, "absent")
                if type(was) is not type(now) or was != now:
                    found.append((path, was, now))
        return found or Explanation([("<configuration>", "other", "JAX settings")])
