"""Director and actor: one plans sub-goals with checks, the other plays them with tools.

`goldwork` executes gold, `groups` makes sub-goals of it, `outline` plans, `stage` plays and re-plans,
`actors` and `users` speak, `strict` reviews, `synthesizer` is the whole. Sources: IBSEN (arXiv 2407.01093),
APIGen-MT (arXiv 2504.03601). Not covered: scores of how a dialogue reads, which IBSEN is evaluated by.
"""
