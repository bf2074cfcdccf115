"""The user's options, and what they name, loaded."""
