from . import errors, filters, frozen_dict, metadata, scope, lift
from .lift import *
from .scope import *
from .metadata import *
from .errors import LinenLiftError
