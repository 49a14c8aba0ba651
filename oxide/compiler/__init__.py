"""The kernel compiler: typed Python functions to PTX or native code. It runs nothing."""

# The decorator ``oxide.device`` shares its name with the package ``oxide.device``. Importing a package binds its name
# in its parent, once; that has to be over before ``oxide/__init__.py`` binds the decorator there.
import oxide.device  # noqa: F401
