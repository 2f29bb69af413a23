from .elastic.asynchronous_run import run_async as run_async
from .elastic.outer_optimizer import OuterOptimizer as OuterOptimizer
from .elastic.outer_rules import diloco as diloco
from .elastic.outer_rules import easgd as easgd
from .elastic.outer_rules import local_sgd as local_sgd
from .ternary.hook import ternary_hook as ternary_hook
from .ternary.reduce_scatter import ternary_reduce_scatter as ternary_reduce_scatter
from .ternary.state import TernaryState as TernaryState
