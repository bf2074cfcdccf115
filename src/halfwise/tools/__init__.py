"""What helps beside `fix`: one module or package per command."""
