"""What the user asked for: every option, and what the options name, loaded."""
