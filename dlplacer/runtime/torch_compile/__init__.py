"""The shortest entry point: ``import dlplacer.runtime.torch_compile; torch.compile(model, backend="dlplacer")``."""

from dlplacer.runtime.torch_compile.backend import CompileOptions, dlplacer

__all__ = ["CompileOptions", "dlplacer"]
