"""TensorRT in another process, perhaps on another machine.

In `worker`, the module `worker` runs there; `transport` starts it and carries frames; `client` asks
it for engines.
"""
