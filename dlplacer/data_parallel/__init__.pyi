from .ternary.hook import ternary_hook as ternary_hook
from .ternary.reduce_scatter import ternary_reduce_scatter as ternary_reduce_scatter
from .ternary.state import TernaryState as TernaryState
