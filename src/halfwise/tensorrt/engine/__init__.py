"""What an engine is: its layers, names, types and formats."""
