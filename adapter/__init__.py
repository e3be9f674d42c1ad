"""Agent protocols, text and trajectories in front of an engine."""
