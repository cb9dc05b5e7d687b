"""The signature graph: which tool's answer can feed which tool's argument, and by what evidence.

`ports` says what a signature is, `signatures` reads them from tools, `fields` reads values from results,
`build` makes the graph of `dependency`, `walks` draws paths through it.
"""
