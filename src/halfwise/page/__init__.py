"""The report as one HTML file, which opens anywhere, offline, and can be shared."""
