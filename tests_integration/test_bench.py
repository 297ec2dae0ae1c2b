"""The benchmark program: its statistics, verdicts and tables, and a tiny run."""

import importlib.util
import json
import math
import time
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.bench import jaxprs, page, tables, tracing_nnx
from tools.bench.command import SECTIONS, main, read_arguments
from tools.bench.measuring import SMOKE, Comparison, Prepared, compare
from tools.bench.results import (
    Bar,
    Cell,
    Row,
    Section,
    Spread,
    Table,
    growth_exponent,
    missed,
    ratios,
)

positive = st.floats(1e-6, 1e6)
needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib"
)


# --- statistics --------------------


@given(st.lists(positive, min_size=1, max_size=30))
def test_a_spread_is_ordered_and_within_the_values(values):
    spread = Spread.of(values)
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)


def test_quartiles():
    assert Spread.of([5, 1, 4, 2, 3]) == Spread(3, 2, 4, 5)


@given(st.lists(st.tuples(positive, positive), min_size=1), st.floats(0.5, 2))
def test_what_slows_a_round_down_cancels(pairs, factor):
    mine, baseline = zip(*pairs, strict=True)
    slowed = [x * factor ** (i % 3) for i, x in enumerate(mine)]
    base = [x * factor ** (i % 3) for i, x in enumerate(baseline)]
    assert ratios(slowed, base) == pytest.approx(ratios(mine, baseline))


def test_ratios_of_what_dropped_out_early():
    assert ratios([2.0, 6.0], [1.0, 2.0, 5.0]) == [2.0, 3.0]


@given(st.floats(-1, 3), positive)
def test_the_exponent_of_a_power_is_found(exponent, factor):
    sizes = [10, 100, 1000, 5000]
    costs = [factor * size**exponent for size in sizes]
    assert growth_exponent(sizes, costs) == pytest.approx(exponent, abs=1e-6)


# --- bars --------------------


@pytest.mark.parametrize(
    ("found", "limit", "at_least", "holds"),
    [
        (1.2, 1.2, False, True),
        (1.21, 1.2, False, False),
        (99.0, 100.0, True, False),
        (100.0, 100.0, True, True),
    ],
)
def test_the_median_decides(found, limit, at_least, holds):
    bar = Bar("bar", Spread(found, 0, 1000), limit, at_least)
    assert bar.holds is holds
    section = Section("s", "S", bars=[bar])
    assert missed([section]) == ([] if holds else [bar])
    assert section.as_json()["bars"][0]["holds"] is holds


# --- rounds --------------------


def test_each_call_is_made_in_each_round():
    counts = Counter()
    calls = {name: lambda name=name: counts.update([name]) for name in "abc"}
    times = Comparison(calls, SMOKE, always=("c",)).measure()
    assert len(times["a"]) == len(times["b"]) == len(times["c"]) >= SMOKE.rounds[0]
    assert set(counts) == set("abc")
    assert all(t >= 0 for mine in times.values() for t in mine)


def test_a_slow_peer_leaves_time_for_the_others():
    calls = {
        "raw": lambda: None,
        "ours": lambda: None,
        "peer": lambda: time.sleep(0.01),
    }
    effort = replace(SMOKE, rounds=(2, 20))
    rounds = {name: len(t) for name, t in Comparison(calls, effort).measure().items()}
    assert rounds["peer"] == 2 < rounds["raw"] == rounds["ours"]


def test_preparation_comes_before_each_call():
    seen = []
    prepared = Prepared(lambda: seen.append("prepare") or 7, seen.append)
    compare({"it": prepared}, SMOKE)
    assert seen[::2] == ["prepare"] * (len(seen) // 2)
    assert seen[1::2] == [7] * (len(seen) // 2)


def test_passes_add_up_and_divide_within_each():
    calls = {
        "raw": lambda: time.sleep(0.002),
        "ours": lambda: None,
        "peer": lambda: None,
    }
    comparison = Comparison(calls, SMOKE)
    passes = [comparison.measure()]
    comparison.keep_lasting()
    passes += [comparison.measure(), comparison.measure()]
    assert [sorted(found) for found in passes[1:]] == [["ours", "raw"]] * 2
    cells = comparison.cells()
    assert cells["ours"].ratio.count == sum(len(found["ours"]) for found in passes)
    assert cells["peer"].ratio.count == len(passes[0]["peer"])
    assert cells["ours"].ratio.high < 1


def test_the_first_call_is_the_baseline():
    cells = compare({"raw": lambda: None, "other": lambda: None}, SMOKE)
    assert cells["raw"].ratio is None
    assert cells["other"].ratio.median > 0


# --- jaxprs --------------------


def test_equal_computations_have_equal_equations():
    def inner(x):
        return jnp.sin(x) * 2

    direct = jax.make_jaxpr(
        lambda x: jax.lax.scan(lambda c, _: (inner(c), 0), x, None, 3)
    )
    again = jax.make_jaxpr(
        lambda y: jax.lax.scan(lambda c, _: (inner(c), 0), y, None, 3)
    )
    assert jaxprs.difference(direct(1.0), again(1.0)) == (0, "")


def test_one_equation_more_is_seen_also_inside_of_others():
    def f(x):
        return jax.lax.cond(x > 0, jnp.sin, jnp.cos, x)

    def g(x):
        return jax.lax.cond(x > 0, lambda x: jnp.sin(jnp.cos(x)), jnp.cos, x)

    assert jaxprs.difference(jax.make_jaxpr(g)(1.0), jax.make_jaxpr(f)(1.0)) == (
        1,
        "+1 cos",
    )
    assert jaxprs.difference(jax.make_jaxpr(f)(1.0), jax.make_jaxpr(g)(1.0)) == (
        1,
        "-1 cos",
    )


@pytest.mark.parametrize("case", ["forward", "remat", "grad", "scan", "custom_vjp"])
def test_our_jaxprs_equal_those_by_hand(case):
    traced = dict(tracing_nnx.cases(2))[case]
    by_hand, ours = (
        jax.make_jaxpr(f)(*args)
        for f, args in (traced["by hand"], traced["nnx-transforms"])
    )
    assert jaxprs.difference(ours, by_hand) == (0, "")


# --- tables and pages --------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.234e-5, "s", "12.3 µs"),
        (0.5, "s", "500 ms"),
        (3 * 2**20, "B", "3.00 MiB"),
        (12345, "count", "12,345"),
        (0.987, "exponent", "0.99"),
    ],
)
def test_amounts_are_scaled(value, unit, text):
    assert tables.amount(value, unit) == text


@given(positive)
def test_numbers_keep_their_value(value):
    assert math.isclose(
        float(tables.number(value).replace(",", "")), value, rel_tol=0.1
    )


def _section():
    cells = {
        "raw": Cell(Spread(2e-5, 1e-5, 3e-5)),
        "ours": Cell(Spread(3e-5, 2e-5, 4e-5), Spread(1.5, 1.25, 1.75)),
    }
    columns = ["raw", "ours", "absent"]
    rows = [Row("a call, 31 variables", 31, cells)]
    table = Table("dispatch", "Calls", "s", "raw", columns, rows, ["A note."])
    bar = Bar("calls over raw", Spread(1.5, 1.25, 1.75), 1.4)
    return Section("dispatch", "Dispatch", [table], [bar])


def test_markdown_shows_times_ratios_notes_and_verdicts():
    text = tables.as_markdown(_section())
    assert "|  | raw | ours |" in text
    assert "| a call, 31 variables | 20.0 µs | 1.50×" in text  # noqa: RUF001
    assert "absent" not in text
    assert "A note." in text
    assert "0 of 1 held" in text
    assert "missed" in text


@needs_matplotlib
def test_a_page_is_filled_and_can_be_filled_again(tmp_path):
    doc = tmp_path / "page.md"
    places = [f"<!-- {n} -->\n<!-- end {n} -->" for n in ("environment", "dispatch")]
    doc.write_text("\n".join(["# Title", *places, "The end."]))
    about = {"device": "cpu", "cpus": 4, "python": "3", "versions": {"jax": "0.8"}}
    page.update(doc, [_section()], about)
    once = doc.read_text()
    assert "jax 0.8" in once
    assert "20.0 µs" in once
    assert (tmp_path / page.IMAGES / "dispatch.png").stat().st_size > 1000
    page.update(doc, [_section()], about)
    assert doc.read_text() == once
    with pytest.raises(ValueError, match="no place for 'memory'"):
        page.update(doc, [Section("memory", "Memory")], about)


def test_the_documentation_has_a_place_for_each_section(request):
    text = (request.config.rootpath / "docs" / "benchmarks.md").read_text()
    for name in ("environment", *SECTIONS):
        page.fill(text, name, "")


# --- the program --------------------


def test_unknown_sections_are_refused(capsys):
    with pytest.raises(SystemExit):
        read_arguments(["--only", "dispatch,speed"])
    assert "speed" in capsys.readouterr().err


def test_a_tiny_run_writes_all_results(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tools.bench.command.QUICK", SMOKE)
    code = main(["--quick", "--check", "--only", "graph", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["environment"]["versions"]["jax"] == jax.__version__
    (section,) = found["sections"]
    cases = {row["case"] for row in section["tables"][0]["rows"]}
    assert {f"{name}, 601 variables" for name in ("split", "merge", "clone")} <= cases
    held = all(bar["holds"] for bar in section["bars"])
    assert code == (0 if held else 1)
    printed = capsys.readouterr().out
    for bar in section["bars"]:
        assert bar["name"] in (tmp_path / "results.md").read_text()
    assert "bars missed" in printed
