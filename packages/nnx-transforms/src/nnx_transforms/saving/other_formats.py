"""Weights in files that other programs wrote, or are to read.

Such files know names and arrays, and no variable types or metadata. `load` brings them
into a graph by name; what does not fit is named before anything is changed.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from graphcore import Filter
from nnx_transforms.saving.contents import (
    Contents,
    check_selection,
    contents_of,
    key_impl,
    leaf_of,
    without_keys,
)
from nnx_transforms.saving.errors import DamagedCheckpointError
from nnx_transforms.saving.files import PathLike, absolute
from nnx_transforms.saving.loading import Source, load_into
from nnx_transforms.saving.names import text_of

A = TypeVar("A")
Names: TypeAlias = Mapping[str, str] | Callable[[str], str]
# Flax NNX may have a further key below a variable.
_BELOW = ("", "/value", "/raw_value")
# What NumPy has no name for, by the names of safetensors.
_FLOAT8 = {
    "F8_E4M3": jnp.float8_e4m3fn,
    "F8_E4M3FNUZ": jnp.float8_e4m3fnuz,
    "F8_E5M2": jnp.float8_e5m2,
    "F8_E5M2FNUZ": jnp.float8_e5m2fnuz,
    "F8_E8M0": jnp.float8_e8m0fnu,
}


def load(
    source: PathLike | Mapping[str, Any],
    node: A,
    names: Names | None = None,
    filter: Filter = ...,
    *,
    sharding: Any = None,
) -> A:
    """Loads weights from a file of another program into a graph, in place.

    Args:
        source: A safetensors file, a msgpack file or an orbax checkpoint of Flax Linen
            or Flax NNX; or a mapping from names to arrays, as `read_values` returns it,
            or a nested one, whose keys make the names.
        node: A graph node, or a pytree with such in it; it may be abstract.
        names: What the file calls things. A mapping from paths in the graph to names in
            the file, where the longest path counts and stands for all below it; or a
            function from one to the other. Both have slashes, `encoder/kernel`.
        filter: Which variables to load. Without it, the file must have nothing else.
        sharding: As for `restore`.

    Returns:
        The node.

    Raises:
        FileNotFoundError: If there is no such file.
        DifferentGraphError: If the two differ: by path, and before anything is changed.
        ValueError: If the filter selects nothing, or a sharding does not fit an array.
        TypeError: If the function for names returns no string.
        DamagedCheckpointError: If the file can't be read.

    Example:
        >>> import numpy as np, nnx_transforms as nnx
        >>> from nnx_transforms import saving
        >>> model = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> values = {'params/Dense_0/kernel': np.ones((2, 3), np.float32),
        ...           'params/Dense_0/bias': np.zeros(3, np.float32)}
        >>> saving.load(values, model, {'': 'params/Dense_0'})(np.ones((1, 2))).tolist()
        [[2.0, 2.0, 2.0]]
    """
    title = "given" if isinstance(source, Mapping) else str(source)
    due = filter if filter is ... else False

    def find() -> Source:
        # Read once: a mapping may make each array when it is asked.
        values = dict(source) if isinstance(source, Mapping) else read_values(source)
        if any(isinstance(x, Mapping | list | tuple) for x in values.values()):
            values = _flat(values)
        return _source(title, values, contents_of(node, filter), names, due)

    return load_into(node, filter, sharding, find)


def _source(
    title: str,
    given: dict[str, Any],
    target: tuple[Contents, dict[str, Any]],
    names: Names | None,
    due: Filter,
) -> Source:
    graph, like = target
    found = {**given}

    def source_name(name: str) -> str:
        mapped = _mapped(text_of(name), names)
        return next((mapped + end for end in _BELOW if mapped + end in found), mapped)

    # Only the target tells that an array is the data of a key.
    for name, leaf in graph.leaves.items():
        key = source_name(name)
        if leaf.is_key and getattr(found.get(key), "dtype", None) == np.uint32:
            found[key] = _as_key(found[key], like[name])
    contents = Contents({}, {}, {})
    first: dict[int, str] = {}
    for name, value in found.items():
        origin = first.setdefault(id(given[name]), name)
        if origin != name and hasattr(value, "dtype"):
            contents.shared[name] = origin
        else:
            leaf = leaf_of(None, value)
            is_array = leaf.form in ("numpy", "weak")
            contents.leaves[name] = leaf._replace(form="array") if is_array else leaf

    def arrays(requests: Mapping[str, Any]) -> dict[str, Any]:
        return {name: np.asarray(without_keys(found[name])) for name in requests}

    def first_name(name: str) -> str:
        mapped = source_name(name)
        return contents.shared.get(mapped, mapped)

    return Source(title, contents, first_name, due, arrays)


def _mapped(name: str, names: Names | None) -> str:
    if names is None:
        return name
    if not isinstance(names, Mapping):
        found: Any = names(name)
        if not isinstance(found, str):
            raise TypeError(
                f"The function for names returned {found!r} for {name!r}, expected the "
                "name in the file. Leave out what the file does not have by `filter`."
            )
        return found
    pieces = name.split("/")
    for end in range(len(pieces), -1, -1):
        prefix = "/".join(pieces[:end])
        if prefix in names:
            return "/".join(filter(None, [names[prefix], *pieces[end:]]))
    return name


def _as_key(data: Any, like: Any) -> Any:
    try:
        return jax.random.wrap_key_data(jnp.asarray(data), impl=key_impl(like))
    except (TypeError, ValueError):
        # Of another implementation, which the check of shapes will report.
        return data


def read_values(path: PathLike) -> dict[str, Any]:
    """Reads all arrays of a file of another program, on the host.

    Args:
        path: A `.safetensors` file, a directory that orbax wrote, or else a msgpack
            file of Flax.

    Returns:
        Arrays by name, with slashes. Names of one array have the same object.

    Raises:
        FileNotFoundError: If there is no such file.
        DamagedCheckpointError: If it can't be read.

    Example:
        >>> import numpy as np, nnx_transforms as nnx, tempfile
        >>> from nnx_transforms import saving
        >>> model = nnx.Dict(w=nnx.Param(np.arange(2.0)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saving.export_safetensors(folder + '/w.safetensors', model)
        ...     saving.read_values(folder + '/w.safetensors')
        {'w': array([0., 1.])}
    """
    file = absolute(path)
    if not file.exists():
        raise FileNotFoundError(f"There is no file {str(path)!r}.")
    try:
        if str(path).endswith(".safetensors"):
            return _read_safetensors(os.fspath(path))
        if file.is_dir():
            return _flat(_read_orbax(file))
        import orbax.checkpoint as ocp

        return _flat(ocp.msgpack_utils.msgpack_restore(file.read_bytes()))
    except ImportError:
        raise
    except Exception as error:
        known = str(path).endswith((".safetensors", ".msgpack")) or file.is_dir()
        hint = (
            " It was taken for a msgpack file of Flax; others are known by the ending "
            "`.safetensors`, or as a directory that orbax wrote."
        )
        raise DamagedCheckpointError(
            f"The file {str(path)!r} can't be read: {str(error)[:300]}"
            f"{'' if known else hint}"
        ) from error


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in jax.tree_util.tree_leaves_with_path(tree):
        name = prefix + jax.tree_util.keystr(path, simple=True, separator="/")
        if isinstance(value, Mapping):  # not of a type that JAX knows
            found.update(_flat(dict(value), f"{name}/"))
        else:
            found[name] = value
    return found


def _read_orbax(directory: Any) -> Any:
    import orbax.checkpoint as ocp

    items = [directory, *(item for item in directory.iterdir() if item.is_dir())]
    found = [item for item in items if (item / "_METADATA").exists()]
    if len(found) != 1:
        names = sorted(item.name for item in found or items[1:])
        raise ValueError(
            f"it is a folder with {', '.join(names[:5]) or 'no checkpoint'}, expected "
            "one checkpoint. Read what is in it."
        )
    [item] = found
    handler = ocp.PyTreeCheckpointHandler()
    tree = handler.metadata(item).tree
    as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    arguments = jax.tree.map(
        lambda leaf: as_numpy if hasattr(leaf, "shape") else ocp.RestoreArgs(), tree
    )
    return handler.restore(
        item, args=ocp.args.PyTreeRestore(item=tree, restore_args=arguments)
    )


def _read_safetensors(path: str) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        values = {
            name: _float8(path, name)
            if file.get_slice(name).get_dtype() in _FLOAT8
            else file.get_tensor(name)
            for name in file.keys()  # noqa: SIM118
        }
        for alias, name in (file.metadata() or {}).items():
            if name in values:
                values.setdefault(alias, values[name])
    return {unquote(name.replace(".", "/")): value for name, value in values.items()}


def _float8(path: str, name: str) -> Any:
    """An array that safetensors itself can't read into one of NumPy."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        found = json.loads(file.read(size))[name]
    start, end = found["data_offsets"]
    data = np.fromfile(path, np.uint8, end - start, offset=8 + size + start)
    return data.view(_FLOAT8[found["dtype"]]).reshape(found["shape"])


def export_safetensors(path: PathLike, node: Any, filter: Filter = ...) -> None:
    """Writes the arrays of a graph to a safetensors file.

    Names have dots, `layers.0.kernel`. What could be mistaken for something else is
    written with percent signs, as in URLs: `a%2Eb` for a key `a.b`, `%30` for the
    string `"0"`; `read_values` and `load` turn it back. What is shared is there once,
    under its first name; its other names are in the metadata of the file, each with the
    first. Random keys are written as their data. With several processes, all of them
    call this; the first writes.

    Args:
        path: The file; it is replaced as a whole.
        node: A graph node, or a pytree with such in it.
        filter: Which variables to write.

    Raises:
        TypeError: If a variable holds something that is no array or number, or of a
            dtype that the format lacks, with its path.
        ValueError: If the filter selects nothing.

    Example:
        >>> import jax.numpy as jnp, nnx_transforms as nnx, tempfile
        >>> from nnx_transforms import saving
        >>> tied = nnx.Param(jnp.ones(2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = folder + '/model.safetensors'
        ...     saving.export_safetensors(file, nnx.Dict(embed=tied, head=tied))
        ...     sorted(saving.read_values(file))
        ['embed', 'head']
    """
    from safetensors.numpy import save_file

    contents, values = contents_of(node, filter)
    check_selection(contents, node, filter)
    arrays = {_dotted(name): _on_host(name, value) for name, value in values.items()}
    if jax.process_index() == 0:
        # In the same folder, so that it can take the other's place at once.
        partial = f"{os.fspath(path)}.partial"
        save_file(arrays, partial, metadata=dict(_aliases(contents)))
        os.replace(partial, path)
    multihost_utils.sync_global_devices("safetensors written")


def _dotted(name: str) -> str:
    if name == "__metadata__":
        # The format's own key: an array under it makes a file that can't be read.
        return "%5F_metadata__"
    return name.replace(".", "%2E").replace("/", ".")


def _aliases(contents: Contents) -> Iterator[tuple[str, str]]:
    """The further names of shared arrays, but not the endless ones through a cycle."""
    for alias, first in contents.shared.items():
        below = first + "/" if first else ""
        if alias.startswith(below):
            continue
        for name in contents.leaves:
            if name == first or name.startswith((below, first + "#")):
                yield _dotted(alias + name[len(first) :]), _dotted(name)


def _on_host(name: str, value: Any) -> Any:
    from safetensors import SafetensorError
    from safetensors.numpy import save

    value = without_keys(value)
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        value = multihost_utils.process_allgather(value, tiled=True)
    array = np.asarray(value, order="C")
    refused = jax.ShapeDtypeStruct | np.ma.MaskedArray  # a mask would be lost
    try:
        save({"": array.ravel()[:0]})  # Only safetensors knows which dtypes it has.
        if not isinstance(value, refused):
            return array
    except SafetensorError:
        pass
    raise TypeError(
        f"The value at {text_of(name)!r} is {reprlib.repr(value)}, expected an array "
        "or number of a dtype that safetensors can hold. Leave it out with `filter=`."
    )
