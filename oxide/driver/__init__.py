"""The devices: what drives each. The compiled modules, where there are any, are found before their sources."""

from oxide.native import compiled_modules

__path__[:0] = compiled_modules("driver")
