"""The compiled form of a function for one structure of its objects."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax

from graphcore import RefMap, State, TraceContextError, VariableState
from graphcore.authors import (
    OUTSIDE,
    UNSET,
    Body,
    Divided,
    Entry,
    Inside,
    Left,
    captured_objects,
    current_trace,
    is_mapping,
    map_settings,
    path_text,
    plain_settings,
    prefix_leaves,
    raw_value_of,
    settings_of_variables,
    settings_within,
    variable_impl,
    write_raw,
)
from nnx_transforms.adapters.settings import own_settings
from nnx_transforms.arguments import (
    ChosenArguments,
    counted_from_the_start,
    signature_of,
    with_statics,
)
from nnx_transforms.sharding.eager_sharding import placed_by
from nnx_transforms.sharding.in_modules import shardings_alone, shardings_apart
from nnx_transforms.transforms.compiled.donation import (
    OtherWrites,
    abstract_key,
    apart,
    copied,
    held_twice,
    never_donated,
    rules_running,
    together,
    variables_at,
)
from nnx_transforms.transforms.compiled.explain_recompile import Notes, Signature

Path: TypeAlias = tuple[Any, ...]


_PASSED_ON = "keep_unused", "inline", "device", "backend"


class Options:
    """What `jit` was told, as the bodies of the function and its calls need it.

    Args:
        f: The function.
        arguments: The arguments of `jit`.

    Attributes:
        notes: What is remembered of compilations.
        statics: Which arguments are static.
        donated: Which arguments are donated.
        in_shardings: As given, a list as a tuple.
        out_shardings: As given.
        in_settings: The shardings of the arguments, as settings.
        out_settings: Those of the output.
        settings_last: Whether both are the same for all graphs of one definition.
        places_objects: Whether objects in the output are placed by filter, by their
            metadata, or each in its own way, even if none came in.
        donate_state: Whether to donate what is overwritten.
        constrain_state: Whether, or how, to constrain shardings.
        passed_on: Further arguments for `jax.jit`.
    """

    def __init__(self, f: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self.notes = Notes()
        self.statics, self.donated = (
            ChosenArguments(
                f,
                counted_from_the_start(f, arguments[f"{which}_argnums"]),
                arguments[f"{which}_argnames"],
            )
            for which in ("static", "donate")
        )
        shardings = own_settings(arguments["in_shardings"])
        self.in_shardings = tuple(shardings) if type(shardings) is list else shardings
        self.out_shardings = own_settings(arguments["out_shardings"])
        # None leaves the choice to JAX, and contradicts no other sharding of an output.
        self.in_settings, self.out_settings = (
            map_settings(lambda x: UNSET if x is None else x, shardings_alone(given))
            for given in (self.in_shardings, self.out_shardings)
        )
        prefixes = self.in_settings, self.out_settings
        mappings = filter(is_mapping, prefix_leaves(prefixes))
        self.settings_last = all(mapping.is_static for mapping in mappings)
        self.donate_state: bool = arguments["donate_state"]
        self.constrain_state: Any = arguments["constrain_state"]
        by_filter = any(map(is_mapping, prefix_leaves(self.out_shardings)))
        self.places_objects = by_filter or bool(self.constrain_state)
        passed_on = {k: v for k in _PASSED_ON if (v := arguments[k])}
        self.passed_on: dict[str, Any] = {**passed_on, **arguments["more"]}


class JitBody(Body):
    """A function, compiled for one structure of its objects and its static arguments.

    JAX decides by abstract values whether to trace again.

    Attributes:
        layout: What the objects are made of.
        direct: JAX's function; returns the written values, the output and the change.
        is_flat: Whether values enter and leave it as one list, and other arguments as
            they are called: what JAX has to take apart costs time at each call. With
            shardings and donation there is more to tell it.
        is_direct: Whether it is flat, and the values may go there as they are.
        has_divided: Whether the values of variables were seen not to be arrays.
    """

    called = ("args", None)
    settings_called = ("in_shardings", "out_shardings")
    options: Options
    is_compiled = True
    is_direct = has_divided = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Without another step to it: a call costs time.
        self.layout = self.structure.joint.layout
        options = self.options
        donated = options.donated
        self._always_donated = variables_at(self, {*donated.numbers, *donated.names})
        self._has_shardings = (
            options.in_shardings is not None or options.out_shardings is not None
        )
        self.is_flat = not (
            self._has_shardings or bool(donated) or options.donate_state
        )
        self._variants: dict[Any, Callable[..., Any]] = {}
        # As JAX is given them.
        self._shardings: Any = tuple(map(shardings_apart, self._plain_shardings()))
        # The variables that the function overwrites, until that depends on shapes.
        self._writes: frozenset[int] | None = None
        self._writes_by_shape: dict[Any, frozenset[int]] = {}
        self.direct = self._compile(self._flat() if self.is_flat else self)

    # Outside

    def call_arranged(self, entry: Entry, only_trace: bool = False) -> Any:
        """Runs the function where `Bodies.recall` does not know the call.

        Args:
            entry: The call.
            only_trace: Whether JAX is to trace the function, and not to run it.

        Returns:
            As `direct`; or what JAX has traced.

        Raises:
            TraceContextError: If the function wrote an object of the caller's.
        """
        count = self.options.notes.count
        try:
            function, args, kwargs = self.prepare(entry, ahead=only_trace)
            result = (function.trace if only_trace else function)(*args, **kwargs)
        except OtherWrites as found:
            # Another shape, another set of overwritten variables: from now on, look
            # up which it is.
            self._writes = None
            self._writes_by_shape[abstract_key(entry.values)] = found.positions
            return self.call_arranged(entry, only_trace)
        except ValueError:
            if not self._spreads(entry):
                raise
            return self.call_arranged(entry, only_trace)
        finally:
            is_traced = self.options.notes.count != count
            leaked = take_back_leaked(entry) if is_traced else None
        if leaked is not None:
            self.look_at_trace(leaked, entry.variables, function, args, kwargs)
        self.is_direct = self.is_flat and not self.has_divided
        return result

    def look_at_trace(
        self,
        leaked: Sequence[int],
        variables: Sequence[Any],
        function: Any,
        args: Any,
        kwargs: Any,
    ) -> None:
        """Looks at what the function did while it was traced.

        Args:
            leaked: The numbers of variables of the caller's that it wrote.
            variables: All of these.
            function: JAX's function, which was traced.
            args: What for.
            kwargs: Likewise.

        Raises:
            TraceContextError: If there are any, with the path of the first.
        """
        if not leaked:
            # JAX gives the trace that there is already.
            known = functools.partial(function.trace, *args, **kwargs)
            f = self.__wrapped__
            captured = captured_objects(f) + self.structure.captured_objects(f)
            notes = self.options.notes
            read = {*map(id, notes.captured.note(captured, known))}
            numbers = [i for i, x in enumerate(variables) if id(x) in read]
            notes.constants = [path_text(self.variable_path(i)) for i in numbers]
            return
        function.clear_cache()  # It is traced, and refused, at the next call.
        where = path_text(self.variable_path(leaked[0]))
        raise TraceContextError(
            f"The function {self.__name__!r} wrote to the variable at {where!r} of "
            "the caller's own object, which it found in a static attribute, or "
            "closes over. Reach it through attributes of the argument that are "
            "data: the object there is the one to write."
        )

    def _spreads(self, entry: Entry) -> bool:
        """Whether shardings in modules are for parts of these: then spreads them."""
        plain = self._plain_shardings()
        if not Divided.within(plain)[1]:
            return False
        _, out, _ = jax.eval_shape(self, *entry.values)
        found = tuple(map(settings_within, plain, (entry.args, out)))
        if jax.tree.structure(found) == jax.tree.structure(self._shardings):
            return False
        self._shardings = found
        self._variants.clear()
        self.direct = self._compile(self)
        return True

    def prepare(
        self, entry: Entry, ahead: bool = False
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Chooses the compiled variant for a call, and arranges the values for it.

        Args:
            entry: The call.
            ahead: Whether the variant is one for any call. Then what is held twice is
                copied and donated.

        Returns:
            A function of JAX, its positional arguments and its named ones.
        """
        if self.has_divided:
            entry.divide()
        values, args, kwargs = entry.raw, entry.args, entry.kwargs
        if self.is_flat:
            return self.direct, (values, *args), kwargs
        chosen = self.options.donated
        # Inside of a transformation a derivative may need the old values.
        donates_state = self.options.donate_state and (
            ahead or (current_trace() == OUTSIDE and not rules_running.count)
        )
        if not (chosen or donates_state):
            return self.direct, (self.grouped(values), args, kwargs), {}
        writes: frozenset[int] | None = None
        donated = self._always_donated
        # A new set, even an equal one, takes longer to look up.
        if donated and (stays := never_donated(values)):
            donated = donated - stays
        if donates_state:
            writes = self._find_writes(entry)
            donated = donated | writes if donated else writes
        if donated and (twice := held_twice(values, (args, kwargs))):
            if not ahead:
                donated = donated - twice
            elif twice := twice & donated:
                values = [copied(x) if i in twice else x for i, x in enumerate(values)]
        function = self._variants.get((writes, donated))
        if function is None:
            function = self._variants[writes, donated] = self._donating(writes, donated)
        kept, given = apart(self, values, donated)
        args, kwargs, taken = chosen.take(args, kwargs)
        args_given = tuple([taken.get(i) for i in range(len(args))])
        named = {k: x for k, x in taken.items() if isinstance(k, str)}
        return function, (kept, args, kwargs, (given, args_given, named)), {}

    def _arranged_back(self, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """Undoes what `prepare` did: the values of variables, and other arguments."""
        if self.is_flat:
            values, *args = args
            return values, tuple(args), kwargs
        groups, args, kwargs, *donated = args
        for given, given_args, given_named in donated:
            groups = [*map(together, groups, given)]
            args, kwargs = tuple(together(args, given_args)), {**kwargs, **given_named}
        return self.ungrouped(groups), args, kwargs

    def of_arguments(self, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Brings what stands for JAX's arguments into the form of the function's.

        Args:
            given: A pytree with the structure of JAX's arguments.

        Returns:
            Positional and named arguments: states in the places of objects, and
            nothing for static arguments.
        """
        values, args, kwargs = self._arranged_back(*given)
        structure = self.structure
        states = structure.states(range(len(values)), values)
        args, kwargs = structure.places.fill((args, kwargs), states)
        rest = [x for i, x in enumerate(args) if i not in structure.statics]
        return tuple(rest), kwargs

    def _find_writes(self, entry: Entry) -> frozenset[int]:
        if self._writes is not None:
            return self._writes
        key = abstract_key(entry.values)
        known = self._writes_by_shape.get(key)
        if known is None:
            *_, change = jax.eval_shape(self, *entry.values)
            known = frozenset(p for p in change.positions if p is not None)
            if not self._writes_by_shape:
                self._writes = known
            self._writes_by_shape[key] = known
        return known

    # Compiling

    def _compile(
        self, function: Callable[..., Any], donates: bool = False
    ) -> Callable[..., Any]:
        """Has JAX compile this body, or another form of it."""
        options = self.options
        passed_on = dict(options.passed_on)
        if donates:
            passed_on["donate_argnums"] = 3
        if self._has_shardings:
            groups = [None if setting is UNSET else setting for setting in self.groups]
            kept = given = self._shardings[0]
            if isinstance(kept, tuple):  # They go apart, as in `prepare`.
                kept, _, taken = options.donated.take(kept, {})
                given = tuple(taken.get(i) for i in range(len(kept)))
            away: Any = ((groups, given, None),) if donates else ()
            passed_on["in_shardings"] = (groups, kept, None, *away)
            passed_on["out_shardings"] = (groups, self._shardings[1], None)
        return jax.jit(function, **passed_on)

    def _plain_shardings(self) -> tuple[Any, Any]:
        """Those of positional arguments, static ones have none, and of the output."""
        given = plain_settings(self.options.in_shardings)
        if isinstance(given, tuple):
            given = tuple(with_statics(given, dict.fromkeys(self.structure.statics)))
        return given, plain_settings(self.options.out_shardings)

    def _flat(self) -> Callable[..., Any]:
        # JAX takes no argument by name that is called as one by position, so that has
        # a name that users have no use for.
        def pure(_variables: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self([_variables], args, kwargs)

        form: Any = self._shown_as_the_function(pure)
        form.__signature__ = self._own_names(form.__signature__)
        return form  # type: ignore[no-any-return]

    def _own_names(self, of_form: inspect.Signature) -> inspect.Signature:
        """Has JAX call arguments in messages and programs as the function does."""
        own = signature_of(self.__wrapped__)
        given = [*own.parameters.values()] if own is not None else []
        # What JAX fails over: a keyword argument that is called as one by position.
        may_clash = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_KEYWORD}
        if own is None or may_clash <= {p.kind for p in given}:
            return of_form
        called = [*of_form.parameters.values()][:1]
        # The function takes what it is bound to first.
        for number, p in enumerate(given):
            is_left = number >= len(self.structure.bound) or p.kind is p.VAR_POSITIONAL
            if is_left and p.name not in self.structure.statics:
                # The name alone: JAX keeps the rest, and a default may hold a model.
                default = p.empty if p.default is p.empty else None
                called.append(inspect.Parameter(p.name, p.kind, default=default))
        try:
            return inspect.Signature(called)
        except ValueError:  # one has the name of the first
            return of_form

    def _donating(
        self, writes: frozenset[int] | None, donated: frozenset[int]
    ) -> Callable[..., Any]:
        def pure(kept: Any, args: Any, kwargs: Any, given: Any) -> Any:
            values, args, kwargs = self._arranged_back((kept, args, kwargs, given), {})
            # A donated variable is returned even if the function left it alone: its
            # old buffer is gone, and handing it through costs nothing.
            left = self.run(values, args, kwargs, donated)
            if writes is not None:
                found = left.overwritten(values)
                if found != writes:
                    raise OtherWrites(found)
            groups, change = self.divide(left)
            return groups, left.out, change

        return self._compile(self._shown_as_the_function(pure), donates=True)

    def _shown_as_the_function(self, form: Any) -> Callable[..., Any]:
        """Has JAX show a form of this body by the name and place of the function."""
        form.__signature__ = inspect.signature(form)
        form.__name__ = form.__qualname__ = self.__name__
        form.__wrapped__ = self
        return form  # type: ignore[no-any-return]

    # Inside

    def run(
        self,
        values: Sequence[Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        keep: frozenset[int] = frozenset(),
    ) -> Left:
        given = [*values]
        if Divided.of_values(given) is not given:
            raise TypeError("A value has a static part; see `Jitted.__call__`.")
        self.options.notes.take(Signature.of(self, (args, kwargs), values, keep))
        inside = Inside(self.structure.joint, values)
        how = self.options.constrain_state
        if how:
            paths = self.structure.joint.paths
            self._constrain(how, list(zip(inside.variables, paths, strict=True)))
        args, kwargs = self.fill(inside, args, kwargs)
        out = self.call(inside, args, kwargs)
        settings = self.structure.settings
        placed: RefMap[Any, Any] = RefMap()
        if settings.out is not UNSET:
            called = self.settings_called[1], "what the function returned"
            placed = settings_of_variables(settings.out, out, called)
            # Arguments that are returned leave, if only to be placed there.
            keep = keep | {
                position
                for position, x in enumerate(inside.variables)
                if x in placed and settings.variables[position] in (None, UNSET)
            }
        left = inside.leave(out, settings, keep)
        for w in left.written if placed else ():
            if w.setting in (None, UNSET):  # also of what was made in an argument
                w.setting = placed.get(w.variable, w.setting)
        self.check_left(left)
        if how:
            self._constrain(how, [(w.variable, w.path) for w in left.written])
        return left

    def _constrain(self, how: Any, variables: list[tuple[Any, Path]]) -> None:
        if not callable(how):
            # Where metadata say nothing, or there is no mesh, a value stays as it is.
            write_raw((x, _constrained(x, self.place(path))) for x, path in variables)
            return
        by_path = {path: variable for variable, path in variables}
        given: State[Any, Any] = State.from_flat_path(
            (path, VariableState.from_variable(v)) for path, v in by_path.items()
        )
        write_raw((by_path[path], leaf.value) for path, leaf in how(given).flat_state())


def take_back_leaked(entry: Entry) -> list[int]:
    """Takes tracers out of the caller's variables, of types that let them be written.

    Returns:
        The positions of these variables.
    """
    tracer = jax.core.Tracer
    now = entry.joint.layout.values(entry.variables)
    # A type may make its value anew at each look, of tracers it holds another tracer.
    pairs = enumerate(zip(now, entry.raw, strict=True))
    leaked = [
        i for i, (x, y) in pairs if isinstance(x, tracer) and not isinstance(y, tracer)
    ]
    for i in leaked:
        before = entry.raw[i]
        whole = before.join() if isinstance(before, Divided) else before
        write_raw([(entry.variables[i], whole)])
    return leaked


def _constrained(variable: Any, path: str) -> Any:
    """The value of a variable, sharded as its metadata say."""
    metadata = variable_impl(type(variable)).metadata(variable)
    return placed_by(metadata, raw_value_of(variable), path)
