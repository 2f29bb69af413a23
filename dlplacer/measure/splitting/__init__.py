"""The choice of ops to split, so that devices that would wait for one op share it instead."""

from dlplacer.measure.splitting.choose_splits import SplitChoice, choose_splits
from dlplacer.measure.splitting.place_with_splits import SplitResult, place_with_splits

__all__ = ["SplitChoice", "SplitResult", "choose_splits", "place_with_splits"]
