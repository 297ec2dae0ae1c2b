"""Prove that each documented way to install each package works.

``python -m tools.check_install`` builds wheels from the checkout and then, for every
package and every way (a folder of wheels, the checkout, a git URL with a subdirectory),
makes a fresh environment, installs that package alone with pip, imports it outside the
checkout, and compares what is installed with what may be: the package, those of this
repository that it depends on, jax, numpy, typing_extensions, and what those require.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Each package with those of this repository that it depends on.
PACKAGES = {
    "graphcore": [],
    "nnx-transforms": ["graphcore"],
    "linen-lift": ["graphcore"],
}
RUNTIME = ["jax", "numpy", "typing_extensions"]
WAYS = ("wheels", "checkout", "git")

# Run by the fresh environment's Python; prints what is installed and what may be.
PROBE = """
import importlib, importlib.resources, json, re, sys
from importlib import metadata

name, *roots = sys.argv[1:]
module = importlib.import_module(name.replace("-", "_"))

def normal(name):
    return re.sub("[-_.]+", "-", name).lower()

def required(name):
    for text in metadata.requires(name) or ():
        requirement, _, marker = text.partition(";")
        if "extra ==" not in marker:
            yield normal(re.match("[A-Za-z0-9._-]+", requirement)[0])

installed = {normal(d.metadata["Name"]) for d in metadata.distributions()}
allowed, queue = set(), [normal(root) for root in roots]
while queue:
    if (root := queue.pop()) not in allowed:
        allowed.add(root)
        if root in installed:
            queue.extend(required(root))
print(json.dumps({
    "version": metadata.version(name),
    "file": module.__file__,
    "typed": importlib.resources.files(module).joinpath("py.typed").is_file(),
    "surplus": sorted(installed - allowed),
}))
"""


class InstallError(Exception):
    """A package could not be installed, or not as documented."""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return its output; show all of it if the command fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        # The environment under test must not see the caller's packages.
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    if done.returncode:
        raise InstallError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def requirements(package: str, way: str, wheels: Path) -> list[str]:
    """The arguments for pip that install one package in one way.

    Args:
        package: the distribution's name.
        way: one of `WAYS`.
        wheels: the folder of built wheels.

    Returns:
        Options and requirements, in the forms that the documentation gives. The other
        packages that this one needs are named, too, since no index has them.
    """
    names = [*PACKAGES[package], package]
    if way == "wheels":
        files = [next(wheels.glob(f"{n.replace('-', '_')}-*.whl")) for n in names]
        return [str(file) for file in files]
    if way == "checkout":
        return [str(ROOT / "packages" / name) for name in names]
    url = f"git+{ROOT.as_uri()}"
    return [f"{name} @ {url}#subdirectory=packages/{name}" for name in names]


def check(package: str, way: str, wheels: Path, scratch: Path) -> str:
    """Install one package in one way into a fresh environment and look at the result.

    Args:
        package: the distribution's name.
        way: one of `WAYS`.
        wheels: the folder of built wheels.
        scratch: an empty folder for the environment.

    Returns:
        One line that says what was installed.

    Raises:
        InstallError: if pip fails, the import fails, or something else came along.
    """
    venv.create(scratch / "env", with_pip=False)
    folder = "Scripts" if os.name == "nt" else "bin"
    python = scratch / "env" / folder / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-compile"]
    run(*pip, "-q", *requirements(package, way, wheels), cwd=scratch)
    roots = [package, *PACKAGES[package], *RUNTIME]
    # -P: not even the current folder may be imported from.
    found = json.loads(run(python, "-P", "-c", PROBE, package, *roots, cwd=scratch))
    if found["surplus"]:
        raise InstallError(f"{package} brought along {found['surplus']}")
    if not Path(found["file"]).resolve().is_relative_to(scratch.resolve()):
        raise InstallError(f"{package} was imported from {found['file']}")
    if not found["typed"]:
        raise InstallError(f"{package} was installed without its py.typed")
    return f"{package} {found['version']}"


def main() -> int:
    """Check the chosen packages and ways; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--package", choices=PACKAGES, action="append")
    parser.add_argument("--way", choices=WAYS, action="append")
    chosen = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder) / "wheels"
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", wheels]
        for package in PACKAGES:
            run(*build, ROOT / "packages" / package)
        for package in chosen.package or PACKAGES:
            for way in chosen.way or WAYS:
                if way == "git" and not (ROOT / ".git").exists():
                    print(f"{package} from git: skipped, this is no git checkout")
                    continue
                start = time.perf_counter()
                scratch = Path(folder) / f"{package}-{way}"
                scratch.mkdir()
                try:
                    outcome = check(package, way, wheels, scratch)
                except InstallError as error:
                    outcome = f"FAILED\n{error}"
                    failed += 1
                seconds = time.perf_counter() - start
                print(f"{package} from {way}: {outcome} ({seconds:.0f} s)", flush=True)
    print("Every way to install works." if not failed else f"{failed} failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
