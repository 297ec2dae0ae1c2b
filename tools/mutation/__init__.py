"""How many small faults the tests notice: mutants of the mechanism, tested one by one.

``python -m tools.mutation --help`` says how to run it. The operators are those of
Cosmic Ray, and one of our own; what is ours is how a mutant is tested. Each gets a
process that is forked after JAX was imported and before the packages are, reads one
module in its mutated form, and runs the tests that cover the mutated line, those that
kill most first. So a mutant takes seconds, and no file is ever changed. (Mutmut's
trampolines would add frames and closures to functions whose frames, signatures and
references the tests count.)
"""
