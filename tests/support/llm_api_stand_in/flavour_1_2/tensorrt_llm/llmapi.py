from stand_in_llm import GuidedDecodingParams, KvCacheConfig

__all__ = ["GuidedDecodingParams", "KvCacheConfig"]
