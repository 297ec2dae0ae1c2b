"""Names for paths: what a file calls the variable at a path.

A name is a path's keys with slashes between them, `layers/0/kernel`. Whatever could be
mistaken for something else is written with percent signs, as in URLs: a slash in a key,
or a key that is a string of digits; a lone one is the empty key. So a name stands for
one path, and tells it.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

Path = tuple[Any, ...]
_INTEGER = re.compile(r"-?[0-9]+")


def name_of(path: Path) -> str:
    """Writes a path as a name.

    Args:
        path: Keys; integers and strings can be told from the name.

    Returns:
        The name; the empty one for the root.

    Example:
        >>> name_of(('layers', 0, 'kernel')), name_of(('heads', 'a/b', '1'))
        ('layers/0/kernel', 'heads/a%2Fb/%31')
    """
    return "/".join(map(_piece, path))


def _piece(key: Any) -> str:
    if isinstance(key, int):
        return str(key)
    text = key if isinstance(key, str) else repr(key)
    if _INTEGER.fullmatch(text):
        return f"%{ord(text[0]):02X}{text[1:]}"
    return quote(text, safe="") or "%"


def path_of(name: str) -> Path:
    """Reads the path of a variable from a name that `name_of` wrote.

    Args:
        name: With slashes; what follows a `#` tells the place in a variable's value.

    Returns:
        The keys.

    Example:
        >>> path_of('heads/a%2Fb/%31'), path_of('layers/0/kernel')
        (('heads', 'a/b', '1'), ('layers', 0, 'kernel'))
    """
    variable = name.partition("#")[0]
    return tuple(
        int(piece) if _INTEGER.fullmatch(piece) else unquote(piece) * (piece != "%")
        for piece in (variable.split("/") if variable else ())
    )


def text_of(name: str) -> str:
    """Writes a name for a reader.

    Args:
        name: A name.

    Returns:
        The name as messages have it.

    Example:
        >>> text_of('heads/a%2Fb')
        'heads/a/b'
    """
    return unquote(name) or "<root>"
