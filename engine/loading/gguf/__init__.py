"""GGUF: one file with everything of a model. checkpoint.py opens it; this is what other files of loading need of it.

Not checkpoint.py itself, which brings the tokenizer's library with it and is imported where such a file is opened.
"""
from .blocks import BlockFormat, block_format, block_named
from .header import GGUFHeader, read_header

__all__ = ["BlockFormat", "GGUFHeader", "block_format", "block_named", "read_header"]
