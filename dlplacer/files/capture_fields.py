"""The ``capture`` of a graph file: how a graph was captured, as those expect it who capture again."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dlplacer.core.record import Count
from dlplacer.files.fields import ListOf


class ArgumentModel(BaseModel):
    model_config = ConfigDict(strict=True)

    path: str = ""
    shape: ListOf[Count]
    dtype: str = ""


class OnnxModel(BaseModel):
    model_config = ConfigDict(strict=True)

    sha256: str = ""
    dims: Annotated[dict[str, Count], Field(default_factory=dict)]


class CaptureModel(BaseModel):
    """The fields of ``capture`` that something reads; it may hold others."""

    model_config = ConfigDict(strict=True)

    entry: str | None = None
    mode: str = ""
    args: ListOf[ArgumentModel]
    loss: str | None = None
    autocast: str | None = None
    torch: str = ""
    rewrites: ListOf[str]
    optimizer: str | None = None
    colocate_backward: bool = False
    granularity: str | None = None
    measured_on: ListOf[str]
    onnx: OnnxModel | None = None
    collectives: dict[str, Any] | None = None
