"""Train classifiers of handwritten digits: ``python -m tools.demo``.

Three parts, each a file to read from top to bottom and to copy from:

1. `live_objects`: layers are Python objects that share weights, keep statistics, draw
   random numbers and count, trained by one compiled step (``nnx_transforms``).
2. `deep_network`: many layers made by `vmap`, run by `scan` and `remat`, with a custom
   derivative that clips gradients, and what each of these saves (``nnx_transforms``).
3. `functional_modules`: modules whose variables live outside of them, with a scanned,
   rematerialized block and a recurrent cell (``linen_lift``).

The digits are those that scikit-learn ships, so nothing is downloaded. Each part draws
a figure and fails if its accuracy on held-out digits is below its target.
"""
