import pytest
from nbclient.exceptions import CellExecutionError

from tools import tutorials

PAGE = """# A page

It says `text`.

```python
import matplotlib.pyplot as plt

print("an output")
plt.plot([1, 2]);
```

```pycon
>>> not_a_cell
```
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(tutorials, "SOURCES", tmp_path)
    monkeypatch.setattr(tutorials, "EXECUTED", tmp_path / "executed")

    def write(text):
        source = tmp_path / "page.md"
        source.write_text(text)
        return source

    return write


def test_a_page_has_its_outputs_and_figures(write):
    source = write(PAGE)
    made = tutorials.executed(source)
    text, figures = tutorials.page(made, "page")
    assert text.startswith("# A page\n\n[Download this page as a notebook](page.ipynb)")
    assert "    an output" in text and ">>> not_a_cell" in text
    ((path, figure),) = figures.items()
    assert path.startswith("page_files/") and f"]({path})" in text
    assert figure.startswith(b"\x89PNG")

    # It is not run again, until a cell or the text is another.
    assert tutorials.executed(source) == made
    write(PAGE.replace("an output", "another"))
    assert "    another" in tutorials.page(tutorials.executed(source), "page")[0]


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("1 / 0", CellExecutionError, "ZeroDivisionError"),
        ("import warnings; warnings.warn('old')", ValueError, "page.md: .*\n*.*old"),
    ],
)
def test_a_page_that_fails_or_warns_is_refused(write, code, error, message):
    source = write(f"# A page\n\n```python\n{code}\n```\n")
    with pytest.raises(error, match=message):
        tutorials.execute(source)
    assert not tutorials.EXECUTED.exists()


def test_tutorials_are_the_pages_with_cells(write):
    source = write("# No cells\n\n```console\n$ ls\n```\n")
    assert tutorials.sources() == []
    write(PAGE)
    assert tutorials.sources() == [source]
