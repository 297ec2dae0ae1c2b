"""What `from module import *` brings into a package, as editors understand it."""

import ast
from pathlib import Path

import pytest

import graphcore
import linen_lift
import nnx_transforms


def imported_whole(package):
    source = Path(package.__file__).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            parent, _, rest = node.module.partition(".")
            if parent == package.__name__:
                path = Path(package.__file__).parent.joinpath(*rest.split("."))
                yield path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("package", [graphcore, nnx_transforms, linen_lift])
def test_modules_that_are_imported_whole_list_their_names(package):
    # Without a list, a language server takes all names, those that the module imports
    # among them: `nnx.vmap` was one with other arguments, and there was `nnx.partial`.
    for path in imported_whole(package):
        if path.name == "__init__.py":
            continue
        assert "__all__ = [" in path.read_text(encoding="utf-8"), path
