from matplotlib.axes import Axes
from dlplacer.plan import Plan
def placement_size(plan): return 10.,5.
def plot_placement(plan, ax=None): return ax
