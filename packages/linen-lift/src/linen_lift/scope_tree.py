"""Scopes: positions in a tree of named collections of variables.

A *variable* lives in a *collection* (`params`, `batch_stats`, ...), under a path of
names. A `Scope` stands at one path and sees all collections there. It reads and, where
a collection is *mutable*, writes variables, draws keys from random streams, and opens
child scopes. `init` and `apply` turn a function of a scope into a pure function of
variables.

All scopes of one tree share a `Tree`, which holds the nested dicts, what is mutable,
and the trace that was running when it was made. A lifted transform
(`linen_lift.lift`) makes a new tree inside the JAX transform, at the same path; a
scope that is used under another trace than its tree's is refused. References point
one way, from a scope to its parent and its tree: what a call leaves behind is freed
when the last reference to it goes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax

from graphcore.authors import UNSET

from . import errors
from .filters import CollectionFilter, in_filter
from .frozen_dict import FrozenDict, unfreeze
from .metadata import unbox as without_boxes
from .rng import ROOT, DrawCounts, Origin, Path, checked_rngs, draw_key
from .scope_variable import Variable
from .shapes import initial_shapes
from .tree import MISSING, Tree


class Scope:
    """A position in a tree of variables.

    Args:
        variables: `{collection: nested dict}`; for a scope without a parent.
        rngs: root keys of the random streams by name.
        name: the last name of the path.
        mutable: which collections may be written.
        parent: the scope that this one is in; its variables are used.
        path: the names from the root.
        debug_path: the path with the lifted transforms on the way.
        flags: values for `get_flag`, seen by all scopes below.

    Example:
        >>> import linen_lift as nn, jax.numpy as jnp
        >>> scope = nn.scope.Scope({'params': {'dense': {'bias': jnp.ones(2)}}})
        >>> scope.push('dense').get_variable('params', 'bias').tolist()
        [1.0, 1.0]
    """

    def __init__(
        self,
        variables: Mapping[str, Any],
        rngs: Any = None,
        name: str | None = None,
        mutable: CollectionFilter = False,
        parent: Scope | None = None,
        path: Iterable[str] = (),
        debug_path: Iterable[str] = (),
        flags: Mapping[Any, Any] | None = None,
    ) -> None:
        if parent is None:
            self.path: Path = tuple(path)
            self.debug_path: Path = tuple(debug_path) or self.path
            given = _writable(variables, mutable), checked_rngs(rngs), mutable
            self._tree = Tree(*given, dict(flags or {}), len(self.path))
            self._counts: DrawCounts = ChainMap()
        elif variables:
            raise ValueError(
                "A scope with a parent uses the parent's variables; pass {}."
            )
        elif name is None:
            raise ValueError("A scope with a parent needs a name.")
        else:
            self.path = (*parent.path, name)
            self.debug_path = (*parent.debug_path, name)
            self._tree = parent._tree
            self._counts = parent._counts
        self.parent = parent
        self.name = name
        self._valid = True
        self._free_names()

    def _free_names(self) -> None:
        # What `reserve` took; and in which order what it took for the time of one call
        # of a compact method. What fields and setup of a module take is for good.
        self._reserved: dict[str, tuple[str | None, ...]] = {}
        self._log: list[tuple[str, str | None]] = []
        # How many submodules of each class were named in this call.
        self._numbers: dict[str, int] = {}
        # Names of the same place outside of a lifted transform. Inside, they may be
        # declared again, for what they stand for, but are not given to anything new.
        self._outside: frozenset[str] = frozenset()
        # Names of modules that came into a lifted transform together with this one.
        self._passed: frozenset[str] = frozenset()

    def _reopen(
        self,
        variables: Mapping[str, Any],
        rngs: Mapping[str, Any],
        mutable: CollectionFilter,
        label: str,
        offset: Any = None,
    ) -> Scope:
        """A root at this scope's path, for the inside of a lifted transform."""
        outer = self._tree
        origin = outer.origin if offset is None else Origin(self.path, offset)
        below = outer.flags, len(self.path), variables, origin
        new = self.rewound()
        new.parent = None
        new._tree = Tree(_writable(variables, mutable), dict(rngs), mutable, *below)
        new._counts = self._counts.new_child()
        *above, here = self.debug_path or ("",)
        new.debug_path = (*above, f"{label}({here})")
        new._outside, new._numbers = self._names(), dict(self._numbers)
        return new

    def _hollow(self, label: str) -> Scope:
        """The same place with nothing in it that could be a tracer."""
        new = self._reopen({}, {}, self.mutable, label)
        new._tree.origin = ROOT
        # What happens outside afterwards must not change what a later trace draws.
        new._counts = ChainMap(dict(self._counts))
        return new

    # --- where it is ------------------------------------------------------------

    @property
    def root(self) -> Scope:
        """The scope at the top of the tree."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    @property
    def rngs(self) -> dict[str, Any]:
        """The root keys of the random streams by name."""
        return self._tree.rngs

    @property
    def mutable(self) -> CollectionFilter:
        """Which collections may be written."""
        return self._tree.mutable

    @property
    def flags(self) -> Mapping[Any, Any]:
        """The values that `get_flag` gives."""
        return self._tree.flags

    @property
    def path_text(self) -> str:
        """The path as text, with a leading slash."""
        return "/" + "/".join(self.path)

    def __repr__(self) -> str:
        return f"Scope(/{'/'.join(self.debug_path)})"

    def __eq__(self, other: object) -> bool:
        # Two scopes are the same place if they read and write the same variables.
        if not isinstance(other, Scope):
            return NotImplemented
        return self._tree is other._tree and self.path == other.path

    def __hash__(self) -> int:
        return hash((id(self._tree), self.path))

    def has_flag(self, key: Any) -> bool:
        """Whether a flag is set.

        Args:
            key: the flag.
        """
        return key in self.flags

    def get_flag(self, key: Any, default: Any = UNSET) -> Any:
        """The value of a flag.

        Args:
            key: the flag.
            default: what to return if it is not set.

        Raises:
            KeyError: if it is not set and no default is given.
        """
        if key not in self.flags and default is UNSET:
            raise KeyError(f"Flag {key!r} is not set in the scope {self.path_text}.")
        return self.flags.get(key, default)

    # --- validity ---------------------------------------------------------------

    def invalidate(self) -> None:
        """Refuses every later use of this scope and, for a root, of all below."""
        self._valid = False
        if self.parent is None:
            self._tree.lifetime.over = True

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Scope]:
        """A context manager that invalidates the scope at its end."""
        try:
            yield self
        finally:
            self.invalidate()

    def _check_valid(self) -> None:
        if not self._valid or self._tree.lifetime.over:
            raise errors.InvalidScopeError(self.path_text)

    # --- names ------------------------------------------------------------------

    def name_reserved(self, name: str, col: str | None = None) -> bool:
        """Whether `reserve(name, col)` would fail.

        Args:
            name: a name.
            col: the collection of a variable; None for a child scope.
        """
        taken = self._reserved.get(name, ())
        clash = taken if col is None else {*taken} & {col, None}
        return bool(clash) or name in self._passed

    def reserve(self, name: str, col: str | None = None) -> None:
        """Takes a name, so that nothing else can have it.

        Variables of different collections may share a name; a child scope shares
        its name with nothing. Inside of a lifted transform, what was declared outside
        can be declared once more, and is the same.

        Args:
            name: the name.
            col: the collection of a variable; None for a child scope.

        Raises:
            NameInUseError: if the name is taken.
        """
        if not isinstance(name, str):
            raise TypeError(f"A name must be a string, found {name!r}.")
        if self.name_reserved(name, col):
            kind = "submodule" if col is None else "variable"
            raise errors.NameInUseError(kind, name, self.path_text, col)
        self._reserved[name] = (*self._reserved.get(name, ()), col)
        self._log.append((name, col))

    def _free(self, names: Iterable[tuple[str, str | None]] | None = None) -> None:
        """Gives up names that were taken for the time of a call: some, or all."""
        if names is None:
            names, self._log = self._log, []
        for name, col in names:
            rest = tuple(c for c in self._reserved.pop(name, ()) if c != col)
            if rest:
                self._reserved[name] = rest

    def default_name(self, prefix: str) -> str:
        """The first free name among prefix + '0', prefix + '1', ...

        Args:
            prefix: how the name starts.
        """
        i = 0
        while self.name_reserved(f"{prefix}{i}") or f"{prefix}{i}" in self._outside:
            i += 1
        return f"{prefix}{i}"

    def _names(self) -> frozenset[str]:
        """All names that something has here."""
        return self._outside.union(self._reserved)

    def push(
        self, name: str | None = None, prefix: str = "", reuse: bool = False
    ) -> Scope:
        """Opens a child scope.

        Args:
            name: its name; None for a default one.
            prefix: how a default name starts.
            reuse: whether the name may be in use already.

        Returns:
            The child.

        Raises:
            NameInUseError: if the name is taken and `reuse` is False.
        """
        self._check_valid()
        if name is None:
            name = self.default_name(prefix)
            # What was compiled before the name was taken is not for calls after that.
            # Marked, so that it is no class of modules that is counted.
            self._numbers[f"/{prefix}"] = self._numbers.get(f"/{prefix}", 0) + 1
        if not (reuse and self.name_reserved(name)):
            self.reserve(name)
        return Scope({}, name=name, parent=self)

    def child(
        self,
        fn: Callable[..., Any],
        name: str | None = None,
        prefix: str | None = None,
        named_call: bool = True,
        **partial_kwargs: Any,
    ) -> Callable[..., Any]:
        """Binds a function of a scope to a child scope.

        Each call of the result uses the same variables.

        Args:
            fn: a function whose first argument is a scope.
            name: the child's name; None for a default one.
            prefix: how a default name starts; None for the function's name.
            named_call: whether the operations of `fn` carry the name in profiles.
            **partial_kwargs: keyword arguments for every call.

        Returns:
            `fn` without its first argument.
        """
        if prefix is None:
            prefix = f"{fn.__name__}_" if hasattr(fn, "__name__") else ""
        scope = self.push(name, prefix)
        label = scope.path[-1]

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            named = jax.named_scope(label) if named_call else contextlib.nullcontext()
            with named:
                return fn(scope.rewound(), *args, **{**partial_kwargs, **kwargs})

        return wrapper

    def rewound(self, rewind_rngs: bool = False) -> Scope:
        """The same place, with all names free again.

        Args:
            rewind_rngs: whether streams start over as well.

        Returns:
            A scope with the same variables.
        """
        self._check_valid()
        new = copy.copy(self)
        new._free_names()
        if rewind_rngs:
            new._counts = ChainMap()
        return new

    # --- random streams ---------------------------------------------------------

    def has_rng(self, name: str) -> bool:
        """Whether a stream was given under this name.

        Args:
            name: the name of a stream.
        """
        return name in self.rngs

    def make_rng(self, name: str = "params") -> jax.Array:
        """Draws a key.

        The key depends on the root key of the stream, on the path of this scope and
        on how many keys of the stream were drawn here before.

        Args:
            name: the name of a stream. `params` is used if it was not given.

        Returns:
            A key that no other draw returns.

        Raises:
            InvalidRngError: if neither the stream nor `params` was given.
        """
        return self._draw(name)()

    def _draw(self, name: str) -> Callable[[], jax.Array]:
        """Counts a draw; gives what makes its key, in whichever trace it is called."""
        self._check_valid()
        rngs = self.rngs
        if name not in rngs:
            if "params" not in rngs:
                raise errors.InvalidRngError.missing(name, self.path_text, rngs)
            name = "params"
        place = (self.path, name)
        count = self._counts.get(place, 0)
        self._counts[place] = count + 1
        origin = self._tree.origin
        return functools.partial(draw_key, rngs[name], self.path, count, origin)

    # --- variables --------------------------------------------------------------

    def _lookup(self, col: str, name: str) -> Any:
        """What is stored here, or `MISSING`."""
        self._check_valid()
        tree = self._tree
        if tree.pending:
            tree.settle()
            if make := tree.pending.get((col, self.path, name)):
                return make()
        return tree.find(col, self.path, name)

    def _create(self, col: str, name: str, make: Callable[[], Any]) -> Any:
        """Stores the first value of a variable, once that is possible."""
        value, tree = make(), self._tree
        if tree.leaks(value):
            tree.pending[col, self.path, name] = make
        else:
            self.put_variable(col, name, value)
        return value

    def _lacks(self, col: str, name: str, error: Any) -> Any:
        """The error for a variable that is not there: perhaps nothing is."""
        if self.is_collection_empty(col):
            error = errors.ScopeCollectionNotFound
        known = {*self._tree.variables, *(col for col, _, _ in self._tree.pending)}
        have = ", ".join(x for x in sorted(known) if not self.is_collection_empty(x))
        return error(col, name, self.path_text, have=have or "none")

    def is_mutable_collection(self, col: str) -> bool:
        """Whether a collection may be written.

        Args:
            col: its name.
        """
        return in_filter(self._tree.mutable, col)

    def is_collection_empty(self, col: str) -> bool:
        """Whether a collection has nothing, here or elsewhere in the tree.

        Args:
            col: its name.
        """
        return not (self._tree.variables.get(col) or self._tree.awaits(col))

    def has_collection(self, col: str) -> bool:
        """Whether a collection was given or made, empty or not.

        Args:
            col: its name.
        """
        return col in self._tree.variables or self._tree.awaits(col)

    def has_variable(self, col: str, name: str) -> bool:
        """Whether a variable exists here.

        Args:
            col: its collection.
            name: its name.
        """
        return self._lookup(col, name) is not MISSING

    def get_variable(self, col: str, name: str, default: Any = None) -> Any:
        """The value of a variable, in its box if it has one.

        Args:
            col: its collection.
            name: its name.
            default: what to return if it does not exist.
        """
        value = self._lookup(col, name)
        return default if value is MISSING else value

    def put_variable(self, col: str, name: str, value: Any) -> None:
        """Stores a value.

        Args:
            col: the collection, which must be mutable.
            name: the name of the variable; created if need be.
            value: a pytree. The entries of a dict join those of one that is there.

        Raises:
            ModifyScopeVariableError: if the collection is not mutable.
            JaxTransformError: inside a JAX transform that is not lifted, if the value
                belongs to it: if it depends on what the transform passed in or, in
                `jax.jit` and its like, is an array that was made there.
        """
        self._check_valid()
        if not self.is_mutable_collection(col):
            raise errors.ModifyScopeVariableError(col, name, self.path_text)
        tree = self._tree
        if tree.leaks(value):
            raise errors.JaxTransformError(col, name, self.path_text)
        tree.forget(col, (*self.path, name), value)
        tree.put(col, self.path, name, value)

    def variable(
        self,
        /,
        col: str,
        name: str,
        init_fn: Callable[..., Any] | None = None,
        *init_args: Any,
        unbox: bool = True,
        **init_kwargs: Any,
    ) -> Variable[Any]:
        """Declares a variable, and creates it if it does not exist.

        Args:
            col: its collection.
            name: its name; unique among the collection's here.
            init_fn: makes the first value.
            *init_args: arguments of `init_fn`.
            unbox: whether `value` looks through axis metadata.
            **init_kwargs: keyword arguments of `init_fn`.

        Returns:
            The variable.

        Raises:
            NameInUseError: if the name is taken.
            ScopeCollectionNotFound: if it does not exist, nor its collection, and it
                cannot be created.
            ScopeVariableNotFoundError: if it does not exist and cannot be created.
        """
        found = self._lookup(col, name)
        self.reserve(name, col)
        if found is MISSING:
            if init_fn is None or not self.is_mutable_collection(col):
                raise self._lacks(col, name, errors.ScopeVariableNotFoundError)
            make = functools.partial(init_fn, *init_args, **init_kwargs)
            self._create(col, name, make)
        return Variable(self, col, name, unbox)

    def param(
        self,
        /,
        name: str,
        init_fn: Callable[..., Any],
        *init_args: Any,
        unbox: bool = True,
        **init_kwargs: Any,
    ) -> Any:
        """Declares a parameter and returns its value.

        Args:
            name: its name; unique among the parameters here.
            init_fn: makes the first value from a key and the other arguments.
            *init_args: arguments of `init_fn` after the key.
            unbox: whether to return the value without its axis metadata.
            **init_kwargs: keyword arguments of `init_fn`.

        Returns:
            The value.

        Raises:
            NameInUseError: if the name is taken.
            ScopeCollectionNotFound: if there are no parameters here and none can be
                created.
            ScopeParamNotFoundError: if the parameter does not exist and cannot be
                created.
            ScopeParamShapeError: if it has another shape than `init_fn` makes.
        """
        value = self._lookup("params", name)
        self.reserve(name, "params")
        if value is MISSING:
            if not self.is_mutable_collection("params"):
                raise self._lacks("params", name, errors.ScopeParamNotFoundError)
            draw = self._draw("params")
            value = self._create(
                "params", name, lambda: init_fn(draw(), *init_args, **init_kwargs)
            )
        else:
            found = tuple(map(jax.numpy.shape, jax.tree.leaves(value)))
            key = self.rngs.get("params")
            expected = initial_shapes(init_fn, key, init_args, init_kwargs, found)
            if found != expected:
                facts = {"found": _one(found), "expected": _one(expected)}
                error = errors.ScopeParamShapeError
                raise error("params", name, self.path_text, **facts)
        return without_boxes(value) if unbox else value

    def variables(self) -> dict[str, Any]:
        """All collections, as seen from here: `{collection: nested dict}`."""
        return {col: found for col, found in self._visible() if found}

    def mutable_variables(self) -> dict[str, Any]:
        """The mutable collections, as seen from here."""
        is_mutable = self.is_mutable_collection
        return {col: found for col, found in self._visible() if is_mutable(col)}

    def _visible(self) -> Iterator[tuple[str, Any]]:
        """The collections at this path; copies of those that may change."""
        self._check_valid()
        tree = self._tree.seen()
        for col in tree.variables:
            node = tree.find(col, self.path)
            if isinstance(node, Mapping):
                yield col, unfreeze(node) if self.is_mutable_collection(col) else node


def _writable(variables: Mapping[str, Any], mutable: CollectionFilter) -> Any:
    """The collections, with dicts of our own where they may change.

    So are those of which JAX does not know that they are nested.
    """
    return {
        col: part
        if isinstance(part, dict | FrozenDict) and not in_filter(mutable, col)
        else unfreeze(part)
        for col, part in variables.items()
    }


def _one(shapes: tuple[Any, ...]) -> Any:
    return shapes[0] if len(shapes) == 1 else shapes
