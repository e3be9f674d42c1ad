from stand_in_llm import LoRARequest

__all__ = ["LoRARequest"]
