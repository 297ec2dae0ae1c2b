"""What the layers have in common: options that are kept where they are no defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from graphcore import Param
from nnx_transforms.layers.dtypes import promote_dtype
from nnx_transforms.layers.options import first_from, frozen
from nnx_transforms.modules.module import Module
from nnx_transforms.randomness.rngs import Rngs, RngStream

_NO_OPTION = property()


class Layer(Module):
    """A module whose options are attributes of its class until one is given.

    What an instance holds is compared at every compiled call, so it holds only what it
    alone has.

    Example:
        >>> class Scale(Layer):
        ...     factor: float = 1.0
        ...     def __init__(self, factor=1.0, dtype=None):
        ...         super().keep(locals())
        >>> scale = Scale(2.0)
        >>> vars(scale), scale.dtype
        ({'factor': 2.0}, None)
    """

    dtype: Any = None
    param_dtype: Any = jnp.float32
    promote_dtype: Any = staticmethod(promote_dtype)

    def keep(self, arguments: Mapping[str, Any]) -> None:
        """Sets the options that are not the defaults of the class.

        An option is an argument for which the class has a default. That is the class
        with the `__init__`, so that the attributes of a subclass are its own matter.

        Args:
            arguments: The `locals()` of an `__init__`, before it has variables that
                are called like options. They name its class if `super()` stands in
                it. Lists become tuples, which are static. Random streams are no
                options.
        """
        owner = arguments["__class__"]
        for name, value in arguments.items():
            no_option = isinstance(getattr(owner, name, _NO_OPTION), property)
            if no_option or name in ("__class__", "rngs"):
                continue
            default = getattr(type(self), name)
            # Compared within one type: True equals 1, and arrays compare by element.
            if type(value) is not type(default) or value != default:
                setattr(self, name, frozen(value))

    def _draw(
        self, arguments: Mapping[str, Any], **shapes: tuple[int, ...] | None
    ) -> None:
        """Makes the parameters of these shapes, in this order; none where it is None.

        Args:
            arguments: What `__init__` was given, by name.
            **shapes: By the name of the attribute; with an `_init` and a `_metadata`
                behind it, it names what makes the parameter and says more of it.

        Raises:
            TypeError: If a seed or a key was given instead of random streams.
        """
        for name, shape in shapes.items():
            if shape is not None:
                stream = stream_of(arguments["rngs"], "params")
                if stream is None:
                    raise _no_streams(None, "params")
                dtype = arguments["param_dtype"]
                made = arguments[f"{name}_init"](stream(), shape, dtype)
                setattr(self, name, Param(made, **arguments[f"{name}_metadata"]))

    def _promoted(self, x: Any, *parameters: Any) -> tuple[Any, ...]:
        """The input and parameters in the dtype to compute in.

        Args:
            x: The input.
            *parameters: Variables or arrays; None passes through.

        Returns:
            As many arrays, and None.
        """
        values = [getattr(parameter, "value", parameter) for parameter in parameters]
        promoted: tuple[Any, ...] = self.promote_dtype((x, *values), dtype=self.dtype)
        return promoted


def chosen(layer: Any, name: str, given: Any) -> Any:
    """What a call says of an option; if that is None, what the layer does.

    Args:
        layer: Whose option it is.
        name: The option, an attribute of the layer.
        given: The argument of the call.

    Returns:
        The value.

    Raises:
        ValueError: If both are None.

    Example:
        >>> layer = Module()
        >>> layer.deterministic = True
        >>> chosen(layer, 'deterministic', None), chosen(layer, 'deterministic', False)
        (True, False)
    """
    kind = type(layer).__name__
    message = (
        f"{kind} does not know `{name}`: give it when the layer is made, "
        f"`{kind}(..., {name}=...)`, or with the call, or set it in the whole model, "
        f"`model.set_attributes({name}=...)`."
    )
    return first_from(given, getattr(layer, name), error_msg=message)


def own_stream(rngs: Rngs | RngStream | None, name: str) -> RngStream | None:
    """A stream that begins with a key drawn from another one.

    A layer that keeps a stream of its own can be mapped and scanned by itself.

    Args:
        rngs: Streams or one stream.
        name: Which of the streams.

    Returns:
        The stream; None without `rngs`.

    Raises:
        TypeError: If `rngs` is something else.

    Example:
        >>> rngs = Rngs(dropout=0)
        >>> stream = own_stream(rngs, 'dropout')
        >>> stream.tag, int(rngs.dropout.count.value), int(stream.count.value)
        ('dropout', 1, 0)
    """
    stream = stream_of(rngs, name)
    return None if stream is None else stream.fork()


def stream_of(rngs: Rngs | RngStream | None, name: str) -> RngStream | None:
    """The stream that keys are drawn from.

    Args:
        rngs: Streams or one stream.
        name: Which of the streams.

    Returns:
        The stream; None without `rngs`.

    Raises:
        TypeError: If `rngs` is something else.

    Example:
        >>> rngs = Rngs(0)
        >>> stream_of(rngs, 'carry') is rngs.default is stream_of(rngs.default, 'carry')
        True
    """
    if isinstance(rngs, Rngs):
        return rngs[name]
    if rngs is None or isinstance(rngs, RngStream):
        return rngs
    # What has streams need not be an `Rngs`, nor what is one an `RngStream`.
    found: RngStream | None = getattr(rngs, name, None)
    if found is None and callable(rngs) and hasattr(rngs, "fork"):
        return rngs
    if found is None:
        raise _no_streams(rngs, name)
    return found


def _no_streams(rngs: Any, name: str) -> TypeError:
    return TypeError(
        f"Expected random streams, `Rngs` or an `RngStream`, got a "
        f"{type(rngs).__name__}: make some with `Rngs({name}=seed)`."
    )


def dropout_key(
    layer: Any, given: Rngs | RngStream | None, name: str, option: str = "rngs=rngs"
) -> jax.Array:
    """Draws a key to drop by, from what a call was given, or else the layer's own.

    Args:
        layer: The layer, with its stream as `rngs`.
        given: Streams or one stream.
        name: The name of the stream, where there are several.
        option: With what the layer is made so that it has one, for messages.

    Returns:
        The key.

    Raises:
        ValueError: If there is no stream.
    """
    stream = stream_of(layer.rngs if given is None else given, name)
    if stream is None:
        kind = type(layer).__name__
        raise ValueError(
            f"{kind} has no random streams: let it keep some when it is made, "
            f"`{kind}(..., {option})`, pass `rngs` with the call, or set "
            "`deterministic=True`."
        )
    return stream()
