"""The rules of the house as tests: style, types, imports, sizes, fresh generated code."""
