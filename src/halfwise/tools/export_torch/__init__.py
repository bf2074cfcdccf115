"""Export a PyTorch module, and show that the file computes what the module does."""
