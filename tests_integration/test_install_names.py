"""An unrelated project owns the name graphcore on the public index, up to 0.9.1.

An installer that sees that index alone must refuse to install the packages that need
our graphcore, and say why, instead of taking the wrong one.
"""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

uv = pytest.importorskip("uv")
pytest.importorskip("build")
pytest.importorskip("hatchling")

ROOT = Path(__file__).resolve().parent.parent
DEPENDENTS = ("nnx-transforms", "linen-lift")
# What the stand-in for the public index offers.
PUBLIC = {
    "graphcore": "0.9.1",
    "jax": "0.10.0",
    "numpy": "2.4.0",
    "typing_extensions": "4.15.0",
}


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run an installer without the settings of this machine or user."""
    own = ("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV")
    env = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    env |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "NO_COLOR": "1"}
    return subprocess.run(
        [str(part) for part in command],
        env=env,
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def write_wheel(folder: Path, name: str, version: str) -> Path:
    """Write a wheel that holds one empty module and requires nothing."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        ),
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: test\n"
            "Root-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = ""
    for path, text in files.items():
        digest = hashlib.sha256(text.encode()).digest()
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        record += f"{path},sha256={encoded},{len(text)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheels of this repository's packages."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    for package in ("graphcore", *DEPENDENTS):
        built = run(*command, "--outdir", folder, ROOT / "packages" / package)
        assert built.returncode == 0, built.stdout
    return folder


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a package index that looks like the public one."""
    root = tmp_path_factory.mktemp("index")
    links = []
    for name, version in PUBLIC.items():
        # The normal form of the name, by which installers ask for the page.
        page = root / name.replace("_", "-")
        page.mkdir()
        wheel = write_wheel(page, name, version)
        link = f'<!DOCTYPE html><a href="{wheel.name}">{wheel.name}</a>\n'
        (page / "index.html").write_text(link)
        links.append(f'<a href="{page.name}/">{page.name}</a>\n')
    (root / "index.html").write_text("<!DOCTYPE html>\n" + "".join(links))
    return root.as_uri()


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest, tmp_path: Path) -> list[str | Path]:
    """The start of a command that resolves requirements for a fresh environment."""
    made = run(uv.find_uv_bin(), "venv", "--python", sys.executable, tmp_path / "env")
    assert made.returncode == 0, made.stdout
    folder = "Scripts" if os.name == "nt" else "bin"
    python = tmp_path / "env" / folder / "python"
    if request.param == "pip":
        pip = [sys.executable, "-m", "pip", "--isolated", "--python", python]
        return [*pip, "install", "--dry-run", "--no-cache-dir"]
    return [uv.find_uv_bin(), "pip", "install", "--python", python, "--dry-run"]


@pytest.mark.parametrize("package", DEPENDENTS)
def test_index_alone_is_refused_with_a_clear_message(
    package: str, installer: list[str | Path], index: str, wheels: Path
) -> None:
    wheel = next(wheels.glob(f"{package.replace('-', '_')}-*.whl"))

    refused = run(*installer, "--index-url", index, wheel)

    assert refused.returncode != 0, refused.stdout
    # The message may be wrapped; it names the requirement that the index cannot fill.
    message = " ".join(refused.stdout.split())
    assert "graphcore<2,>=1" in message or "graphcore>=1,<2" in message, message
    assert package in message


@pytest.mark.parametrize("package", DEPENDENTS)
def test_folder_of_wheels_wins_over_the_index(
    package: str, installer: list[str | Path], index: str, wheels: Path
) -> None:
    folder = ("--find-links", wheels)
    done = run(*installer, "--index-url", index, *folder, f"{package}>=1")

    assert done.returncode == 0, done.stdout
    assert "0.9.1" not in done.stdout
    assert "graphcore-1." in done.stdout or "graphcore==1." in done.stdout, done.stdout


def test_stand_in_index_offers_the_unrelated_project(
    installer: list[str | Path], index: str
) -> None:
    done = run(*installer, "--index-url", index, "graphcore")

    assert done.returncode == 0, done.stdout
    assert "graphcore-0.9.1" in done.stdout or "graphcore==0.9.1" in done.stdout
