"""proteus-bench: does opening a fixed-state memory block by block help, where, and how sure are we?"""

__version__ = "0.1.0"
