"""`python -m nnx_transforms.port`: the program."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import shutil
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .rewriting import Ported, port

__all__ = ["main"]

DESCRIPTION = """\
Rewrites imports of Flax (Linen and NNX) to linen_lift and nnx_transforms. Formatting
and comments stay as they are. What cannot be mapped is listed by line on the standard
error."""

EPILOG = """\
exit status: 0 if everything was mapped; 1 if something was not, or with --check if a
file would change; 2 if a file could not be read or is no Python, which is then left as
it is."""

STDIN = "-"


class File(NamedTuple):
    """A file and what became of its text."""

    path: Path | None  #: None for the standard input
    encoding: str
    source: str
    ported: Ported

    @property
    def name(self) -> str:
        """How messages call it."""
        return "<stdin>" if self.path is None else str(self.path)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
        argv: the arguments; those of the process if they are not given.

    Returns:
        The exit status.
    """
    options = _parser().parse_args(argv)
    status = 0
    paths = list(_python_files(options.files))
    one = len(paths) == 1
    if not (one or options.write or options.check or options.diff):
        print(
            "There are several files: say --write, --check or --diff.", file=sys.stderr
        )
        return 2
    if options.output and not one:
        print("--output is for one file.", file=sys.stderr)
        return 2
    for path in paths:
        try:
            file = _read(path)
        except (OSError, SyntaxError, ValueError) as error:
            name = "<stdin>" if path is None else path
            print(f"{name}: left as it is: {error}", file=sys.stderr)
            status = 2
            continue
        status = max(status, _report(file, options.check))
        _emit(file, options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nnx_transforms.port",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a file, a folder with files ending in .py, or - for the standard input",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-w", "--write", action="store_true", help="change the files")
    how.add_argument(
        "-c", "--check", action="store_true", help="change nothing, tell by the status"
    )
    how.add_argument("-d", "--diff", action="store_true", help="print a unified diff")
    how.add_argument("-o", "--output", type=Path, help="write the new text there")
    return parser


def _python_files(names: Sequence[str]) -> Iterator[Path | None]:
    for name in names:
        path = Path(name)
        if name == STDIN:
            yield None
        elif path.is_dir():
            yield from sorted(path.rglob("*.py"))
        else:
            yield path


def _read(path: Path | None) -> File:
    data = sys.stdin.buffer.read() if path is None else path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    # The mark of the byte order is kept as a character.
    source = data.decode("utf-8" if encoding == "utf-8-sig" else encoding)
    return File(path, encoding.removesuffix("-sig"), source, port(source))


def _report(file: File, check: bool) -> int:
    """Prints what could not be mapped; returns the status."""
    for problem in file.ported.problems:
        line = f"{file.name}:{problem.line}: {problem.name}: {problem.reason}"
        print(line, file=sys.stderr)
    changes = file.ported.source != file.source
    if check and changes:
        print(f"{file.name}: would change", file=sys.stderr)
    if file.ported.kept and changes:
        kept = ", ".join(file.ported.kept)
        print(f"{file.name}: still Flax's: {kept}", file=sys.stderr)
    return int(bool(file.ported.problems) or (check and changes))


def _emit(file: File, options: argparse.Namespace) -> None:
    new = file.ported.source
    if options.check:
        return
    if options.diff:
        old, changed = (text.splitlines(keepends=True) for text in (file.source, new))
        for line in difflib.unified_diff(old, changed, file.name, f"{file.name} (new)"):
            print(line, end="" if line.endswith("\n") else "\n")
    elif options.output:
        _replace(options.output, new.encode(file.encoding))
    elif options.write and file.path is not None:
        if new != file.source:
            _replace(file.path, new.encode(file.encoding))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(new.encode(file.encoding))
        sys.stdout.flush()


def _replace(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, with the permissions that it has."""
    path = path.resolve()  # a link stays one
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as temporary:
            temporary.write(data)
        if path.exists():
            shutil.copymode(path, name)
        else:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


if __name__ == "__main__":
    sys.exit(main())
