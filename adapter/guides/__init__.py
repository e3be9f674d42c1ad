"""What a request demands of its reply, as a grammar that the engine can hold it to."""

from adapter.guides.plan import Demand, GuidePlan, guide_for

__all__ = ["Demand", "GuidePlan", "guide_for"]
