"""Random programs on random graphs, against a slow model that shares no code.

``python -m tools.soak --help`` says how to run it. A program edits a graph of live
objects and calls transformed functions on it. The same program runs on plain Python
objects with numpy arrays, where `jit` is the function itself, `vmap` and `scan` are
loops, and what fails is not done at all; derivatives are those of `jax.grad` by value.
After each step both graphs must be the same: what stands where, what is shared, static
values, metadata, arrays to the last bit (values are small whole numbers, so sums of
them are exact).

`kits` holds the two kinds of objects, `actions` what programs do to them, `layers` the
transforms, `worlds` a graph with its twin and the steps of a program, `comparing` the
comparison, `flatness` what must not grow, `plants` faults that must be found, and
`machine` the same steps under Hypothesis, which makes short programs of what fails.
"""
