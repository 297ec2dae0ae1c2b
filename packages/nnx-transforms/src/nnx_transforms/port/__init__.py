"""Rewrites the imports of code that was written for Flax.

`python -m nnx_transforms.port FILE` makes `import linen_lift as nn` of `from flax
import linen as nn`, `import nnx_transforms as nnx` of `from flax import nnx`, and so
on, and lists what it cannot map. Formatting and comments stay as they are, and so does
what these packages work with but do not replace, such as `flax.struct`.

Which names there are is found by looking at the installed packages; where they are in
Flax is in one table, `nnx_transforms.port.names.HOMES`.
"""

from .rewriting import Ported, Problem, port

__all__ = ["Ported", "Problem", "port"]
