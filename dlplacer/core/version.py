"""The version of dlplacer."""

__version__ = "0.1.0"
