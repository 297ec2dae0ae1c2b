"""The tasks of the repository: ``nox -l`` lists them, ``nox -s NAME`` runs one.

Arguments after ``--`` go to the program that the session runs, most often pytest:
``nox -s "tests-3.12(graphcore)" -- -k context -x``.
"""

import glob
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_venv = "yes"
nox.options.sessions = [
    "lint",
    "typecheck",
    "workflows",
    "tests",
    "spec",
    "integration",
]

ROOT = Path(__file__).resolve().parent
PYPROJECT = nox.project.load_toml("pyproject.toml")

# Each package after the ones that it depends on.
PACKAGES = ("graphcore", "nnx-transforms", "linen-lift")
IMPORTS = [name.replace("-", "_") for name in PACKAGES]

# Sessions are skipped for a Python that is not found. The Python that runs nox always
# is, so that the tests run on something even where it is a newer one.
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
OLDEST = SUPPORTED[0]
PYTHONS = sorted({*SUPPORTED, RUNNING}, key=lambda v: int(v.split(".")[1]))


# Releases of other people's libraries whose objects our transforms take, with the JAX
# that goes with each. None is the newest.
FLAX = {"0.11.2": "0.8.0", "0.12.0": "0.8.0", "0.12.4": "0.9.0", "newest": None}
EQUINOX = {"0.13.0": "0.8.0", "newest": None}
# The last of each release of JAX between the oldest and the newest.
BETWEEN = ("0.9.2", "0.10.2", "0.11.2")


def group(*names: str) -> tuple[str, ...]:
    """The requirements of these dependency groups of the top-level pyproject.toml."""
    return nox.project.dependency_groups(PYPROJECT, *names)


def metadata(package: str) -> dict[str, Any]:
    """The [project] table of a package."""
    return nox.project.load_toml(f"packages/{package}/pyproject.toml")["project"]


def install(
    session: nox.Session, *groups: str, packages: Sequence[str] = PACKAGES, extra=()
) -> None:
    """Install packages from the checkout, with what they need and these groups."""
    editable = [arg for name in packages for arg in ("-e", f"packages/{name}")]
    session.install(*editable, *group(*groups), *extra)


def needed_by(package: str) -> list[str]:
    """The package and those of this repository that it depends on, in order."""
    needs = {re.split(r"[<>=\[ ]", r)[0] for r in metadata(package)["dependencies"]}
    return [name for name in PACKAGES if name in needs or name == package]


def environment(**changes: str) -> dict[str, str]:
    """Variables for a run of tests: CPU unless the caller chose a platform."""
    return {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"), **changes}


def pytest(
    session: nox.Session,
    *args: str,
    python: str = "python",
    workers: str = "auto",
    env: dict[str, str] | None = None,
) -> None:
    """Run pytest in worker processes; the session's own arguments come last."""
    # The workers must agree on the order of sets, or they collect different tests.
    seed = os.environ.get("PYTHONHASHSEED") or str(random.randrange(1, 2**32))
    session.log(f"PYTHONHASHSEED={seed}")
    # Most of the time goes to XLA, and many tests compile the same programs.
    quicker = ("-n", workers, "-p", "tools.known_programs")
    command = (python, "-m", "pytest", *quicker, *args, *session.posargs)
    session.run(
        *command, env={**(env or environment()), "PYTHONHASHSEED": seed}, external=True
    )


def test_folders(packages: Sequence[str]) -> list[str]:
    """The folders of tests of these packages."""
    return [f"packages/{package}/tests" for package in packages]


def has_paths(session: nox.Session) -> bool:
    """Whether the session's arguments say themselves what to test."""
    return any((ROOT / arg.split("::")[0]).exists() for arg in session.posargs)


@nox.session(python=PYTHONS)
@nox.parametrize("package", [nox.param(name, id=name) for name in PACKAGES])
def tests(session: nox.Session, package: str) -> None:
    """Test one package with pytest, on each Python that is found."""
    install(session, "test", packages=needed_by(package))
    pytest(session, *(() if has_paths(session) else test_folders([package])))


@nox.session
def integration(session: nox.Session) -> None:
    """Test what crosses packages or needs the outside: optax, processes, installers."""
    install(session, "integration")
    pytest(session, *(() if has_paths(session) else ["tests_integration"]))


def releases(known: dict[str, str | None]) -> Any:
    """Parametrizes a session with the releases of a library."""
    return nox.parametrize("release", [nox.param(name, id=name) for name in known])


def test_with(
    session: nox.Session, library: str, release: str, jax: str | None, *files: str
) -> None:
    """Run tests with one release of another library and of JAX."""
    extra = [f"{library}=={release}", f"jax=={jax}", f"jaxlib=={jax}"]
    install(session, "test", extra=extra if jax else [library, "--upgrade"])
    paths = () if has_paths(session) else [f"tests_integration/{f}" for f in files]
    # Older releases use what this JAX deprecates already.
    pytest(session, "-W", "ignore::DeprecationWarning", *paths)


@nox.session
@releases(FLAX)
def flax(session: nox.Session, release: str) -> None:
    """Test objects of Flax NNX under our transforms, on several releases of Flax."""
    names = "bridge", "functions", "linen_modules", "methods", "models", "modes"
    others = "own_transforms", "shardings", "states"
    files = [f"test_flax_{name}.py" for name in (*names, *others)]
    test_with(session, "flax", release, FLAX[release], *files)


@nox.session
@releases(EQUINOX)
def equinox(session: nox.Session, release: str) -> None:
    """Test modules of Equinox under our transforms, on several releases of Equinox."""
    jax = EQUINOX[release]
    names = "", "_functions", "_live_objects", "_mapping", "_static_fields"
    files = [f"test_equinox{name}.py" for name in names]
    test_with(session, "equinox", release, jax, *files)


@nox.session
def spec(session: nox.Session) -> None:
    """Run every example of the docstrings, the READMEs and the documentation."""
    install(session, "test", "examples")
    # The docstrings are found in the source files; a package is imported whole first.
    sources = [f"packages/{name}/src" for name in PACKAGES]
    pages = ["README.md", "docs", *sorted(glob.glob("packages/*/README.md"))]
    # A folder of further pages whose examples must hold.
    if contract := os.environ.get("CONTRACT_EXAMPLES"):
        pages.append(contract)
    plugin = ["-p", "tools.markdown_examples", "--import-first", ",".join(IMPORTS)]
    paths = () if has_paths(session) else [*pages, *sources]
    pytest(session, *plugin, "--doctest-modules", *paths)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting, imports between modules, and the metadata."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "-m", "tools.check_layers")
    session.run("python", "-m", "tools.check_metadata")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check the types of the packages, and of a program that uses them."""
    install(session, "typecheck")
    session.run("mypy", *session.posargs)
    # What users' type checkers see of the public names; editors follow Pyright.
    session.run("mypy", "tests_integration/typed_program.py")
    session.run("basedpyright", "tests_integration/typed_program.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into site/; a warning is an error."""
    # The reference is made from the sources, but for a few signatures.
    install(session, "docs")
    command = session.posargs or ["build", "--strict"]
    # The theme's notice about the plans of mkdocs is no warning about this site.
    session.run("mkdocs", *command, env=environment(NO_MKDOCS_2_WARNING="1"))


@nox.session
def tutorials(session: nox.Session) -> None:
    """Run the tutorials as notebooks, and say how long each takes."""
    install(session, "tutorials", packages=PACKAGES[:2])
    session.run("python", "-m", "tools.tutorials", *session.posargs, env=environment())


@nox.session
def bench(session: nox.Session) -> None:
    """Measure dispatch, tracing, memory and start-up; --check fails over a bar."""
    install(session, "test", "bench")
    session.run("python", "-m", "tools.bench", *session.posargs, env=environment())


@nox.session
def resume(session: nox.Session) -> None:
    """Kill a training run 50 times; it must end with the bits of one never killed."""
    install(session, "test", packages=PACKAGES[:2])
    session.run("python", "-m", "tools.resume", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Run random programs for minutes; each must do what a slow model of it does."""
    install(session, "soak", packages=PACKAGES[:2])
    session.run("python", "-m", "tools.soak", *session.posargs, env=environment())


@nox.session
def mutation(session: nox.Session) -> None:
    """Test a seeded sample of small faults in the mechanism; tests must notice them."""
    install(session, "test", "mutation")
    session.run("python", "-m", "tools.mutation", *session.posargs, env=environment())


@nox.session
def build(session: nox.Session) -> None:
    """Build the sdist and the wheel of each package into dist/."""
    session.install(*group("build"))
    for package in PACKAGES:
        for old in ROOT.glob(f"dist/{package.replace('-', '_')}-*"):
            old.unlink()
        session.run("python", "-m", "build", "--outdir", "dist", f"packages/{package}")


@nox.session(name="install")
def install_alone(session: nox.Session) -> None:
    """Install each package alone, in every documented way, into fresh environments."""
    session.install(*group("build"), "pip>=24")
    session.run("python", "-m", "tools.check_install", *session.posargs)


@nox.session(python=OLDEST)
def min_versions(session: nox.Session) -> None:
    """Test every package on the oldest supported Python, jax and numpy."""
    bounds = {r for name in PACKAGES for r in metadata(name)["dependencies"]}
    oldest = sorted(r.replace(">=", "==") for r in bounds if "graphcore" not in r)
    jax = next(r for r in oldest if r.startswith("jax=="))
    oldest.append(jax.replace("jax", "jaxlib"))
    install(session, "test", extra=oldest)
    pytest(session, *(() if has_paths(session) else test_folders(PACKAGES)))


@nox.session
@nox.parametrize("jax", [nox.param(release, id=release) for release in BETWEEN])
def between(session: nox.Session, jax: str) -> None:
    """Test every package on a release of JAX between the oldest and the newest."""
    install(session, "test", extra=[f"jax=={jax}", f"jaxlib=={jax}"])
    pytest(session, *(() if has_paths(session) else test_folders(PACKAGES)))


@nox.session(python=["3.14t", "3.13t"])
def free_threading(session: nox.Session) -> None:
    """Test every package on Pythons without a global interpreter lock, if found."""
    # Of what some optional parts need, there are no wheels for these.
    wheels = ("--only-binary", ":all:")
    install(session, "free-threading", extra=wheels)
    files = "tests_integration/test_threads_and_processes.py"
    paths = [*test_folders(PACKAGES), files]
    env = environment(PYTHON_GIL="0")
    # Once there are threads, 3.13t never frees a class, which many a test asks for.
    chosen = ("-k", "thread") if session.python == "3.13t" else ()
    pytest(session, *chosen, *(() if has_paths(session) else paths), env=env)


@nox.session
def gpu(session: nox.Session) -> None:
    """Test every package with JAX on CUDA; where there is no GPU say so and skip."""
    driver = cuda_driver()
    if driver is None:
        reason = "No NVIDIA GPU found (no working nvidia-smi, no /dev/nvidia*)"
        if os.environ.get("REQUIRE_GPU") == "1":
            session.error(f"{reason}, but REQUIRE_GPU=1 asks for one")
        session.skip(reason)
    # GPU_PYTHON or `nox --no-venv` names an environment that has a CUDA JAX and the
    # test requirements already: nothing is installed, and no network is needed.
    python = os.environ.get("GPU_PYTHON")
    # Products of float32 in full: tests compare them with numpy's, and others.
    env = {"JAX_PLATFORMS": "cuda,cpu", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    if python or session.bin_paths is None:
        python = python or sys.executable
        sources = [str(ROOT / "packages" / name / "src") for name in PACKAGES]
        paths = [*sources, *filter(None, [os.environ.get("PYTHONPATH")])]
        env["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        python = "python"
        cuda = os.environ.get("JAX_CUDA") or ("13" if driver >= 580 else "12")
        install(session, "test", extra=[f"jax[cuda{cuda}]"])
    # Without this, a JAX that finds no GPU would pass every test on the CPU.
    probe = "import jax; print(jax.__version__, jax.devices('gpu'))"
    session.run(python, "-c", probe, env=env, external=True)
    tests = () if has_paths(session) else test_folders(PACKAGES)
    workers = os.environ.get("GPU_WORKERS", "4")
    pytest(session, *tests, python=python, workers=workers, env=env)


def cuda_driver() -> int | None:
    """The major version of the NVIDIA driver, 0 if unknown, None without a GPU."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True)
        return int(answer.stdout.split(".")[0])
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 0 if glob.glob("/dev/nvidia[0-9]*") else None


@nox.session
def workflows(session: nox.Session) -> None:
    """Check the workflow files: their schema, and that the sessions exist."""
    session.install(*group("workflows"))
    session.run("python", "-m", "tools.check_workflows", sys.executable)


@nox.session
def demo(session: nox.Session) -> None:
    """Train classifiers, and a language model in two processes; show what happened."""
    install(session, "demo")
    session.run("python", "-m", "tools.demo", *session.posargs, env=environment())
