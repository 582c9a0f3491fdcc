"""What the report is made of, sections with tables and pictures, and the Markdown of it."""

import time
from collections import namedtuple

Column = namedtuple("Column", "head is_number")


def columns(*heads):
    """Columns of numbers, but for those whose head begins with `<`, which are texts."""
    return [Column(head.lstrip("<"), not head.startswith("<")) for head in heads]


def escaped(text):
    """A text that means itself in Markdown, in a table as well."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def table(heads, rows, title=None):
    """A table as Markdown; nothing without rows."""
    if not rows:
        return ""
    heads = columns(*heads)
    assert all(len(row) == len(heads) for row in rows), "every row has a cell for every column"

    def line(cells):
        return "| " + " | ".join(escaped(cell) for cell in cells) + " |\n"

    rules = "".join("---:|" if head.is_number else "---|" for head in heads)
    title = f"**{escaped(title)}**\n\n" if title else ""
    return f"{title}{line(head.head for head in heads)}|{rules}\n" + "".join(line(row) for row in rows)


class Section:
    def __init__(self, heading, text, commands=()):
        self.heading, self.text, self.commands = heading, text, commands
        self.picture, self.tables, self.notes = None, [], []

    def table(self, heads, rows, title=None):
        self.tables.append(table(heads, list(rows), title))

    def markdown(self, picture):
        blocks = [f"## {escaped(self.heading)}\n", self.text and escaped(self.text) + "\n"]
        if self.commands:
            blocks.append("```sh\n" + "\n".join(self.commands) + "\n```\n")
        if self.picture:
            blocks.append(f"![{self.heading}]({picture})\n")
        blocks += self.tables + [escaped(note) + "\n" for note in self.notes]
        return "".join("\n" + block for block in blocks if block)


def moment(unix_seconds):
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_seconds))


def day(unix_seconds):
    return moment(unix_seconds).split(" ")[0]
