from oxide.driver.base import Dim3

def launch(
    entry: int, function: int, grid: Dim3, block: Dim3, shared_bytes: int, params: bytes, stream: int
) -> int: ...
