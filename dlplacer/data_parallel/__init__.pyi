from .groups.group_plan import GroupPlan as GroupPlan
from .groups.planned_groups import plan_groups as plan_groups
