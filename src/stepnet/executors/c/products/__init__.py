"""Products of rows and matrices in C: for each element type how a matrix is packed and multiplied."""

from .cpu import are_loops_of_torch as are_loops_of_torch
from .cpu import are_slow_in_torch as are_slow_in_torch
from .cpu import has_tiles as has_tiles
from .precision import asked_precision as asked_precision
from .precision import float_parts as float_parts
from .product import BY_DTYPE as BY_DTYPE
from .product import BY_SUFFIX as BY_SUFFIX
from .product import OVER_ROOM as OVER_ROOM
from .product import ROOM as ROOM
from .product import Product as Product
from .product import common as common
from .product import on_rows as on_rows
from .product import over_rows as over_rows
from .product import over_vectors as over_vectors
from .product import paired as paired
from .product import split as split
from .product import with_needs as with_needs
