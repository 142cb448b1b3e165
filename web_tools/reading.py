"""Makes text of what was fetched: HTML by trafilatura, PDF by pypdf, plain text as it is. Runs off the event loop.

Left out: scripts are not run, scanned PDFs are not read by OCR, other formats are refused.
"""

from __future__ import annotations

import asyncio
import io
from typing import Any

from mia.errors import ToolError
from mia.extras import need
from web_tools.fetch import Fetched
from web_tools.records import Page

_PDF_FAULTS = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    NotImplementedError,
    RecursionError,
    MemoryError,
    OSError,
)
"""What the PDF reader is known to raise on broken files besides its own errors."""
_HTML_FAULTS = (ValueError, TypeError, AttributeError, RecursionError)
_HTML = ("text/html", "application/xhtml+xml", "")
_TEXT = ("application/json", "application/ld+json", "application/xml", "application/rss+xml", "application/atom+xml")


async def read(fetched: Fetched, max_pages: int, limit_s: float) -> Page:
    """The text of a page.

    Args:
        fetched: what came.
        max_pages: pages of a PDF that are read.
        limit_s: seconds after which reading is given up (the thread that reads is not stopped by this).

    Raises:
        ToolError: it is of a type that is not read (`unsupported_type`), broken (`unreadable_page`), without any text
            (`no_text`), or too slow to read (`timeout`).
    """
    try:
        async with asyncio.timeout(limit_s):
            page = await asyncio.to_thread(_read, fetched, max_pages)
    except TimeoutError as error:
        raise ToolError(f"{fetched.url} took more than {limit_s:g} s to read", code="timeout") from error
    if not page.text.strip():
        raise ToolError(
            f"{fetched.url} has no text that can be read",
            remedy="visit another page; pictures of text and pages made by scripts are not read",
            code="no_text",
        )
    return page


def _read(fetched: Fetched, max_pages: int) -> Page:
    kind = fetched.content_type
    if kind == "application/pdf" or fetched.body[:1024].lstrip().startswith(b"%PDF-"):
        return _pdf(fetched, max_pages)
    if kind in _HTML:
        return _html(fetched)
    if kind.startswith("text/") or kind in _TEXT:
        return Page(url=fetched.url, content_type=kind, text=_decoded(fetched))
    raise ToolError(
        f"{fetched.url} is {kind}, which is not read", remedy="visit a page or a PDF", code="unsupported_type"
    )


def _html(fetched: Fetched) -> Page:
    trafilatura = need("trafilatura", "web")
    # A declared charset is decoded here; otherwise trafilatura looks for one in the page itself.
    source: str | bytes = _decoded(fetched) if fetched.charset else fetched.body
    try:
        found = trafilatura.bare_extraction(
            source, url=fetched.url, with_metadata=True, include_comments=False, favor_recall=True
        )
    except _HTML_FAULTS as error:
        raise _broken(fetched.url, error) from error
    if found is None:
        return Page(url=fetched.url, content_type="text/html", text="")
    return Page(
        url=fetched.url,
        title=found.title or "",
        date=found.date or None,
        content_type="text/html",
        text=found.text or "",
    )


def _pdf(fetched: Fetched, max_pages: int) -> Page:
    pypdf = need("pypdf", "web")
    try:
        reader = pypdf.PdfReader(io.BytesIO(fetched.body))
        pages = len(reader.pages)
        texts = [reader.pages[number].extract_text() for number in range(min(pages, max_pages))]
        title, date = _pdf_head(reader)
    except (pypdf.errors.PyPdfError, *_PDF_FAULTS) as error:
        raise _broken(fetched.url, error) from error
    return Page(
        url=fetched.url,
        title=title,
        date=date,
        content_type="application/pdf",
        text="\n\n".join(text.strip() for text in texts).strip(),
        cut=pages > max_pages,
    )


def _pdf_head(reader: Any) -> tuple[str, str | None]:
    """Title and date of creation."""
    head = reader.metadata
    if head is None:
        return "", None
    try:
        created = head.creation_date
    except ValueError:  # a date in no known form is no reason to refuse the text
        created = None
    return str(head.title or ""), f"{created:%Y-%m-%d}" if created is not None else None


def _decoded(fetched: Fetched) -> str:
    try:
        return fetched.body.decode(fetched.charset or "utf-8", "replace")
    except LookupError:  # a charset that nobody knows
        return fetched.body.decode("utf-8", "replace")


def _broken(url: str, error: BaseException) -> ToolError:
    return ToolError(
        f"{url} cannot be read: {type(error).__name__}: {str(error)[:200]}",
        remedy="visit another page",
        code="unreadable_page",
    )
