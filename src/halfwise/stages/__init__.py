"""The stages of a run, one file or folder per arrow. Stages share records and import no other."""
