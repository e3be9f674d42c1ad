from stand_in_llm import LoraConfig, get_default_trtllm_modules_to_hf_modules

__all__ = ["LoraConfig", "get_default_trtllm_modules_to_hf_modules"]
