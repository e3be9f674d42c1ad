"""What a request demands of its reply, as a grammar that the engine can hold it to."""

from adapter.guides.plan import Demand, GuidePlan, asking_field, guide_for

__all__ = ["Demand", "GuidePlan", "asking_field", "guide_for"]
