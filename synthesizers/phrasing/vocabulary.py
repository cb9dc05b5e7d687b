"""Everyday English for requests: verbs that start a description, other words for tool names, prepositions.

All entries are ours and none is about one environment; `clauses` says how they are used. Not covered: other
languages.
"""

from __future__ import annotations

from collections.abc import Mapping


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _table(text: str) -> dict[str, tuple[str, ...]]:
    """Lines of `word: other, other`."""
    entries = (line.split(":") for line in text.strip().splitlines())
    return {key.strip(): tuple(item.strip() for item in items.split(",")) for key, items in entries}


LOOK_UPS: Mapping[str, str] = {
    key: found[0]
    for key, found in _table("""
        list: show me
        display: show me
        show: show me
        view: show me
        see: show me
        get: get me
        fetch: get me
        retrieve: get me
        return: tell me
        provide: give me
    """).items()
}
"""How one asks for what such a verb does."""

VERBS = _words("""
    activate add adjust analyze answer append apply approve archive ask assign authenticate block book
    buy calculate call cancel change check clear close comment compare compute confirm connect convert
    copy count create deactivate delete deliver describe detect determine disable divide download edit
    enable estimate evaluate exchange execute exit extract fill filter find finish follow gauge generate
    give hand identify import increase insert invite invoke join like link load lock log look make mark
    measure mention merge message modify move multiply name notify open order pay perform place plan
    play post predict press print process purchase query quote rate read rebook recommend record refund
    register release remove rename replace reply report request reserve reset resolve restart retweet
    review rotate round run save schedule search select sell send set share sign simulate solve sort
    split start stop store submit subtract suggest summarize swap switch tag tell track trade transfer
    translate turn unblock unfollow unlock update upgrade upload use verify visit withdraw write
""")

FOLLOWERS = _words("""
    a an the all any one my your this each some new two up out in on for to from into specified current
    specific available multiple
""")
"""Words after which the word before was a verb, known or not."""

PARTICLES = _words("check fill give hand join log look sign turn")
"""Verbs that go with "in": "checks in a guest" is no check."""

SYNONYMS: Mapping[str, tuple[str, ...]] = _table("""
    book: reserve
    reserve: book
    cancel: call off, drop
    drop: cancel, call off
    change: switch
    move: shift
    bookings: reservations
    trips: bookings
    flights: flight options
    hotels: hotel options
    room: hotel stay
    upgrade: bump up
    profile: membership details
    find: look for
    search: browse
    query: statement
    submit: hand in, turn in
    answer: result
    tables: table names
    lookup: look
    sort: order
    comment: remark
    mention: tag
    retweet: repost
    echo: write
    mean: average
    list: show
    show: list
    get: give
    read: look at
    write: put
    open: bring up
    close: shut
    add: sum up
    subtract: take away
    divide: split
    multiply: take the product of
    count: tally
    order: ask for
    send: pass on
    delete: remove
    remove: take out
    create: make
    make: set up
    update: revise
    edit: revise
    run: carry out
    execute: run
    start: begin
    stop: end
    check: look at
    view: look at
    buy: purchase
    purchase: buy
    sell: get rid of
    post: publish
    copy: duplicate
    rename: give another name to
    diff: difference
    files: file list
    power: exponent
    calculate: work out
    compute: work out
    translate: put
    convert: turn
    logarithm: log
    percentage: share
    increment: raise
    decrement: lower
    login: sign in
    logout: sign out
    date: day
    time: hour
    message: note
    user: person
    users: people
    finish: wrap up
    value: number
""")
"""Other words for one that happens to be a tool's name."""

ABBREVIATIONS: Mapping[str, str] = {
    key: found[0]
    for key, found in _table("""
        src: source
        dst: destination
        dir: directory
        num: number
        qty: quantity
        amt: amount
        msg: message
        desc: description
        addr: address
        loc: location
        username: user name
        filename: file name
        dirname: directory name
    """).items()
}

PREPOSITIONS: Mapping[str, str] = {
    word: preposition
    for preposition, found in _table("""
        from: from, source, origin, departure, start, begin, since
        to: to, destination, dest, target, arrival, end, until, recipient, receiver
        on: day, date
        in: city, location, place, country, town, area, region, folder
        at: time, address, email, hour
        for: keyword, query, pattern, term, topic, price, customer, person
        saying: content, message, text, body, comment, description, resolution
        called: name, title
    """).items()
    for word in found
}
"""How a value follows that its parameter's name says nothing else about."""

KINDS = ("id", "name", "number", "code", "key", "no")
"""Words of a parameter's name that say which aspect of a thing is given, not which thing."""

CREATES = ("create", "make", "add", "post", "write", "open", "register", "set")
"""Verbs whose object is new, so that it is called something."""
