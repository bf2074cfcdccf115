"""Show records to people: `view` turns them into words and figures, `terminal` prints these."""
