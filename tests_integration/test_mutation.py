"""Mutants are drawn as a seed says, and one module is read in its mutated form."""

import importlib
import sys

from tools.mutation import mutants, trials
from tools.mutation.targets import ROOT, modules

PATHS = [path for path in modules() if path.stem in ("walk", "joint")]


def test_a_larger_sample_begins_with_a_smaller_one():
    small, large = (mutants.sample(PATHS, size, seed=1) for size in (10, 30))
    assert large[:10] == small
    assert len({mutant.site for mutant in large}) == 30
    assert mutants.sample(PATHS, 10, seed=2) != small


def test_mutants_change_what_runs_and_nothing_else():
    for mutant in mutants.sample(PATHS, 20, seed=0):
        before, after = mutant.difference()
        assert before != after
        line = (ROOT / mutant.module).read_text().splitlines()[mutant.line - 1]
        assert line.strip() in before
        assert "TYPE_CHECKING" not in before
        if mutant.is_another_program():
            compile(mutant.source(), mutant.module, "exec")


def test_a_deleted_statement(tmp_path, monkeypatch):
    (tmp_path / "sample.py").write_text("x = {}\nx['a'] = 1\nx.clear()\ny: int = 2\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    found = [m for m in mutants.mutants("sample.py") if m.operator == "DeleteStatement"]
    assert [m.difference() for m in found] == [
        ("x['a'] = 1", "pass"),
        ("x.clear()", "pass"),
    ]


def test_the_mutated_form_is_what_is_imported(tmp_path, monkeypatch):
    source = tmp_path / "src" / "mutated_sample.py"
    source.parent.mkdir()
    source.write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(source.parent)
    finder = trials._Mutated(source, "ANSWER = 41\n")
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.import_module("mutated_sample").ANSWER == 41
    assert source.read_text() == "ANSWER = 42\n"
