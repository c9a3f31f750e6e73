"""What the C library does with memory that is freed, and what Python's garbage collector looks at.

A step takes and gives back arrays of megabytes. By default glibc returns such blocks to the kernel
and gets them back page by page, each zeroed and faulted in anew: by `perf`, a tenth of a sparse-PS
that is busy with gRPC.

The collector's third generation walks over every object there is, with all threads of Python at a
stop. With TensorFlow's among them, a trainer stood still for 200 ms now and then (bench/README.md).
"""

from __future__ import annotations

import ctypes
import gc

KEPT_BYTES = 64 << 20  # free memory at the end of a heap that stays with the process
FROM_HEAP_BYTES = 32 << 20  # blocks up to this size come from a heap; glibc allows no more
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed() -> bool:
    """Lets freed blocks of up to FROM_HEAP_BYTES be used again without the kernel; whether this C
    library has that. For the whole process, from now on.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # not glibc
        return False
    settings = ((_M_MMAP_THRESHOLD, FROM_HEAP_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    return all(mallopt(name, value) == 1 for name, value in settings)


def settle_objects() -> None:
    """Lets the garbage collector pass over all objects that are there now, for good. To be called
    when a process is set up and its work begins.
    """
    gc.collect()
    gc.freeze()
