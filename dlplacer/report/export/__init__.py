"""Plans in the formats of other tools."""

from dlplacer.report.export.device_map import device_map

__all__ = ["device_map"]
