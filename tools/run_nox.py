"""Run nox with nothing but Python and pip: ``python tools/run_nox.py -s tests``.

nox is installed into an environment under the checkout (``.nox/bootstrap``, or the
folder that ``NOX_BOOTSTRAP`` names), once; all arguments go to nox. The environment is
filled by the pip of the calling Python, so that this works where the system's Python is
externally managed or ships without ensurepip; ensurepip helps where there is no pip.
"""

import importlib.util
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENT = "nox>=2025.5"
OLDEST_PYTHON = (3, 11)


def bootstrap(folder: Path) -> Path:
    """Make the environment that holds nox, if need be.

    Args:
        folder: where the environment is, or is to be.

    Returns:
        The Python interpreter of the environment.

    Raises:
        subprocess.CalledProcessError: if pip cannot install nox.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready = folder / "ready"
    if ready.exists() and python.exists():
        return python
    print(f"Installing {REQUIREMENT} into {folder}", flush=True)
    if importlib.util.find_spec("pip"):
        venv.create(folder, with_pip=False, clear=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python)]
    else:
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip"]
    subprocess.run(
        [*pip, "install", "--quiet", "--disable-pip-version-check", REQUIREMENT],
        check=True,
    )
    ready.touch()
    return python


def main() -> int:
    """Run nox on the repository's noxfile and return its exit status."""
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        print(f"Python {wanted} or newer is needed, this is {sys.version.split()[0]}")
        return 2
    folder = Path(os.environ.get("NOX_BOOTSTRAP", ROOT / ".nox" / "bootstrap"))
    try:
        python = bootstrap(folder)
    except subprocess.CalledProcessError as error:
        print(f"nox could not be installed: {error}", file=sys.stderr)
        return 2
    noxfile = str(ROOT / "noxfile.py")
    command = [str(python), "-m", "nox", "-f", noxfile, *sys.argv[1:]]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
