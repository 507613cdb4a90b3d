"""Regular expressions for the direction of a copy and its kind of host memory, by its recorded name.

In: nothing. Out: regular expressions.
"""

from __future__ import annotations

# CUDA and ROCm write `Memcpy HtoD (Pageable -> Device)`, older ROCm `CopyHostToDevice`. XPU writes kinds of memory
# (`Memcpy M2D (MEMORY -> DEVICE)`): M is pageable host memory, H pinned host memory, S shared memory.
TO_DEVICE = r"(?i)\bHtoD\b|HostToDevice|\b[MH]2D\b"
TO_HOST = r"(?i)\bDtoH\b|DeviceToHost|\bD2[MH]\b"
ON_DEVICE = r"(?i)\bDtoD\b|DeviceToDevice|\bD2D\b"
PAGEABLE = r"(?i)pageable|\b(M2D|D2M)\b"
NOT_PAGEABLE = r"(?i)pinned|device -> device|\b(DtoD|H2D|D2H|D2D)\b"
