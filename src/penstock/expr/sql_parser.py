"""The parser behind `sql`: sqlglot's, made to say what was written instead of what it guesses was meant.

sqlglot reads many dialects into one tree, so it knows hundreds of functions, and writes each as a node of its own:
`element_at(xs, 1)` becomes `xs[1]` with a mark that it counts from 1, and `to_date(x, format)` a node that says
"text or date to date". Whoever overlooks a mark computes something else. So here no function is known to the parser: all
come out as `Anonymous`, with the name and the arguments that the user wrote, and `sql_functions` says what each means.

1. A function is a name and arguments. Those with a grammar of their own, as `extract(year from at)`, are refused by name.
2. Types are Spark's: "text", "number" or "int8" are not, though sqlglot would take them.
3. A quote is doubled inside quotes, as in Spark 4: 'it''s' is "it's".
4. `asc` and `desc` behind an expression say how rows are ordered. sqlglot would take them for its name, as in `price as desc`.

This file is imported when the first text is read, because sqlglot is slow to import.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.dialects.databricks import Databricks
from sqlglot.tokens import TokenType

from penstock.expr.sql_errors import no_such_function

__all__ = ["trees_of"]

_TYPE_WORDS = {
    *("ARRAY", "BIGINT", "BINARY", "BOOLEAN", "BYTE", "CHAR", "CHARACTER", "DATE", "DEC", "DECIMAL", "DOUBLE", "FLOAT", "INT"),
    *("INTEGER", "INTERVAL", "LONG", "MAP", "NULL", "NUMERIC", "REAL", "SHORT", "SMALLINT", "STRING", "STRUCT", "TIMESTAMP"),
    *("TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "TINYINT", "VARCHAR", "VOID"),
}
# Words that begin a statement, or stand in one: here they are names, as of a column called "comment" or "all".
_STATEMENTS = {*Databricks.Parser.STATEMENT_PARSERS, *Databricks.Tokenizer.COMMANDS} - {TokenType.SEMICOLON, TokenType.DESC}
_STATEMENTS |= {
    *(TokenType.ALL, TokenType.CROSS, TokenType.FOR, TokenType.HAVING, TokenType.INNER, TokenType.INTO, TokenType.JOIN),
    *(TokenType.LATERAL, TokenType.ON, TokenType.OUTER, TokenType.QUALIFY, TokenType.RETURNING, TokenType.TABLE),
    *(TokenType.USING, TokenType.VALUES),
}
_OWN_GRAMMAR = ("EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING")


def trees_of(text: str) -> list[Any]:
    """sqlglot's trees of a text, `Ordered` where it says how rows are ordered; its own error where it cannot be read."""
    tokens = _DIALECT.tokenize(text)
    found: list[Any] = _DIALECT.parser().parse_into(exp.Ordered, _with_doubled_quotes(tokens, text), text)
    return found


def _maybe_ordered(parser: Any) -> Any:
    """An expression, and what `order by` would know about it."""
    tree = parser._parse_statement()
    direction = parser._match_set((TokenType.ASC, TokenType.DESC)) and parser._prev.token_type
    nulls = parser._match_text_seq("NULLS") and parser._match_texts(("FIRST", "LAST")) and parser._prev.text.upper()
    if isinstance(tree, exp.Alias) and tree.alias.upper() == "NULLS" and parser._match_texts(("FIRST", "LAST")):
        tree, nulls = tree.this, parser._prev.text.upper()
    if tree is None or not (direction or nulls):
        return tree
    return exp.Ordered(
        this=tree,
        desc=direction == TokenType.DESC if direction else None,
        nulls_first=nulls == "FIRST" if nulls else None,
    )


def _with_doubled_quotes(tokens: list[Any], text: str) -> list[Any]:
    """'it''s' comes as two texts that touch; it is one, with a quote in it."""
    found: list[Any] = []
    for token in tokens:
        last: Any = found[-1] if found and found[-1].token_type == token.token_type == TokenType.STRING else None
        if last is not None and last.end + 1 == token.start and text[last.end] == text[token.start]:
            joined = last.text + text[token.start] + token.text
            found[-1] = type(token)(TokenType.STRING, joined, token.line, token.col, last.start, token.end)
        else:
            found.append(token)
    return found


def _refused(name: str) -> Any:
    def refuse(parser: Any) -> Any:
        raise no_such_function(name.lower(), parser.sql)

    return refuse


def _without_parentheses(name: str) -> Any:
    return lambda: exp.Anonymous(this=name)


class _Tokenizer(Databricks.Tokenizer):  # type: ignore[misc]
    KEYWORDS = {  # noqa: RUF012
        word: kind
        for word, kind in Databricks.Tokenizer.KEYWORDS.items()
        if (kind not in Databricks.Parser.TYPE_TOKENS or word in _TYPE_WORDS) and kind not in _STATEMENTS
    }


class _Parser(Databricks.Parser):  # type: ignore[misc]
    FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012
    FUNCTION_PARSERS = {  # noqa: RUF012
        **{name: Databricks.Parser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "TRIM")},
        **{name: _refused(name) for name in _OWN_GRAMMAR},
    }
    STATEMENT_PARSERS = {  # noqa: RUF012 - desc is a direction, or a column
        kind: parser for kind, parser in Databricks.Parser.STATEMENT_PARSERS.items() if kind != TokenType.DESC
    }
    EXPRESSION_PARSERS = {exp.Ordered: _maybe_ordered}  # noqa: RUF012
    ALIAS_TOKENS = Databricks.Parser.ALIAS_TOKENS - {TokenType.ASC, TokenType.DESC}

    def _parse_csv(self, parse_method: Any, sep: Any = TokenType.COMMA) -> list[Any]:
        """Items between commas, none of which is missing: sqlglot would read f(a,,b) as f(a, b)."""
        found: list[Any] = []
        while (item := parse_method()) is not None:
            found.append(item)
            if not self._match(sep):
                return found
        if found or (self._curr and self._curr.token_type == sep):
            self.raise_error("Expected an expression beside a comma")
        return found

    NO_PAREN_FUNCTION_PARSERS = {"CASE": Databricks.Parser.NO_PAREN_FUNCTION_PARSERS["CASE"]}  # noqa: RUF012
    NO_PAREN_FUNCTIONS = {kind: _without_parentheses(kind.name.lower()) for kind in Databricks.Parser.NO_PAREN_FUNCTIONS}  # noqa: RUF012


class _PenstockSql(Databricks):  # type: ignore[misc]
    Tokenizer = _Tokenizer
    Parser = _Parser


_DIALECT: Any = _PenstockSql()
