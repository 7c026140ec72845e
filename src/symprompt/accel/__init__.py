"""What is there for speed alone, each with a plain PyTorch twin.

Packed rows, joined products, Triton kernels, the split vocabulary product, compiling and recording.
``compiling.choose`` decides once per run what is compiled and recorded.
"""

from symprompt.accel.compiling import choose, without

__all__ = ["choose", "without"]
