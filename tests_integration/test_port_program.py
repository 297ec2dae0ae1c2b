"""The porting tool as a program on the command line."""

import subprocess
import sys

import pytest

from nnx_transforms.port.__main__ import main

LINEN = "from flax import linen as nn\nx = nn.Dense\n"
OURS = "import linen_lift as nn\nx = nn.Dense\n"
ODD = "from flax import linen as nn\nx = nn.Fp8Einsum\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(LINEN)
    return path


def test_printing(file, capsys):
    assert main([str(file)]) == 0
    assert capsys.readouterr().out == OURS
    assert file.read_text() == LINEN
    assert main(["--diff", str(file)]) == 0
    out = capsys.readouterr().out
    assert "-from flax import linen as nn\n+import linen_lift as nn\n" in out


def test_writing(file, tmp_path, capsys):
    other = tmp_path / "out.py"
    assert main([str(file), "-o", str(other)]) == 0
    assert (file.read_text(), other.read_text()) == (LINEN, OURS)
    file.chmod(0o640)
    assert main(["--write", str(file)]) == 0
    assert file.read_text() == OURS and file.stat().st_mode & 0o777 == 0o640
    changed = file.stat().st_mtime_ns
    assert main(["--write", str(file)]) == 0
    assert file.stat().st_mtime_ns == changed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.py", "out.py"]
    assert capsys.readouterr().out == ""


def test_checking(file, capsys):
    assert main(["--check", str(file)]) == 1
    assert f"{file}: would change" in capsys.readouterr().err
    assert file.read_text() == LINEN
    file.write_text(OURS)
    assert main(["--check", str(file)]) == 0


def test_problems_are_printed_with_file_and_line(file, capsys):
    file.write_text(ODD)
    assert main([str(file)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{file}:2: flax.linen.Fp8Einsum: ")
    assert captured.out.startswith("import linen_lift")


def test_files_that_are_no_python_are_left_alone(file, tmp_path, capsys):
    bad = tmp_path / "bad.py"
    bad.write_bytes(b"from flax import (")
    latin = tmp_path / "latin.py"
    latin.write_bytes(b"# coding: latin-1\nfrom flax import nnx  # \xe4\r\n")
    missing = tmp_path / "missing.py"
    assert main(["-w", str(tmp_path), str(missing)]) == 2
    err = capsys.readouterr().err
    assert f"{bad}: left as it is" in err and f"{missing}: left as it is" in err
    assert bad.read_bytes() == b"from flax import ("
    assert file.read_text() == OURS
    expected = b"# coding: latin-1\nimport nnx_transforms as nnx  # \xe4\r\n"
    assert latin.read_bytes() == expected


def test_a_byte_order_mark_stays(file):
    file.write_bytes(b"\xef\xbb\xbf" + LINEN.encode())
    assert main(["-w", str(file)]) == 0
    assert file.read_bytes() == b"\xef\xbb\xbf" + OURS.encode()


def test_mistakes_on_the_command_line(file, tmp_path, capsys):
    (tmp_path / "other.py").write_text(LINEN)
    assert main([str(tmp_path)]) == 2
    assert "several" in capsys.readouterr().err
    assert main([str(tmp_path), "-o", str(tmp_path / "x")]) == 2
    with pytest.raises(SystemExit) as stopped:
        main(["--write", "--check", str(file)])
    assert stopped.value.code == 2


def test_as_a_program():
    command = [sys.executable, "-m", "nnx_transforms.port", "-"]
    done = subprocess.run(command, input=ODD, capture_output=True, text=True)
    assert done.returncode == 1 and "<stdin>:2:" in done.stderr
    assert done.stdout == "import linen_lift as nn\nx = nn.Fp8Einsum\n"
