from .epochs.delayed_updates import delayed_updates as delayed_updates
from .epochs.emulated_workers import EmulatedWorkers as EmulatedWorkers
from .epochs.epoch_counts import MeasuredEpochs as MeasuredEpochs
from .epochs.measured_epochs import measure_epochs as measure_epochs
from .groups.group_plan import GroupPlan as GroupPlan
from .groups.planned_groups import plan_groups as plan_groups
