from .elastic.asynchronous_run import run_async as run_async
from .elastic.outer_optimizer import OuterOptimizer as OuterOptimizer
from .elastic.outer_rules import diloco as diloco
from .elastic.outer_rules import easgd as easgd
from .elastic.outer_rules import local_sgd as local_sgd
