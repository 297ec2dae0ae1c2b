"""Mutants are drawn as a seed says, and one module is read in its mutated form."""

import importlib
import subprocess
import sys

from tools.mutation import mutants, results, trials
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
    mutants._text.cache_clear()
    (tmp_path / "sample.py").write_text("x = {}\nx['a'] = 1\nx.clear()\ny: int = 2\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    found = [m for m in mutants.mutants("sample.py") if m.operator == "DeleteStatement"]
    assert [m.difference() for m in found] == [
        ("x['a'] = 1", "pass"),
        ("x.clear()", "pass"),
    ]


def mutants_of(text, folder, monkeypatch):
    mutants._text.cache_clear()
    (folder / "sample.py").write_text(text)
    monkeypatch.setattr(mutants, "ROOT", folder)
    return mutants.sample(["sample.py"], 100, seed=0)


def test_what_is_known_of_a_function_outlives_edits_of_others(tmp_path, monkeypatch):
    text = "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return not x\n"
    before = mutants_of(text, tmp_path, monkeypatch)
    after = mutants_of(
        text.replace("def f(x):", "def f(x, y):\n    y()"), tmp_path, monkeypatch
    )
    of_g = {m.key for m in before if m.line > 3}
    assert of_g and of_g <= {m.key for m in after}
    assert not {m.key for m in before if m.line < 3} & {m.key for m in after}


def test_what_only_forbids_something_is_not_drawn(tmp_path, monkeypatch):
    text = "def f(x, *, y=1):\n    return [*zip(x, y, strict=True)]\n"
    assert {m.operator for m in mutants_of(text, tmp_path, monkeypatch)} == {
        "NumberReplacer"
    }
    for line in ("type(x) is int", "len(x) == 1"):
        text = f"def f(x):\n    return {line}\n"
        drawn = {m.operator for m in mutants_of(text, tmp_path, monkeypatch)}
        assert drawn
        assert not any(name.endswith(("Is_Eq", "Eq_Is")) for name in drawn)


def test_tasks_are_done_by_several_processes_until_it_is_time():
    # In a process of its own, without the threads of JAX: it is forked.
    code = (
        "from tools.mutation.processes import in_processes as run\n"
        "tasks = [(number,) for number in range(5)]\n"
        "print(sorted(run(abs, tasks, 2, float('inf'))), [*run(abs, tasks, 2, 0.0)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{[(n, n) for n in range(5)]} []"


def test_the_mutated_form_is_what_is_imported(tmp_path, monkeypatch):
    source = tmp_path / "src" / "mutated_sample.py"
    source.parent.mkdir()
    source.write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(source.parent)
    finder = trials._Mutated(source, "ANSWER = 41\n")
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.import_module("mutated_sample").ANSWER == 41
    assert source.read_text() == "ANSWER = 42\n"


def test_reasons_are_for_lines_that_there_are():
    for module, before, _ in results.reasons():
        source = "".join((ROOT / module).read_text().split())
        assert "".join(before.split()) in source, (module, before)
