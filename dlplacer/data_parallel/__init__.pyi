from .ternary.hook import ternary_hook as ternary_hook
from .ternary.state import TernaryState as TernaryState
