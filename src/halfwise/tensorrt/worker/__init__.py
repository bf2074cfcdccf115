"""The worker in another process, and what speaks to it."""
