"""What the logs of TensorRT say: messages, and errors of its parser."""
