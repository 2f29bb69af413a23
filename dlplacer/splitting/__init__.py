"""Which ops of a step to split, so that devices that would wait for one op share it instead."""

from dlplacer.splitting.choose import SplitChoice, choose_splits
from dlplacer.splitting.place import SplitResult, place_with_splits

__all__ = ["SplitChoice", "SplitResult", "choose_splits", "place_with_splits"]
