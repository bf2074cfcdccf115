"""Real exports of norms and GELUs; each script runs in an environment that has its framework."""
