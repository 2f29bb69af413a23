"""The shortest way in: ``import dlplacer.dynamo; torch.compile(model, backend="dlplacer")``."""

from dlplacer.dynamo.backend import CompileOptions, dlplacer

__all__ = ["CompileOptions", "dlplacer"]
