"""`python -m nnx_transforms.port`: the program."""

from __future__ import annotations

import argparse
import difflib
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from .rewriting import port

__all__ = ["main"]

DESCRIPTION = """\
Rewrites imports of Flax (Linen and NNX) to linen_lift and nnx_transforms. Formatting
and comments stay as they are. What cannot be mapped is listed by line on the standard
error."""

EPILOG = """\
exit status: 0 if everything was mapped; 1 if something was not, or with --check if a
file would change; 2 if a file could not be read or is no Python, which is then left as
it is."""

STDIN = Path("-")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
        argv: the arguments; those of the process if they are not given.

    Returns:
        The exit status.
    """
    options = _parser().parse_args(argv)
    paths = list(_python_files(options.files))
    if len(paths) != 1 and options.output:
        return _refused("--output is for one file.")
    if len(paths) != 1 and not (options.write or options.check or options.diff):
        return _refused("There are several files: say --write, --check or --diff.")
    return max((_port(path, options) for path in paths), default=0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nnx_transforms.port",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    files = "a file, a folder with files ending in .py, or - for the standard input"
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path, help=files)
    add = parser.add_mutually_exclusive_group().add_argument
    add("-w", "--write", action="store_true", help="change the files")
    add("-c", "--check", action="store_true", help="only tell by the status")
    add("-d", "--diff", action="store_true", help="print a unified diff")
    add("-o", "--output", type=Path, help="write the new text there")
    return parser


def _refused(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 2


def _python_files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _port(path: Path, options: argparse.Namespace) -> int:
    """Ports a file and says what was found; returns the status."""
    name = "<stdin>" if path == STDIN else str(path)
    try:
        data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        # The mark of the byte order is kept as a character.
        encoding = encoding.removesuffix("-sig")
        source = data.decode(encoding)
        new, problems, kept = port(source)
    except (OSError, SyntaxError, ValueError) as error:
        return _refused(f"{name}: left as it is: {error}")
    for problem in problems:
        text = f"{name}:{problem.line}: {problem.name}: {problem.reason}"
        print(text, file=sys.stderr)
    if options.check and new != source:
        print(f"{name}: would change", file=sys.stderr)
    if kept and new != source:
        print(f"{name}: still Flax's: {', '.join(kept)}", file=sys.stderr)
    if options.diff:
        old, changed = source.splitlines(True), new.splitlines(True)
        for line in difflib.unified_diff(old, changed, name, f"{name} (new)"):
            print(line, end="" if line.endswith("\n") else "\n")
    elif options.output or (options.write and path != STDIN):
        if options.output or new != source:
            (options.output or path).write_bytes(new.encode(encoding))
    elif not options.check:
        sys.stdout.flush()
        sys.stdout.buffer.write(new.encode(encoding))
        sys.stdout.flush()
    return int(bool(problems) or (options.check and new != source))


if __name__ == "__main__":
    sys.exit(main())
