"""The demo runs from start to end, learns, and draws what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

for needed in ("optax", "rich", "sklearn"):
    pytest.importorskip(needed)
pictures = pytest.importorskip("matplotlib.image")

ROOT = Path(__file__).resolve().parent.parent


def run_demo(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the demo as a user does, with one CPU device and no terminal."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "-W", "error", "-m", "tools.demo", *map(str, args)]
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600
    )


def accuracy(output: str) -> float:
    """The accuracy that a part reports, in percent."""
    [found] = re.findall(r"accuracy on held-out digits: ([\d.]+)%", output)
    return float(found)


def check_figure(output: str, path: Path) -> None:
    """The output says where the figure is, and it is a picture of something."""
    assert f"figure: {path}" in output
    image = pictures.imread(path)
    assert min(image.shape[:2]) > 700
    assert len(np.unique(image.reshape(-1, image.shape[-1])[::97], axis=0)) > 20


def test_live_objects(tmp_path: Path) -> None:
    done = run_demo("--quick", "--part", "1", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) >= 96
    check_figure(done.stdout, tmp_path / "live_objects.png")
    assert "264/264" in done.stdout  # the progress bar, at its end
    assert "counted 16,896 images" in done.stdout
    line = r"dispatch of the step \(39 variables\): live objects \d+ µs, raw .* \d+ µs"
    assert re.search(line, done.stdout)


def test_deep_network(tmp_path: Path) -> None:
    done = run_demo("--quick", "--part", "2", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) >= 95
    check_figure(done.stdout, tmp_path / "deep_network.png")
    [(free, clipped)] = re.findall(
        r"largest gradient of a layer: ([\d.]+), with the custom rule ([\d.]+)",
        done.stdout,
    )
    assert float(free) > float(clipped) == 1.0
    rows = re.findall(
        r"^  (Python loop|scan)( \+ remat)? +([\d.]+) MB.* ms +([\d.]+)$",
        done.stdout,
        re.MULTILINE,
    )
    memory = {(loop, bool(remat)): float(size) for loop, remat, size, _ in rows}
    assert len(memory) == 4
    # What it saves without a loop depends on the version of the compiler.
    assert memory["Python loop", True] < memory["Python loop", False] * 1.1
    assert memory["scan", True] < memory["scan", False] / 2
    losses = [float(loss) for *_, loss in rows]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


def test_functional_modules(tmp_path: Path) -> None:
    done = run_demo("--quick", "--part", "3", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert accuracy(done.stdout) >= 95
    check_figure(done.stdout, tmp_path / "functional_modules.png")
    assert (
        len(re.findall(r"\d+ ms with scan, +\d+ ms as a Python loop", done.stdout)) == 3
    )


def test_sharded_training() -> None:
    done = run_demo("--quick", "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert "2 processes, Mesh('data': 2, 'model': 2" in done.stdout
    assert "Part 1" not in done.stdout
    table = (
        r"layers/feed_forward/up/kernel +Param +float32\[4,64,256@model\] +\[4,64,128\]"
    )
    assert re.search(table, done.stdout)
    assert done.stdout.count("20/20") == 2  # in two processes, and in one
    [apart] = re.findall(r"apart from one process by at most (\S+)", done.stdout)
    assert float(apart) < 1e-4


def test_low_accuracy_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tools.demo import __main__ as program
    from tools.demo import live_objects
    from tools.demo.progress import Result

    monkeypatch.setattr(live_objects, "run", lambda settings: Result(0.959, 0.96))
    command = ["demo", "--part", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    assert program.main() == 1
    assert "95.9% (at least 96%: TOO LOW)" in capsys.readouterr().out
