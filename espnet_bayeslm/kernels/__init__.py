"""Fast functions: what layers say in plain torch, computed in less time and memory."""
