"""python_math: questions that a few lines of Python answer and mental arithmetic does not."""

from pipeline.environments.python_math.generator import INLINE, PythonMath, load

__all__ = ["INLINE", "PythonMath", "load"]
