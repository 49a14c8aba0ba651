"""Operations, and the runtime that executes them."""
