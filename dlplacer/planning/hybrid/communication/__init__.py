"""How the workers of a data-parallel step exchange gradients over the links of a machine, and how long steps take."""
