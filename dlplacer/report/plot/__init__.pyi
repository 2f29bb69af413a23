from .gantt import plot_gantt as plot_gantt
from .gantt import plot_run as plot_run
from .memory import plot_memory as plot_memory
from .pictures import save_picture as save_picture
from .placement import plot_placement as plot_placement
from .results import plot_hybrid as plot_hybrid
from .results import plot_pipeline as plot_pipeline
from .topology import plot_topology as plot_topology
