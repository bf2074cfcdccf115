"""The commands other than `fix`: one module or package each."""
