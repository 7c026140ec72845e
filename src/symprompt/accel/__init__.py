"""What is there for speed alone: packed rows and Triton kernels, each with a plain PyTorch twin."""

from symprompt.accel.switches import without

__all__ = ["without"]
