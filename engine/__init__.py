"""Prompt token ids in, sampled ids and log probs out. Knows nothing of HTTP, chat or text."""
