"""Other compilers and libraries in oxide's graphs."""
