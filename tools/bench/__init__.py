"""Benchmarks: what the packages cost over plain JAX, beside their peers.

``python -m tools.bench --help`` says how to run them, `docs/benchmarks.md` what they
measure. Each section of measurements is a module with a function `run`; all of them
return what `results` defines, which `tables` and `plots` show.
"""
