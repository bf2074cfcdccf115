"""Whether a candidate is right: references, criteria, batches, and what was not judged."""
