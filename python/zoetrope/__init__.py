"""Zoetrope: text to video with the Wan diffusion models on CPUs, and the attention that it is made of.

    import zoetrope
    pipe = zoetrope.WanPipeline.from_pretrained("Wan2.1-T2V-1.3B-Diffusers", ranks=4)
    video = pipe(prompt="a red cat on a market", num_frames=17, generator=42).frames[0]

zoetrope.attention() is exact attention over arrays, zoetrope.plan() the planner. zoetrope.torch has the operator for
PyTorch, zoetrope.diffusers the attention backend of diffusers; both are imported by name. docs/python.md has it all.
"""
import atexit as _atexit
import sys as _sys

from . import _core
from ._attention import attention
from ._core import Error
from ._pipeline import WanImageToVideoPipeline, WanPipeline, WanPipelineOutput
from ._plan import plan

__all__ = ["Error", "WanImageToVideoPipeline", "WanPipeline", "WanPipelineOutput", "attention", "plan"]
Error.__module__ = __name__  # as users import it, in tracebacks too
__version__: str = _core.version()


def _finish_mpi() -> None:
    if getattr(_sys, "last_value", None) is None:
        _core.finish_mpi()
        return
    # An exception ends this process, and the others may wait for it.
    _sys.stdout.flush()
    _core.finish_failed_mpi()


if _core.launched_by_mpi():
    _atexit.register(_finish_mpi)
_atexit.register(_core.end_runs)  # before that: what is registered last is called first
