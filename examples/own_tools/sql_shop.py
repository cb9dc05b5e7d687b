"""Your own database as an environment: a file, and a task file with questions and gold SQL.

`trajsmith env check sql_shop:load` takes it as it is. The first half only makes the two files that you have
already; `load` is all there is to write.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from pipeline.environments.sql import SqlEnvironment

SCRIPT = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE orders (
  id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers(id), total REAL, state TEXT);
INSERT INTO customers VALUES (1, 'Ada', 'Oslo'), (2, 'Bo', 'Rome'), (3, 'Cleo', 'Oslo'), (4, 'Dov', NULL);
INSERT INTO orders VALUES
  (1, 1, 20.5, 'paid'), (2, 1, 4.0, 'open'), (3, 2, 99.9, 'paid'), (4, 3, 12.25, NULL), (5, 3, 7.0, 'open');
"""
TASKS = [
    {"question": "How many customers live in Oslo?",
     "gold_sql": "SELECT count(*) FROM customers WHERE city = 'Oslo'"},
    {"question": "Names and order totals, biggest first?", "split": "heldout",
     "gold_sql": "SELECT c.name, sum(o.total) AS t FROM customers c JOIN orders o ON o.customer_id = c.id "
                 "GROUP BY c.id, c.name ORDER BY t DESC"},
    {"question": "Which customers have no order?",
     "gold_sql": "SELECT name FROM customers WHERE id NOT IN (SELECT customer_id FROM orders)"},
    {"question": "Cancel the open orders of Ada.", "template": "change",
     "gold_sql": "UPDATE orders SET state = 'cancelled' WHERE state = 'open' AND customer_id = "
                 "(SELECT id FROM customers WHERE name = 'Ada')"},
]  # fmt: skip


def make_files(folder: Path) -> tuple[Path, Path]:
    """The database and the task file."""
    database, tasks = folder / "shop.sqlite", folder / "tasks.jsonl"
    connection = sqlite3.connect(database)
    connection.executescript(SCRIPT)
    connection.close()
    tasks.write_text("\n".join(json.dumps(task) for task in TASKS), encoding="utf-8")
    return database, tasks


def load(**options: Any) -> SqlEnvironment:
    with tempfile.TemporaryDirectory() as folder:
        database, tasks = make_files(Path(folder))
        return SqlEnvironment(databases=database, tasks=tasks, **options)
