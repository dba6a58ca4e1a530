"""Products of rows and matrices in C: for each element type how a matrix is packed and multiplied."""

from .product import BY_DTYPE as BY_DTYPE
from .product import Product as Product
from .product import common as common
from .product import paired as paired
from .product import with_sums as with_sums
