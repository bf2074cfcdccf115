"""Recipes of engines: shell command, Python script, C++ program and others."""
