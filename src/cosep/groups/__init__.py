"""Which channels stay or go together, and which of them may be removed."""

from cosep.groups.find import find_groups, groups_in_scope

__all__ = ["find_groups", "groups_in_scope"]
