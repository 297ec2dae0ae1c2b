"""What tells a module from anything else, without knowing what modules can do."""

from __future__ import annotations

import dataclasses
from typing import dataclass_transform


@dataclass_transform(kw_only_default=False, field_specifiers=(dataclasses.field,))
class ModuleBase:
    """The base of `Module`; tells type checkers that its subclasses are dataclasses."""
