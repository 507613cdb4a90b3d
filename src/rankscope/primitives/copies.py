"""The direction of a copy and its kind of host memory, by its recorded name.

In: nothing. Out: regular expressions.
"""

from __future__ import annotations

# CUDA and ROCm write `Memcpy HtoD (Pageable -> Device)`; XPU the kinds of memory, of which M is the host's own, H the
# host's that the device can reach (pinned), S shared: `Memcpy M2D (MEMORY -> DEVICE)`; older ROCm `CopyHostToDevice`.
TO_DEVICE = r"(?i)\bHtoD\b|HostToDevice|\b[MH]2D\b"
TO_HOST = r"(?i)\bDtoH\b|DeviceToHost|\bD2[MH]\b"
ON_DEVICE = r"(?i)\bDtoD\b|DeviceToDevice|\bD2D\b"
PAGEABLE = r"(?i)pageable|\b(M2D|D2M)\b"
NOT_PAGEABLE = r"(?i)pinned|device -> device|\b(DtoD|H2D|D2H|D2D)\b"
