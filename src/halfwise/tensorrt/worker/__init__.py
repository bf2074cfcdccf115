"""The worker in another process, and the code that talks to it."""
