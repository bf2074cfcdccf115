"""Reports on runs: records in, lines and tables out."""
