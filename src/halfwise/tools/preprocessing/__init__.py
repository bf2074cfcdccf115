"""Compare two preprocessing pipelines by their results on the same samples."""
