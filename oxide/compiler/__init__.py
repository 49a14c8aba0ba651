"""The kernel compiler: typed Python functions to PTX or native code. It runs nothing."""
