"""Peer access between devices, if the hardware has it (NVLink, or PCIe without an isolating switch).

A direct copy needs two grants: one for the context, which covers ordinary allocations, and one for the device's memory
pool, because its stream-ordered allocations ignore the first grant. Without these grants, a copy between devices is
still correct: the driver stages it through the host.
"""

from __future__ import annotations

from cuda.bindings import driver

from oxide.driver.cuda.errors import check, failure
from oxide.driver.cuda.handles import CudaContext

_GRANTED = (driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)

# Pairs of devices beyond the hardware's limit of peers, and pairs that a virtual machine isolates, are left to staging.
_STAGED = (driver.CUresult.CUDA_ERROR_TOO_MANY_PEERS, driver.CUresult.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)


def open_peer_access(reader: int, owner: int, owners: CudaContext) -> bool:
    """Lets the device ``reader`` access the memory of ``owner``, if the hardware can. Returns False if it cannot. The
    context of ``reader`` must be current. ``owners`` is the context of ``owner``."""
    error, can = driver.cuDeviceCanAccessPeer(reader, owner)
    check(error, "cuDeviceCanAccessPeer")
    if not can:
        return False
    (error,) = driver.cuCtxEnablePeerAccess(owners.handle, 0)
    if error in _STAGED:
        return False
    if error not in _GRANTED:
        raise failure(error, f"cuCtxEnablePeerAccess(cuda:{reader} to cuda:{owner})")
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = reader
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    check(driver.cuMemPoolSetAccess(owners.pool, [access], 1)[0], "cuMemPoolSetAccess")
    return True
