"""What an adapter relies on is tried out when it is loaded.

An adapter knows how another library builds its objects. In a release that builds them
otherwise nothing may go wrong silently: the adapter fails, and says what was tested.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence

import graphcore as gc
from graphcore.adapters.loading import AdapterError


@contextlib.contextmanager
def checked(library: str, version: str, tested: Sequence[str]) -> Iterator[None]:
    """Makes one error of whatever goes wrong while an adapter tries out its library.

    Args:
        library: The name of the library for people.
        version: The installed release.
        tested: What the names of the tested releases begin with.

    Raises:
        AdapterError: If anything raises.

    Example:
        >>> with checked('A library', '1.2', ('1.',)):
        ...     require({'nothing adds up': 1 + 1 == 2})
    """
    known = ", ".join(release.rstrip(".") for release in tested)
    try:
        yield
    except Exception as error:
        raise AdapterError(
            f"{library} {version} can't be used with graphcore {gc.__version__}: "
            f"{error}. This was tested with {library} {known}: install one of those, "
            "or a newer graphcore."
        ) from error
    if not version.startswith(tuple(tested)):
        warnings.warn(
            f"graphcore {gc.__version__} was tested with {library} {known}, not with "
            f"{version}. What it relies on was checked and holds.",
            stacklevel=2,
        )


def require(checks: Mapping[str, bool]) -> None:
    """Makes sure that several things hold.

    Args:
        checks: For what would be a problem, whether it is none.

    Raises:
        AdapterError: With the first problem.
    """
    for problem, holds in checks.items():
        if not holds:
            raise AdapterError(problem)
