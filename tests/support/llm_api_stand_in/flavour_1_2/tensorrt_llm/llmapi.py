from stand_in_llm import GuidedDecodingParams, KvCacheConfig
from stand_in_results import CompletionOutput, RequestOutput

__all__ = ["CompletionOutput", "GuidedDecodingParams", "KvCacheConfig", "RequestOutput"]
