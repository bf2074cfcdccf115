"""What a run shows: records in, lines and tables out."""
